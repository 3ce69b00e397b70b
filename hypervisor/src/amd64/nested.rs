//! Nested page faults: memory appears when it is first touched, everything else is a device or nothing.

use memslots::Gpa;
use stay::Answer;

use super::mmio::emulate_access;
use super::processor::Amd64;
use crate::vm::{Context, Next};

/// `exit_info_1` of a nested page fault: the access was a store.
const FAULT_WRITE: u64 = 1 << 1;
/// The fault came from the walk of the guest's page tables, not from the access itself.
const FAULT_IN_WALK: u64 = 1 << 33;
/// The fault came from an instruction fetch.
const FAULT_FETCH: u64 = 1 << 4;

/// #NPF: `exit_info_2` is the guest physical address.
#[inline(never)] // Apart from the exits that are many.
pub fn on_nested_fault<A: Amd64>(context: &mut Context<'_, A>) -> Next {
    let next = serve_nested_fault(context);
    match context.state.settle_delivery() {
        Next::Resume => next,
        other => other,
    }
}

fn serve_nested_fault<A: Amd64>(context: &mut Context<'_, A>) -> Next {
    let gpa = Gpa(context.state.vmcb.exit_info_2);
    let info = context.state.vmcb.exit_info_1;
    match context.answer_nested_fault(gpa, info & FAULT_WRITE != 0) {
        // The guest's own page tables lie in a ROM, where the processor cannot mark them as used.
        Answer::ReadOnly if info & FAULT_IN_WALK != 0 => context.state.raise_protection(),
        // Stores to read-only memory are dropped.
        Answer::ReadOnly => return access(context, None),
        Answer::Mmio(_) => return on_mmio(context, gpa, info),
        Answer::Installed(_) | Answer::Upgraded | Answer::Retry | Answer::OutOfTables => {}
    }
    Next::Resume
}

/// An access to a device's registers, or to nothing.
fn on_mmio<A: Amd64>(context: &mut Context<'_, A>, gpa: Gpa, info: u64) -> Next {
    if info & FAULT_IN_WALK != 0 {
        // The guest's own page tables lie where there is no memory.
        context.state.raise_protection();
    } else if info & FAULT_FETCH != 0 {
        // Code where there is no memory: all ones is no instruction.
        context.state.raise_undefined();
    } else {
        return access(context, Some(gpa));
    }
    Next::Resume
}

/// An access that the processor could not make: the instruction's at RIP, or one of its own while it was delivering an
/// event, to a stack or a descriptor table that is no memory.
fn access<A: Amd64>(context: &mut Context<'_, A>, mmio: Option<Gpa>) -> Next {
    if context.state.was_delivering() {
        context.state.raise_delivery_failure();
        return Next::Resume;
    }
    emulate_access(context, mmio)
}
