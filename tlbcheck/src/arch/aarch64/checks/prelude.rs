//! What several rows use.

pub(super) use crate::arch::aarch64::checks::pages::{at_window, is_gone, page_of};
pub(super) use crate::arch::aarch64::tlbi::{Form, Kind, Scope, TlbiOperand};
pub(super) use crate::arch::aarch64::watch::{Expected, What};
pub(super) use crate::arch::aarch64::window::{
    READ_ONLY, TestSpace, block_entry, page_entry, replace, settle, write,
};
pub(super) use crate::arch::aarch64::{machine, tlbi, watch, window};
pub(super) use crate::arch::testbed::rounds;
pub(super) use crate::arch::window::{LARGE_PAGE, LARGE_WINDOW, PIECES_SEEN, SEEN_EVERY, WINDOW, take};
pub(super) use baremetal::aarch64::guarded::Cause;
pub(super) use baremetal::aarch64::{clock, guarded, processors};
pub(super) use baremetal::pages::{PAGE, Page};
pub(super) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub(super) use tlbcheck::arm64::Range;
pub(super) use tlbcheck::report::Verdict;
pub(super) use tlbcheck::{ensure, needs};
