//! What several rows use.

pub(super) use crate::arch::testbed::{PATIENCE_MS, rounds};
pub(super) use crate::arch::x86_64::back_end::{BackEnd, Scope, among};
pub(super) use crate::arch::x86_64::checks::stale::{each_form, kinds, offers, only, plain, ways};
pub(super) use crate::arch::x86_64::hypercall::call_with;
pub(super) use crate::arch::x86_64::watch::{What, replace};
pub(super) use crate::arch::x86_64::window::{LARGE_WINDOW, PIECES_SEEN, RIGHTS, SEEN_EVERY, WINDOW};
pub(super) use crate::arch::x86_64::{hypercall, machine, watch, window};
pub(super) use baremetal::pages::{PAGE, Page};
pub(super) use baremetal::random::Random;
pub(super) use baremetal::x86_64::guarded::{Fault, rdmsr};
pub(super) use baremetal::x86_64::{apic, clock, processors};
pub(super) use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
pub(super) use tlbcheck::form::{Element, Flush, Kind, Targets, Via, sparse_of};
pub(super) use tlbcheck::report::{Stop, Verdict};
pub(super) use tlbcheck::{ensure, needs};
pub(super) use tlfs::{Control, FlushFlags, HvResult, Status, msr};
