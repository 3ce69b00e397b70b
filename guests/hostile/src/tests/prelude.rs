//! What most tests use.

pub(super) use crate::report::{Verdict, ensure, failure, say};
pub(super) use crate::tests::storm::value;
pub(super) use crate::{machine, report};
pub(super) use baremetal::arch::{clock, processors};
pub(super) use baremetal::guarded;
pub(super) use baremetal::pages::{PAGE, Page};
pub(super) use baremetal::pci::ConfigSpace;
pub(super) use baremetal::random::Random;
pub(super) use baremetal::verdict::Failure;
pub(super) use core::arch::asm;
pub(super) use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
pub(super) use hostile::allowed::Kind;
pub(super) use hostile::orders::Orders;
pub(super) use spin::Mutex;
