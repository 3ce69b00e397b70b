//! Memory of guests that have been destroyed.
//!
//! A guest is freed when nobody can reach it. Tests prove that: there its memory is kept and filled
//! with a pattern, so whoever has a reference left finds that its guest does [not
//! exist](Exists::check), or follows a pointer that leads nowhere.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::NonNull;

/// A part of a guest that tells, under test, whether the guest has been freed.
pub(super) struct Exists {
    #[cfg(test)]
    mark: core::sync::atomic::AtomicU64,
}

/// What a guest that exists has there.
#[cfg(test)]
const MARK: u64 = 0x6578_6973_7473_2121;
/// What freed memory is filled with.
#[cfg(test)]
const FILLING: u8 = 0xdb;

impl Exists {
    pub(super) fn new() -> Self {
        Self {
            #[cfg(test)]
            mark: MARK.into(),
        }
    }

    /// Under test: panics if the guest has been freed.
    #[inline(always)]
    pub(super) fn check(&self) {
        #[cfg(test)]
        assert_eq!(self.mark.load(core::sync::atomic::Ordering::Relaxed), MARK, "a freed guest is used");
    }
}

/// Takes a value out of its box, and frees that.
///
/// # Safety
///
/// The value was leaked from a box, and is not used any more.
pub(super) unsafe fn take<T>(value: NonNull<T>) -> T {
    #[cfg(test)]
    {
        // SAFETY: as the caller says. The memory is never freed, and has no other user.
        unsafe {
            let taken = value.read();
            value.as_ptr().cast::<u8>().write_bytes(FILLING, size_of::<T>());
            taken
        }
    }
    // SAFETY: as the caller says.
    #[cfg(not(test))]
    *unsafe { Box::from_raw(value.as_ptr()) }
}

pub(super) fn drop_all<T>(values: Vec<T>) {
    #[cfg(test)]
    {
        let mut values = core::mem::ManuallyDrop::new(values);
        let size = size_of_val(values.as_slice());
        // SAFETY: the values are dropped once. Their memory is never freed, and has no other user.
        unsafe {
            core::ptr::drop_in_place(values.as_mut_slice());
            values.as_mut_ptr().cast::<u8>().write_bytes(FILLING, size);
        }
    }
    #[cfg(not(test))]
    drop(values);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_has_been_freed_is_known() {
        let guest = NonNull::from(Box::leak(Box::new((7, Exists::new()))));
        // SAFETY: it was just leaked, and the test keeps the memory.
        let reference = unsafe { guest.as_ref() };
        reference.1.check();
        // SAFETY: the same; what is left there is bytes without a meaning, which any number may be.
        let taken = unsafe { take(guest) };
        assert_eq!(taken.0, 7);
        assert!(std::panic::catch_unwind(|| reference.1.check()).is_err());
    }
}
