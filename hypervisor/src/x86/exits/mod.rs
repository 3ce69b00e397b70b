//! The meaning of each exit.
//!
//! An [`Exit`] is the processor's description of an exit, captured once. A row of the [table] fully
//! describes one kind of exit: its codes, its counter, the usual encoding of the instruction and
//! the privilege it needs, and its handler. Handlers change the vCPU's state and return how it goes
//! on. They never block, except for the bounded wait of a flush.
//!
//! | module | contents |
//! |---|---|
//! | `control` | control registers: CR4, CR8, XCR0 |
//! | `cpuid` | CPUID |
//! | `effects` | carries out the effects of writes to registers and ports |
//! | `event` | exits that need no instruction decoding: interrupts, exceptions, fatal conditions |
//! | `hypercall` | VMMCALL |
//! | `mmio` | accesses to memory that the processor cannot complete |
//! | `msr` | RDMSR and WRMSR |
//! | `nested` | nested page faults |
//! | `port`, `string_port` | ports |

pub(crate) mod control;
pub(crate) mod cpuid;
mod effects;
pub(crate) mod event;
pub(crate) mod hypercall;
mod mmio;
pub(crate) mod msr;
pub(crate) mod nested;
pub(crate) mod port;
mod string_port;

use memslots::{GuestMemory, Pattern};
use stay::in_section;

use super::vcpu::checks;
use super::vcpu::instruction::length;
use super::vcpu::state::VcpuState;
use crate::svm::processor::Amd64;
use crate::svm::table::{self, Row};
use crate::svm::vmcb::Vmcb;
use crate::vm::{Context, Next};

/// The processor's description of an exit. Any bytes that it fetched of a faulting instruction stay
/// in the VMCB, for the handler that decodes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its code.
    pub code: u64,
    /// Its meaning depends on the code.
    pub info_1: u64,
    /// Its meaning depends on the code.
    pub info_2: u64,
    /// The event whose delivery was cut short, in the format of [`event`](crate::svm::event).
    pub event: u64,
    /// The address of the next instruction, if the processor reports it.
    pub next_rip: u64,
}

impl Exit {
    /// The exit that has just ended a stay in the guest.
    #[must_use]
    #[inline(always)]
    pub const fn of(vmcb: &Vmcb) -> Self {
        Self {
            code: vmcb.exit_code,
            info_1: vmcb.exit_info_1,
            info_2: vmcb.exit_info_2,
            event: vmcb.exit_interrupt_info,
            next_rip: vmcb.next_rip,
        }
    }

    /// Whether an access to an MSR is a read.
    #[inline(always)]
    pub(crate) const fn is_msr_read(&self) -> bool {
        self.info_1 & 1 == 0
    }
}

/// How the vCPU goes on after an emulated instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// It has been executed: continue after it.
    Behind(Next),
    /// It has not been executed: its fault has been raised, or it is executed again.
    Stay(Next),
}

impl Then {
    /// Continue after it, in the guest.
    const RESUME: Self = Self::Behind(Next::Resume);

    /// Raises #GP(0) instead of it.
    fn protection<A: Amd64>(context: &mut Context<'_, A>) -> Self {
        Self::Stay(protection_fault(context))
    }
}

/// Runs `look` with guest memory in a [section](in_section).
pub fn with_translation<A: Amd64, R>(
    context: &mut Context<'_, A>,
    look: impl FnOnce(&mut VcpuState, &GuestMemory<'_>) -> R,
) -> R {
    in_section(context, |state, vm| look(state, &vm.space.slots().memory()))
}

/// Handles the exit that the VMCB describes.
#[inline(always)] // It has one caller, and saves that caller's registers for nothing otherwise.
pub fn handle_exit<A: Amd64>(context: &mut Context<'_, A>) -> Next {
    let exit = Exit::of(&context.state.vmcb);
    // The part of the IRET's own #DB that the guest must see has been raised; nothing else is to be
    // handled.
    if context.state.end_step() && Row::of(&exit) == Row::Event(table::Event::Debug) {
        context.count_exit(Row::of(&exit).counter());
        return Next::Resume;
    }
    table::dispatch(context, exit)
}

/// Emulates an instruction that exited, and continues after it. If the instruction can no longer be
/// read, the guest gets the fault and nothing is done.
#[inline(always)] // As above.
pub(crate) fn complete<A: Amd64>(
    context: &mut Context<'_, A>,
    exit: Exit,
    usual: &Pattern,
    whose: checks::Instruction,
    handle: impl FnOnce(&mut Context<'_, A>, Exit) -> Then,
) -> Next {
    let length = with_translation(context, |state, memory| {
        length::<A>(&state.vmcb, memory, &mut state.code, &exit, usual, whose)
    });
    let length = match length {
        Ok(length) => length,
        Err(error) => {
            context.state.raise_fetch_error(error);
            return Next::Resume;
        }
    };
    match handle(context, exit) {
        Then::Behind(next) => {
            context.state.skip(length);
            next
        }
        Then::Stay(next) => next,
    }
}

/// #GP(0).
fn protection_fault<A: Amd64>(context: &mut Context<'_, A>) -> Next {
    context.state.raise_protection();
    Next::Resume
}
