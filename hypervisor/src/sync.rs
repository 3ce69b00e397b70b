//! Atomics and the lock of what the models check: the processor's, or loom's when the crate is
//! model-checked.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p quell-hypervisor --release --lib model::` runs the models.
//! Everything else in the crate keeps the atomics of `core`.

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
/// `Release` on success: it pairs with whatever takes the word by `Acquire`. `Relaxed` on failure:
/// nothing follows from it.
#[inline]
pub(crate) fn update(atomic: &AtomicU32, change: impl FnMut(u32) -> Option<u32>) -> Result<u32, u32> {
    // Loom remembers the last access to each atomic only. The load with which the update begins
    // would hide from its search that the exchange races with another thread's load.
    #[cfg(loom)]
    atomic.fetch_or(0, Ordering::Relaxed);
    atomic.fetch_update(Ordering::Release, Ordering::Relaxed, change)
}

/// Defines a constructor that is `const` except under loom, whose atomics register themselves.
macro_rules! const_fn {
    ($(#[$meta:meta])* $vis:vis fn $name:ident() -> Self $body:block) => {
        #[cfg(not(loom))]
        $(#[$meta])*
        $vis const fn $name() -> Self $body

        #[cfg(loom)]
        $(#[$meta])*
        $vis fn $name() -> Self $body
    };
}
pub(crate) use const_fn;

/// An array of zeroed atomics, in constants too.
macro_rules! zeroed {
    ($len:expr) => {{
        #[cfg(not(loom))]
        let array = [const { $crate::sync::AtomicU64::new(0) }; $len];
        #[cfg(loom)]
        let array: [$crate::sync::AtomicU64; $len] =
            core::array::from_fn(|_| $crate::sync::AtomicU64::new(0));
        array
    }};
}
pub(crate) use zeroed;
