//! Simple exits: interrupts, exceptions, instructions that do nothing or do not exist, fatal
//! conditions.

use super::{Exit, Then, protection_fault};
use crate::svm::processor::Amd64;
use crate::svm::vmcb::{clean, vintr};
use crate::vm::{Context, Next};
use crate::x86::vcpu::nmi::Nmi;
use crate::x86::vcpu::state::Activity;

/// HLT.
#[inline(always)] // Small, and one of many.
pub(crate) fn on_halt<A: Amd64>(context: &mut Context<'_, A>, _: Exit) -> Then {
    context.state.activity = Activity::Halted;
    Then::Behind(Next::Halt)
}

/// PAUSE.
#[inline(always)] // As above.
pub(crate) fn on_pause<A: Amd64>(_: &mut Context<'_, A>, _: Exit) -> Then {
    Then::Behind(Next::Yield)
}

/// WBINVD, INVD: the caches are coherent without them.
#[inline(always)] // As above.
pub(crate) fn on_cache<A: Amd64>(_: &mut Context<'_, A>, _: Exit) -> Then {
    Then::RESUME
}

/// Nothing is left to do: the interrupt was taken right after the exit.
#[inline(always)] // As above.
pub(crate) fn on_nothing<A: Amd64>(_: &mut Context<'_, A>, _: Exit) -> Next {
    Next::Resume
}

/// The guest can take an interrupt: `prepare_events` injects it and withdraws the request.
#[inline(always)] // As above.
pub(crate) fn on_window<A: Amd64>(context: &mut Context<'_, A>, _: Exit) -> Next {
    context.state.vmcb.interrupt_control &= !vintr::IRQ;
    context.state.vmcb.mark_dirty(clean::TPR);
    Next::Resume
}

/// Loads the debug registers. The processor makes all checks when it executes the instruction
/// again.
pub(crate) fn on_debug_register<A: Amd64>(context: &mut Context<'_, A>, _: Exit) -> Next {
    context.state.load_debug_registers::<A>();
    Next::Resume
}

/// The next entry steps over it.
pub(crate) fn on_iret<A: Amd64>(context: &mut Context<'_, A>, _: Exit) -> Next {
    context.state.nmi.insert(Nmi::AT_IRET);
    Next::Resume
}

/// The guest gets the intercepted exception.
pub(crate) fn on_exception<A: Amd64>(context: &mut Context<'_, A>, exit: Exit) -> Next {
    context.state.reflect_exception(&exit);
    context.state.settle_delivery()
}

/// Memory or a processor is broken, and the extent of the damage is unknown.
#[cold]
pub(crate) fn on_machine_check<A: Amd64>(context: &mut Context<'_, A>, _: Exit) -> Next {
    panic!("machine check while vCPU {} ran", context.vcpu.index)
}

/// #GP(0).
pub(crate) fn on_refused<A: Amd64>(context: &mut Context<'_, A>, _: Exit) -> Next {
    protection_fault(context)
}

/// #UD.
pub(crate) fn on_undefined<A: Amd64>(context: &mut Context<'_, A>, _: Exit) -> Next {
    context.state.raise_undefined();
    Next::Resume
}

/// A triple fault.
pub(crate) fn on_shutdown<A: Amd64>(_: &mut Context<'_, A>, _: Exit) -> Next {
    Next::Shutdown
}

/// A guest can get here where a control register accepts values that VMRUN does not (QEMU: CR0.NW
/// without CD).
#[cold]
pub(crate) fn on_invalid<A: Amd64>(_: &mut Context<'_, A>, _: Exit) -> Next {
    Next::Dead
}

/// #UD.
#[cold]
pub(crate) fn on_unexpected<A: Amd64>(context: &mut Context<'_, A>, exit: Exit) -> Next {
    log::debug!("vCPU {}: unexpected exit {:#x}", context.vcpu.index, exit.code);
    context.state.raise_undefined();
    Next::Resume
}
