//! Atomics and cells; the model checker replaces them by its own.

#[cfg(loom)]
pub(crate) use loom::{cell::UnsafeCell, sync::atomic::AtomicU64};

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::AtomicU64;

/// `core`'s cell with the model checker's interface.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}
