//! What each exit means.
//!
//! An [`Exit`] is what the processor says of one, captured once. A row of the [table] says all that
//! there is to say of a kind of exits: its codes, what it is counted as, how the instruction is
//! usually encoded and who may execute it, and its handler. Handlers change the vCPU's state and
//! say how it goes on; nothing in them blocks, but for the bounded wait of a flush.
//!
//! | module | what it holds |
//! |---|---|
//! | `control` | control registers: CR4, CR8, XCR0 |
//! | `cpuid` | CPUID |
//! | `effects` | what writes to registers and ports ask for, carried out |
//! | `event` | exits that no instruction's encoding is looked at for: interrupts, exceptions, what cannot go on |
//! | `hypercall` | VMMCALL |
//! | `mmio` | accesses to memory that the processor cannot reach |
//! | `msr` | RDMSR and WRMSR |
//! | `nested` | nested page faults |
//! | `port`, `string_port` | ports |
//! | `table` | the rows |

mod control;
mod cpuid;
mod effects;
mod event;
mod hypercall;
mod mmio;
mod msr;
mod nested;
mod port;
mod string_port;
pub mod table;

use memslots::{GuestMemory, Pattern};
use stay::in_section;

pub use table::Row;

use super::checks;
use super::instruction::length;
use super::processor::Amd64;
use super::state::VcpuState;
use super::vmcb::Vmcb;
use crate::vm::{Context, Next};

/// What the processor says of an exit. Bytes that it has fetched of a faulting instruction stay in
/// the VMCB, for the one that decodes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its code.
    pub code: u64,
    /// What the code makes of it.
    pub info_1: u64,
    /// What the code makes of it.
    pub info_2: u64,
    /// The event whose delivery it cut short, as [`event`](super::event) describes it.
    pub event: u64,
    /// Where the next instruction is, if the processor says so.
    pub next_rip: u64,
}

impl Exit {
    /// Of the stay in the guest that has just ended.
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
    const fn is_msr_read(&self) -> bool {
        self.info_1 & 1 == 0
    }
}

/// How it goes on after an instruction that was to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// It has been: behind it.
    Behind(Next),
    /// It has not: its fault has been raised, or it is executed again.
    Stay(Next),
}

impl Then {
    /// Behind it, back in the guest.
    const RESUME: Self = Self::Behind(Next::Resume);

    /// #GP(0) in its place.
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
#[inline(always)] // It has one caller, and saves that one's registers for nothing otherwise.
pub fn handle_exit<A: Amd64>(context: &mut Context<'_, A>) -> Next {
    let exit = Exit::of(&context.state.vmcb);
    // What the guest is to see of its IRET's own #DB has been raised; there is nothing else to be
    // handled.
    if context.state.end_step() && Row::of(&exit) == Row::Event(table::Event::Debug) {
        context.count_exit(Row::of(&exit).counter());
        return Next::Resume;
    }
    table::dispatch(context, exit)
}

/// Carries out the instruction that the guest could not, and goes on behind it. If it cannot be
/// read any more, the guest gets the fault and nothing is done.
#[inline(always)] // As above.
fn complete<A: Amd64>(
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
