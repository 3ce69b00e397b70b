//! Nested page faults: memory is mapped when it is first touched, every other address is a device
//! or unused.

use memslots::Gpa;

use super::mmio::emulate_access;
use crate::vm::{Access, Context, FaultOutcome, Next};
use crate::x86::processor::X86;

/// An access that nested translation refused.
#[derive(Clone, Copy, Debug)]
pub struct NestedFault {
    /// Guest physical address.
    pub gpa: Gpa,
    /// What made it.
    pub access: Access,
    /// It was a store.
    pub is_store: bool,
    /// It was made while an event was being delivered.
    pub in_delivery: bool,
}

#[inline(never)] // Kept apart from the frequent exits.
pub(crate) fn on_nested_fault<A: X86>(context: &mut Context<'_, A>, fault: NestedFault) -> Next {
    let next = serve_nested_fault(context, fault);
    match context.state.settle_delivery() {
        Next::Resume => next,
        other => other,
    }
}

fn serve_nested_fault<A: X86>(context: &mut Context<'_, A>, fault: NestedFault) -> Next {
    let NestedFault { gpa, access, is_store, in_delivery } = fault;
    match context.nested_fault(gpa, access, is_store) {
        FaultOutcome::Again => {}
        // The guest's own page tables are at an address without memory, or in a ROM, where the
        // processor cannot mark them as accessed.
        FaultOutcome::WalkRefused => context.state.raise_protection(),
        // Code at an address without memory: all ones is not an instruction.
        FaultOutcome::FetchRefused => context.state.raise_undefined(),
        // The access is the instruction's at RIP, or the processor's own while it was delivering an
        // event, to a stack or a descriptor table that is not in memory.
        FaultOutcome::Lost | FaultOutcome::Device if in_delivery => context.state.raise_delivery_failure(),
        FaultOutcome::Lost => return emulate_access(context, None),
        FaultOutcome::Device => return emulate_access(context, Some(gpa)),
    }
    Next::Resume
}
