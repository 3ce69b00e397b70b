//! What most tests use.

pub(super) use crate::machine;
pub(super) use crate::tests::storm::value;
pub(super) use baremetal::arch::{clock, processors};
pub(super) use baremetal::pages::{PAGE, Page};
pub(super) use baremetal::pci::ConfigSpace;
pub(super) use baremetal::random::Random;
pub(super) use baremetal::report::say;
pub(super) use baremetal::verdict::{Failure, Verdict, failure};
pub(super) use baremetal::{ensure, guarded_asm, report};
pub(super) use core::arch::asm;
pub(super) use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
pub(super) use hostile::allowed::Kind;
pub(super) use hostile::orders::Orders;
pub(super) use spin::Mutex;
