//! The only code that touches guest memory.
//!
//! A guest changes its memory at any time, and so do other CPUs of the hypervisor on its behalf. So
//! no Rust reference to it is ever formed, with one exception that asserts nothing about the value:
//! the atomic for a single load, store or read-modify-write. Everything is copied out, once, before
//! it is examined. Concurrent accesses of different sizes to the same location are outside the
//! language's memory model, like the guest itself; on all supported processors they read or write
//! one value or the other, per byte.

use core::marker::PhantomData;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use paging::PhysAddr;

/// Bytes compared in one access where possible.
const WORD: usize = size_of::<u64>();
/// Words per iteration of loops over many.
const TURN: usize = 8;

/// Up to 8 bytes to compare with; see [`GuestMemory::has_at`](crate::GuestMemory::has_at).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The bytes, first one lowest.
    word: u64,
    /// The bits of `word` that are in use.
    mask: u64,
    len: usize,
}

impl Pattern {
    /// The pattern of `bytes`, at most 8; further bytes are ignored.
    pub const fn new(bytes: &[u8]) -> Self {
        let (mut word, mut mask, mut len) = (0, 0, 0);
        while len < bytes.len() && len < WORD {
            word |= (bytes[len] as u64) << (8 * len);
            mask |= 0xff << (8 * len);
            len += 1;
        }
        Self { word, mask, len }
    }

    /// Number of bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "nobody looks for nothing")]
    pub const fn len(&self) -> usize {
        self.len
    }
}

/// A piece of guest memory.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    start: *mut u8,
    len: usize,
    memory: PhantomData<&'a ()>,
}

