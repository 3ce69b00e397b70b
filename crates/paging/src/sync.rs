//! The atomics of the walker: the processor's, or loom's when the crate is model-checked.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicU64};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64};

/// Stores to an entry that others may be exchanging. By coherence the store overwrites an exchange
/// that succeeds before it, and a later exchange finds the store, whatever the ordering.
///
/// Relaxed; under loom an exchange, because loom does not order a store after an exchange that it
/// overwrites.
pub(crate) fn overwrite(entry: &AtomicU64, value: u64) {
    #[cfg(not(loom))]
    entry.store(value, core::sync::atomic::Ordering::Relaxed);
    #[cfg(loom)]
    entry.swap(value, core::sync::atomic::Ordering::Relaxed);
}
