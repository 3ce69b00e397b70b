//! The atomics of the walker: the processor's, or loom's when the crate is model-checked.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicU64};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64};