/// Makes one access of each natural size from 8 bytes down: the largest that is aligned and fits.
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
    /// provenance, and Rust code accesses them by atomics only.
    #[inline]
    pub(crate) unsafe fn new(host: PhysAddr, len: usize) -> Self {
        let start = core::ptr::with_exposed_provenance_mut(host.0 as usize);
        Self { start, len, memory: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Reads the value at the start in one access; `None` if it is not aligned or the window is too
    /// short.
    #[inline]
    pub(crate) fn load<T: Word>(&self) -> Option<T> {
        T::load(self)
    }

    /// Reads the 8 bytes at the start in one access.
    ///
    /// # Safety
    ///
    /// The window is aligned to 8 bytes and at least that long.
    #[inline]
    pub(crate) unsafe fn load_aligned(&self) -> u64 {
        // SAFETY: the caller vouches for the alignment and the length; the window is mapped and
        // only accessed by atomics.
        unsafe { AtomicU64::from_ptr(self.start.cast()) }.load(Relaxed)
    }

    /// Whether `pattern` is at `offset`. Each byte is read at most once.
    #[inline]
    pub(crate) fn has_at(&self, offset: usize, pattern: &Pattern) -> bool {
        let (first, shift) = (offset - offset % WORD, offset % WORD);
        // Two words, so that any pattern fits in them, wherever it begins.
        if !self.start.addr().is_multiple_of(WORD) || first >= self.len.saturating_sub(2 * WORD - 1) {
            return self.has_bytes_at(offset, pattern);
        }
        // SAFETY: both words are aligned, and end in the window, which is mapped and only accessed
        // by atomics.
        let [low, high] = [first, first + WORD]
            .map(|at| u64::from_le(unsafe { AtomicU64::from_ptr(self.start.add(at).cast()) }.load(Relaxed)));
        let both = u128::from(high) << 64 | u128::from(low);
        ((both >> (shift * 8)) as u64 ^ pattern.word) & pattern.mask == 0
    }

    #[cold]
    fn has_bytes_at(&self, offset: usize, pattern: &Pattern) -> bool {
        if self.len.checked_sub(offset).is_none_or(|left| left < pattern.len) {
            return false;
        }
        pattern.word.to_le_bytes().iter().take(pattern.len).enumerate().all(|(index, &byte)| {
            // SAFETY: `offset + index` is below the window's length; the window is mapped and only
            // accessed by atomics.
            unsafe { AtomicU8::from_ptr(self.start.add(offset + index)) }.load(Relaxed) == byte
        })
    }

    /// Whether all bytes are zero.
    pub(crate) fn is_zero(&self) -> bool {
        let mut done = 0;
        let mut words = [[0; WORD]; TURN];
        while self.len - done >= size_of_val(&words) {
            // SAFETY: `done` is at most the window's length.
            let rest = Self { start: unsafe { self.start.add(done) }, len: self.len - done, ..*self };
            if !rest.read_words(&mut words) {
                break;
            }
            if words.iter().fold(0, |all, word| all | u64::from_ne_bytes(*word)) != 0 {
                return false;
            }
            done += size_of_val(&words);
        }
        (done..self.len).all(|at| {
            // SAFETY: `at` is in the window, which is mapped and only accessed by atomics.
            unsafe { AtomicU8::from_ptr(self.start.add(at)) }.load(Relaxed) == 0
        })
    }

    /// Copies the first words out, each in one access; false, and nothing is copied, if they are
    /// not aligned or there are too few.
    #[inline]
    pub(crate) fn read_words(&self, words: &mut [[u8; WORD]]) -> bool {
        if !self.start.addr().is_multiple_of(WORD) || self.len < size_of_val(words) {
            return false;
        }
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: the word is aligned and within the window, which is mapped and only accessed
            // by atomics.
            let value = unsafe { AtomicU64::from_ptr(self.start.add(index * WORD).cast()) }.load(Relaxed);
            *word = value.to_ne_bytes();
        }
        true
    }

    /// Copies the first `bytes.len()` bytes out, or as many as there are. Aligned pieces of up to 8
    /// bytes are read in one access each, and each byte is read once.
    pub(crate) fn read(&self, bytes: &mut [u8]) {
        let len = bytes.len().min(self.len);
        let mut done = self.read_turns(bytes);
        while done < len {
            // SAFETY: `done` is below the window's length.
            let at = unsafe { self.start.add(done) };
            macro_rules! one {
                ($atomic:ty, $int:ty, $size:literal) => {{
                    // SAFETY: the address is aligned to the size and that many bytes remain in the
                    // window, which is mapped and only accessed by atomics.
                    let value = unsafe { <$atomic>::from_ptr(at.cast::<$int>()) }.load(Relaxed);
                    bytes[done..done + $size].copy_from_slice(&value.to_ne_bytes());
                    $size
                }};
            }
            done += by_largest_unit!(at, len - done, one);
        }
    }

    /// The reverse of [`write_words`](Self::write_words).
    fn read_turns(&self, bytes: &mut [u8]) -> usize {
        let len = bytes.len().min(self.len);
        // SAFETY: any eight bytes are a `u64`, and any `u64` is eight bytes.
        let (before, words, _) = unsafe { bytes[..len].align_to_mut::<u64>() };
        if !before.is_empty() || !self.start.addr().is_multiple_of(WORD) {
            return 0;
        }
        let (turns, _) = words.as_chunks_mut::<TURN>();
        let mut at = self.start.cast::<u64>();
        for turn in &mut *turns {
            for (index, word) in turn.iter_mut().enumerate() {
                // SAFETY: as in `write_words`.
                *word = unsafe { AtomicU64::from_ptr(at.add(index)) }.load(Relaxed);
            }
            // SAFETY: at most the end of what was read, which is in the window.
            at = unsafe { at.add(TURN) };
        }
        size_of_val(turns)
    }

    /// Copies whole words from the start of `bytes` to the start of the window, and returns the
    /// number of bytes; 0 unless both are aligned. On processors that require aligned loads, an
    /// unaligned word takes an instruction for each byte and more to combine them.
    fn write_words(&self, bytes: &[u8]) -> usize {
        let bytes = &bytes[..bytes.len().min(self.len)];
        // SAFETY: any eight bytes are a `u64`.
        let (before, words, _) = unsafe { bytes.align_to::<u64>() };
        if !before.is_empty() || !self.start.addr().is_multiple_of(WORD) {
            return 0;
        }
        let (turns, _) = words.as_chunks::<TURN>();
        let mut at = self.start.cast::<u64>();
        for turn in turns {
            for (index, word) in turn.iter().enumerate() {
                // SAFETY: aligned, and at the same offset in the window as the word in `bytes`,
                // which is no longer; the window is mapped and only accessed by atomics.
                unsafe { AtomicU64::from_ptr(at.add(index)) }.store(*word, Relaxed);
            }
            // SAFETY: at most the end of the written part, which is in the window.
            at = unsafe { at.add(TURN) };
        }
        size_of_val(turns)
    }

    /// Copies `bytes` in, or as many as fit; pieces as in [`read`](Self::read).
    pub(crate) fn write(&self, bytes: &[u8]) {
        let len = bytes.len().min(self.len);
        let mut done = self.write_words(bytes);
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
#[non_exhaustive]
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

/// Types that can change guest memory atomically: `u32` and `u64`. Sealed: this module is private.
pub trait Word: Copy {
    /// Performs the operation at the window's start, and returns the former value; `None` if the
    /// start is not aligned or the window is too short.
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
                    // Pairs with any access of the guest to the word: its instruction has the order
                    // of a locked one.
                    Rmw::And(mask) => atomic.fetch_and(mask, AcqRel),
                    Rmw::Or(mask) => atomic.fetch_or(mask, AcqRel),
                    Rmw::CompareExchange { current, new } => {
                        // As above: pairs with the guest.
                        atomic.compare_exchange(current, new, AcqRel, Acquire).unwrap_or_else(|seen| seen)
                    }
                })
            }
        }
    };
}

