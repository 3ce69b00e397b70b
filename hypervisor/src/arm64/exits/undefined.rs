//! Features that the guest has not been shown: they are undefined for it.

use super::{Syndrome, inject, skip, step};
use crate::arm64::processor::Arm64;
use crate::vm::{Context, Next};

/// Injects an undefined instruction exception, if the instruction's condition holds.
pub(super) fn handle<A: Arm64>(context: &mut Context<'_, A>, syndrome: Syndrome) -> Next {
    if step::condition_holds(context.state.registers.pstate, syndrome.0) {
        inject::undefined::<A>(&mut context.state.registers);
    } else {
        skip(context, syndrome);
    }
    Next::Resume
}

/// The same for an exception that the table does not list.
#[cold]
pub(super) fn handle_unlisted<A: Arm64>(context: &mut Context<'_, A>, syndrome: Syndrome) -> Next {
    log::debug!("vCPU {}: exception class {:#x} is not emulated", context.vcpu.index, syndrome.class());
    handle(context, syndrome)
}
