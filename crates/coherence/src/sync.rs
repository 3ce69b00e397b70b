//! The atomics of the protocol: the processor's, or loom's when the crate is model-checked.

pub(crate) use core::sync::atomic::Ordering;

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::AtomicU64;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::AtomicU64;

/// Changes `atomic` by compare-and-exchange, unless `change` declines its current value.
///
/// `AcqRel` on success, `Acquire` on failure.
pub(crate) fn update(atomic: &AtomicU64, change: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64> {
    // Loom remembers only the last access to each atomic. The update's initial load would hide from
    // its search that the exchange races with another thread's load.
    #[cfg(loom)]
    atomic.fetch_or(0, Ordering::Relaxed);
    // Pairs with every other change of the word: the table of events of each word names them.
    atomic.fetch_update(Ordering::AcqRel, Ordering::Acquire, change)
}

/// One turn of a spin loop that another CPU will end.
pub(crate) fn spin_loop() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// Whether a failed model is being unwound, during which atomics must not be touched.
pub(crate) fn is_unwinding() -> bool {
    #[cfg(not(loom))]
    return false;
    #[cfg(loom)]
    return std::thread::panicking();
}

/// Defines a constructor that is `const` except under loom, whose atomics register themselves.
macro_rules! const_fn {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),*) -> Self $body:block) => {
        #[cfg(not(loom))]
        $(#[$meta])*
        $vis const fn $name($($arg: $type),*) -> Self $body

        #[cfg(loom)]
        $(#[$meta])*
        $vis fn $name($($arg: $type),*) -> Self $body
    };
}
pub(crate) use const_fn;

/// An array of zeroed atomics, usable in constants.
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
