//! Atomics and the lock for the modules that the models check: the processor's, or loom's when the
//! crate is model-checked.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p quell-hypervisor --release --lib model::` runs the models.
//! Everything else in the crate uses the atomics of `core`.

pub(crate) use core::sync::atomic::Ordering;

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

#[cfg(not(loom))]
pub(crate) use spin::Mutex;

/// Loom's lock with the interface of `spin`'s.
#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(loom)]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().expect("no model goes on after a panic")
    }
}

/// Changes `atomic` by compare-and-exchange, unless `change` declines its present value.
///
/// `Release` on success: it pairs with any `Acquire` that takes the word. `Relaxed` on failure:
/// nothing depends on it.
#[inline]
pub(crate) fn update(atomic: &AtomicU32, change: impl FnMut(u32) -> Option<u32>) -> Result<u32, u32> {
    // Loom remembers only the last access to each atomic. The load at the beginning of the update
    // would hide from its search that the exchange races with another thread's load.
    #[cfg(loom)]
    atomic.fetch_or(0, Ordering::Relaxed);
    atomic.fetch_update(Ordering::Release, Ordering::Relaxed, change)
}