word!(AtomicU32, u32);
word!(AtomicU64, u64);

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Copies `len` bytes from `from` bytes after an aligned address to `to` bytes after another;
    /// returns the actual and the expected result.
    fn copied(from: usize, to: usize, len: usize) -> (Vec<u8>, Vec<u8>) {
        const WORDS: usize = 64;
        let source: [u64; WORDS] =
            core::array::from_fn(|index| (index as u64 + 1).wrapping_mul(0x0123_4567_89ab_cdef));
        let bytes: Vec<u8> = source.iter().flat_map(|word| word.to_ne_bytes()).collect();
        // SAFETY: any word is eight bytes, in place.
        let (_, in_place, _) = unsafe { source.align_to::<u8>() };
        let memory: [AtomicU64; WORDS] = core::array::from_fn(|_| AtomicU64::new(u64::MAX));
        let host = PhysAddr((&raw const memory).expose_provenance() as u64 + to as u64);
        // SAFETY: the array outlives the window, which stays within it; it is made of atomics.
        unsafe { Window::new(host, WORDS * WORD - to) }.write(&in_place[from..from + len]);
        let found = memory.iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
        let mut expected = [0xff; WORDS * WORD];
        expected[to..to + len].copy_from_slice(&bytes[from..from + len]);
        (found, expected.to_vec())
    }

    #[test]
    fn every_byte_is_written_and_none_beside() {
        for (from, to) in [(0, 0), (0, 8), (8, 0), (0, 3), (3, 0), (3, 3), (4, 4), (1, 2)] {
            // Miri executes a few instructions while a processor executes thousands.
            for len in 0..if cfg!(miri) { 20 } else { 300 } {
                let (found, expected) = copied(from, to, len);
                assert_eq!(found, expected, "{len} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn no_more_is_written_than_the_window_has() {
        let memory = [const { AtomicU64::new(0) }; 32];
        let host = PhysAddr((&raw const memory).expose_provenance() as u64);
        for len in [0, 7, 8, 63, 64, 65, 128] {
            memory.iter().for_each(|word| word.store(0, Relaxed));
            let source = [u64::MAX; 64];
            // SAFETY: as above.
            unsafe { Window::new(host, len) }.write(unsafe { source.align_to::<u8>() }.1);
            let ones: u32 = memory.iter().map(|word| word.load(Relaxed).count_ones()).sum();
            assert_eq!(ones as usize, len * 8, "a window of {len} bytes");
        }
    }
}
