//! What several rows use.

pub(super) use crate::arch::testbed::{PATIENCE_MS, rounds};
pub(super) use crate::arch::window::{LARGE_PAGE, LARGE_WINDOW, PIECES_SEEN, SEEN_EVERY, WINDOW, take};
pub(super) use crate::arch::x86_64::back_end::{BackEnd, Scope, among};
pub(super) use crate::arch::x86_64::checks::stale::{each_form, kinds, offers, only, plain, ways};
pub(super) use crate::arch::x86_64::hypercall::call_with;
pub(super) use crate::arch::x86_64::watch::{What, replace};
pub(super) use crate::arch::x86_64::window::RIGHTS;
pub(super) use crate::arch::x86_64::{hypercall, machine, watch, window};
pub(super) use baremetal::pages::{PAGE, Page};
pub(super) use baremetal::random::Random;
pub(super) use baremetal::x86_64::guarded::{Fault, rdmsr};
pub(super) use baremetal::x86_64::{apic, clock, processors};
pub(super) use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
pub(super) use tlbcheck::form::{Element, Flush, Kind, Targets, Via, sparse_of};
pub(super) use tlbcheck::report::{Stop, Verdict, fail};
pub(super) use tlbcheck::{ensure, needs};
pub(super) use tlfs::{Control, FlushFlags, HvResult, Status, msr};

/// The word of flags that names all address spaces.
pub(super) const ALL_SPACES: u64 = 2;

/// The control word of a call, with only its code.
pub(super) fn control(kind: Kind) -> Control {
    Control::new().with_call_code(kind.code().0)
}

/// The control word of a call with a list of this length.
pub(super) fn list(reps: u16) -> Control {
    control(Kind::List).with_rep_count(reps)
}
