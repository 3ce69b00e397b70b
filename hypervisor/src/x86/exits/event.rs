//! Simple exits: interrupts, exceptions, instructions that do nothing or do not exist, fatal
//! conditions.

use super::{Then, protection_fault};
use crate::vm::{Context, Next};
use crate::x86::RFLAGS_TF;
use crate::x86::processor::X86;
use crate::x86::vcpu::block::ControlBlock;
use crate::x86::vcpu::block::Field::Rflags;
use crate::x86::vcpu::nmi::Nmi;
use crate::x86::vcpu::state::Activity;

#[inline(always)] // Small, and one of many.
pub(crate) fn on_halt<A: X86>(context: &mut Context<'_, A>) -> Then {
    context.state.take_apic_back();
    let block = &*context.state.block;
    if A::IS_INTEL && (block.read(Rflags) & RFLAGS_TF != 0 || block.has_debug_pending()) {
        // A debug exception ends the halt at once.
        return Then::RESUME;
    }
    context.state.activity = Activity::Halted;
    Then::Behind(Next::Halt)
}

#[inline(always)] // As above.
pub(crate) fn on_pause<A: X86>(_: &mut Context<'_, A>) -> Then {
    Then::Behind(Next::Yield)
}

/// WBINVD, INVD: the caches are coherent without them.
#[inline(always)] // As above.
pub(crate) fn on_cache<A: X86>(_: &mut Context<'_, A>) -> Then {
    Then::RESUME
}

/// Nothing is left to do: the interrupt was taken right after the exit.
#[inline(always)] // As above.
pub(crate) fn on_nothing<A: X86>(_: &mut Context<'_, A>) -> Next {
    Next::Resume
}

/// The guest can take an interrupt: `prepare_events` injects it and withdraws the request.
#[inline(always)] // As above.
pub(crate) fn on_window<A: X86>(context: &mut Context<'_, A>) -> Next {
    context.state.block.close_window();
    Next::Resume
}

/// Loads the debug registers. The processor makes all checks when it executes the instruction
/// again.
pub(crate) fn on_debug_register<A: X86>(context: &mut Context<'_, A>) -> Next {
    context.state.load_debug_registers::<A>();
    Next::Resume
}

/// The next entry steps over it.
pub(crate) fn on_iret<A: X86>(context: &mut Context<'_, A>) -> Next {
    context.state.nmi.insert(Nmi::AT_IRET);
    Next::Resume
}

/// The guest gets the intercepted exception, with this error code and address if it has them.
pub(crate) fn on_exception<A: X86>(
    context: &mut Context<'_, A>,
    (vector, error, address): (u64, u32, u64),
) -> Next {
    context.state.reflect_exception(vector, error, address);
    context.state.settle_delivery()
}

/// Memory or a processor is broken, and the extent of the damage is unknown.
#[cold]
pub(crate) fn on_machine_check<A: X86>(context: &mut Context<'_, A>) -> Next {
    panic!("machine check while vCPU {} ran", context.vcpu.index)
}

/// #GP(0).
pub(crate) fn on_refused<A: X86>(context: &mut Context<'_, A>) -> Next {
    protection_fault(context)
}

/// #UD.
pub(crate) fn on_undefined<A: X86>(context: &mut Context<'_, A>) -> Next {
    context.state.raise_undefined();
    Next::Resume
}

/// A triple fault.
pub(crate) fn on_shutdown<A: X86>(_: &mut Context<'_, A>) -> Next {
    Next::Shutdown
}

/// A guest can get here where a control register accepts values that the entry does not (QEMU:
/// CR0.NW without CD).
#[cold]
pub(crate) fn on_invalid<A: X86>(_: &mut Context<'_, A>) -> Next {
    Next::Dead
}

/// #UD.
#[cold]
pub(crate) fn on_unexpected<A: X86>(context: &mut Context<'_, A>, code: u64) -> Next {
    log::debug!("vCPU {}: unexpected exit {code:#x}", context.vcpu.index);
    context.state.raise_undefined();
    Next::Resume
}
