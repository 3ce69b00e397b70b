//! The meaning of each exit.
//!
//! Handlers change the vCPU's state and return how it goes on. They never block, except for the
//! bounded wait of a flush. Which handler serves which exit is in the table of the processor's kind
//! ([`crate::svm::table`]), which also puts the processor's description of the exit into the form
//! that the handler takes.

pub(crate) mod control;
pub(crate) mod cpuid;
pub(crate) mod effects;
pub(crate) mod event;
pub(crate) mod hypercall;
mod mmio;
pub(crate) mod msr;
pub mod nested;
pub mod port;
mod string_port;
pub(crate) mod table;

use memslots::{GuestMemory, Pattern};
use stay::in_section;

use super::vcpu::checks;
use super::vcpu::instruction::{length, length_to};
use super::vcpu::state::VcpuState;
use crate::vm::{Context, Next};
use crate::x86::processor::X86;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// It has been executed: continue after it.
    Behind(Next),
    /// It has not been executed: its fault has been raised, or it is executed again.
    Stay(Next),
}

impl Then {
    /// Continue after it, in the guest.
    pub(crate) const RESUME: Self = Self::Behind(Next::Resume);

    /// Raises #GP(0) instead of it.
    pub(crate) fn protection<A: X86>(context: &mut Context<'_, A>) -> Self {
        Self::Stay(protection_fault(context))
    }
}

/// Runs `look` with guest memory in a [section](in_section).
pub fn with_translation<A: X86, R>(
    context: &mut Context<'_, A>,
    look: impl FnOnce(&mut VcpuState<A::Block>, &GuestMemory<'_>) -> R,
) -> R {
    in_section(context, |state, vm| look(state, &vm.space.slots().memory()))
}

/// Emulates an instruction that exited, and continues after it. If the instruction can no longer be
/// read, the guest gets the fault and nothing is done.
#[inline(always)] // As above.
pub(crate) fn complete<A: X86>(
    context: &mut Context<'_, A>,
    usual: &Pattern,
    whose: checks::Instruction,
    handle: impl FnOnce(&mut Context<'_, A>) -> Then,
) -> Next {
    measured(context, usual, whose, |context, length| match handle(context) {
        Then::Behind(next) => {
            context.state.skip(length);
            next
        }
        Then::Stay(next) => next,
    })
}

/// The same for a handler that is told the instruction's length, and continues after it itself.
#[inline(always)] // As above.
pub(crate) fn measured<A: X86>(
    context: &mut Context<'_, A>,
    usual: &Pattern,
    whose: checks::Instruction,
    handle: impl FnOnce(&mut Context<'_, A>, u64) -> Next,
) -> Next {
    let length = match A::next_rip(&context.state.block) {
        // It is not looked for in memory, which would take a section.
        Some(next_rip) => length_to(next_rip, &*context.state.block, whose),
        None => with_translation(context, |state, memory| {
            length::<A>(&state.block, memory, &mut state.code, usual, whose)
        }),
    };
    let length = match length {
        Ok(length) => length,
        Err(error) => {
            context.state.raise_fetch_error(error);
            return Next::Resume;
        }
    };
    handle(context, length)
}

/// #GP(0).
fn protection_fault<A: X86>(context: &mut Context<'_, A>) -> Next {
    context.state.raise_protection();
    Next::Resume
}
