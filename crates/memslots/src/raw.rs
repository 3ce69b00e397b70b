//! The only place that touches guest memory.
//!
//! A guest changes its memory at any time, and so do other CPUs of the hypervisor on its behalf. So no
//! Rust reference to it is ever formed, with one exception that claims nothing about the value: the
//! atomic under a single load, store or read-modify-write. Everything is copied out before it is looked
//! at, once. Accesses of different sizes to one place at one time are outside the language's memory
//! model, like the guest itself; on all supported processors they read or write one value or the other,
//! per byte.

use core::marker::PhantomData;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use paging::PhysAddr;

/// A piece of guest memory.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    start: *mut u8,
    len: usize,
    memory: PhantomData<&'a ()>,
}

/// Does one access of each natural size from 8 bytes down: the largest that is aligned and fits.
macro_rules! by_largest_unit {
    ($at:expr, $left:expr, $one:ident) => {
        match ($at.addr().trailing_zeros(), $left) {
            (3.., 8..) => $one!(AtomicU64, u64, 8),
            (2.., 4..) => $one!(AtomicU32, u32, 4),
            (1.., 2..) => $one!(AtomicU16, u16, 2),
            _ => $one!(AtomicU8, u8, 1),
        }
    };
}

impl<'a> Window<'a> {
    /// A window on `len` bytes at `host`.
    ///
    /// # Safety
    ///
    /// For the lifetime `'a`, the bytes are mapped one to one, readable and writable, with exposed
    /// provenance, and accessed by nothing but atomics as long as Rust code is concerned.
    #[inline]
    pub(crate) unsafe fn new(host: PhysAddr, len: usize) -> Self {
        let start = core::ptr::with_exposed_provenance_mut(host.0 as usize);
        Self { start, len, memory: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Reads the value at the start in one access; `None` if it is not aligned or the window is too short.
    #[inline]
    pub(crate) fn load<T: Word>(&self) -> Option<T> {
        T::load(self)
    }

    /// Reads the 8 bytes at the start in one access.
    ///
    /// # Safety
    ///
    /// The window is aligned to 8 bytes and has as many.
    #[inline]
    pub(crate) unsafe fn load_aligned(&self) -> u64 {
        // SAFETY: the caller vouches for the alignment and the length; the window is mapped and only accessed by
        // atomics.
        unsafe { AtomicU64::from_ptr(self.start.cast()) }.load(Relaxed)
    }

    /// Whether `bytes` are at `offset`. Each byte is read at most once, in one access.
    #[inline]
    pub(crate) fn has_at(&self, offset: usize, bytes: &[u8]) -> bool {
        if self.len.checked_sub(offset).is_none_or(|left| left < bytes.len()) {
            return false;
        }
        bytes.iter().enumerate().all(|(index, &byte)| {
            // SAFETY: `offset + index` is below the window's length, which is mapped and only accessed by atomics.
            unsafe { AtomicU8::from_ptr(self.start.add(offset + index)) }.load(Relaxed) == byte
        })
    }

    /// Copies the first `bytes.len()` bytes out, or as many as there are. Aligned pieces of up to 8
    /// bytes are read in one access each, and each byte is read once.
    pub(crate) fn read(&self, bytes: &mut [u8]) {
        let len = bytes.len().min(self.len);
        let mut done = 0;
        if self.start.addr().is_multiple_of(8) {
            // What hypercalls read: whole words.
            let words = bytes[..len].as_chunks_mut::<8>().0;
            for (index, word) in words.iter_mut().enumerate() {
                // SAFETY: the word is aligned and within the window, which is mapped and only accessed by atomics.
                let value = unsafe { AtomicU64::from_ptr(self.start.add(index * 8).cast()) }.load(Relaxed);
                *word = value.to_ne_bytes();
            }
            done = words.len() * 8;
        }
        while done < len {
            // SAFETY: `done` is below the window's length.
            let at = unsafe { self.start.add(done) };
            macro_rules! one {
                ($atomic:ty, $int:ty, $size:literal) => {{
                    // SAFETY: the address is aligned to the size and that many bytes are left in the
                    // window, which is mapped and only accessed by atomics.
                    let value = unsafe { <$atomic>::from_ptr(at.cast::<$int>()) }.load(Relaxed);
                    bytes[done..done + $size].copy_from_slice(&value.to_ne_bytes());
                    $size
                }};
            }
            done += by_largest_unit!(at, len - done, one);
        }
    }

    /// Copies `bytes` in, or as many as there is room for; pieces as in [`read`](Self::read).
    pub(crate) fn write(&self, bytes: &[u8]) {
        let len = bytes.len().min(self.len);
        let mut done = 0;
        while done < len {
            // SAFETY: `done` is below the window's length.
            let at = unsafe { self.start.add(done) };
            macro_rules! one {
                ($atomic:ty, $int:ty, $size:literal) => {{
                    let mut value = [0; $size];
                    value.copy_from_slice(&bytes[done..done + $size]);
                    // SAFETY: as in `read`.
                    unsafe { <$atomic>::from_ptr(at.cast::<$int>()) }
                        .store(<$int>::from_ne_bytes(value), Relaxed);
                    $size
                }};
            }
            done += by_largest_unit!(at, len - done, one);
        }
    }
}

/// An atomic read-modify-write.
#[derive(Clone, Copy, Debug)]
pub enum Rmw<T> {
    /// Clear the bits that are not in the mask.
    And(T),
    /// Set the bits in the mask.
    Or(T),
    /// Write `new` if the value is `current`.
    CompareExchange {
        /// The value to replace.
        current: T,
        /// The value to write.
        new: T,
    },
}

/// What guest memory can be changed by atomically: `u32` and `u64`. Sealed: this module is private.
pub trait Word: Copy {
    /// Does it at the window's start, and returns what was there before; or `None`, if that is not
    /// aligned or the window is too short.
    fn rmw(window: &Window<'_>, op: Rmw<Self>) -> Option<Self>;

    /// Reads the window's start; `None` as for [`rmw`](Self::rmw).
    fn load(window: &Window<'_>) -> Option<Self>;
}

impl Window<'_> {
    /// The value at the start, if it is aligned and the window is long enough.
    #[inline]
    fn first<T>(&self) -> Option<*mut T> {
        let at = self.start.cast::<T>();
        (self.len >= size_of::<T>() && at.is_aligned()).then_some(at)
    }
}

macro_rules! word {
    ($atomic:ident, $int:ident) => {
        impl Word for $int {
            #[inline]
            fn load(window: &Window<'_>) -> Option<Self> {
                // SAFETY: aligned, and in the window, which is mapped and only accessed by atomics.
                window.first::<$int>().map(|at| unsafe { $atomic::from_ptr(at) }.load(Relaxed))
            }

            fn rmw(window: &Window<'_>, op: Rmw<Self>) -> Option<Self> {
                let at = window.first::<$int>()?;
                // SAFETY: as in `load`.
                let atomic = unsafe { $atomic::from_ptr(at) };
                Some(match op {
                    Rmw::And(mask) => atomic.fetch_and(mask, AcqRel),
                    Rmw::Or(mask) => atomic.fetch_or(mask, AcqRel),
                    Rmw::CompareExchange { current, new } => {
                        atomic.compare_exchange(current, new, AcqRel, Acquire).unwrap_or_else(|seen| seen)
                    }
                })
            }
        }
    };
}

word!(AtomicU32, u32);
word!(AtomicU64, u64);
