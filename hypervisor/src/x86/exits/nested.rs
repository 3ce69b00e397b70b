//! Nested page faults: memory is mapped when it is first touched, every other address is a device
//! or unused.

use memslots::Gpa;

use super::Exit;
use super::mmio::emulate_access;
use crate::svm::event;
use crate::svm::processor::Amd64;
use crate::vm::{Access, Context, Led, Next};

/// `info_1` of a nested page fault: the access was a store.
pub(super) const FAULT_WRITE: u64 = 1 << 1;
/// An instruction fetch caused the fault.
pub(super) const FAULT_FETCH: u64 = 1 << 4;
/// The walk of the guest's page tables caused the fault, not the access itself.
pub(super) const FAULT_IN_WALK: u64 = 1 << 33;

/// #NPF: `info_2` is the guest physical address.
#[inline(never)] // Kept apart from the frequent exits.
pub(crate) fn on_nested_fault<A: Amd64>(context: &mut Context<'_, A>, exit: Exit) -> Next {
    let next = serve_nested_fault(context, &exit);
    match context.state.settle_delivery() {
        Next::Resume => next,
        other => other,
    }
}

fn serve_nested_fault<A: Amd64>(context: &mut Context<'_, A>, exit: &Exit) -> Next {
    let access = match exit.info_1 {
        info if info & FAULT_IN_WALK != 0 => Access::Walk,
        info if info & FAULT_FETCH != 0 => Access::Fetch,
        _ => Access::Data,
    };
    let gpa = Gpa(exit.info_2);
    match context.nested_fault(gpa, access, exit.info_1 & FAULT_WRITE != 0) {
        Led::Again => {}
        // The guest's own page tables are at an address without memory, or in a ROM, where the
        // processor cannot mark them as accessed.
        Led::WalkRefused => context.state.raise_protection(),
        // Code at an address without memory: all ones is not an instruction.
        Led::FetchRefused => context.state.raise_undefined(),
        // The access is the instruction's at RIP, or the processor's own while it was delivering an
        // event, to a stack or a descriptor table that is not in memory.
        Led::Lost | Led::Device if exit.event & event::VALID != 0 => context.state.raise_delivery_failure(),
        Led::Lost => return emulate_access(context, None),
        Led::Device => return emulate_access(context, Some(gpa)),
    }
    Next::Resume
}
