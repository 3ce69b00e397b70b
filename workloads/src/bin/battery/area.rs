//! Memory whose every word follows from a seed and its place.

use crate::Failure;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect,
    mremap_fixed, munmap,
};
use rustix::param::page_size;
use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};

const RIGHTS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const FIXED: MremapFlags = MremapFlags::MAYMOVE;

/// Whole pages of this process, unmapped when the value is dropped. Pages are counted from 0.
#[derive(Debug)]
pub(crate) struct Area {
    base: NonNull<u64>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and to this value alone.
unsafe impl Send for Area {}
// SAFETY: a shared reference only reads, and there is none while `fill` stores.
unsafe impl Sync for Area {}

/// The word at a place of memory that was filled with this seed. It is never 0, as a new page's is.
const fn word(seed: u64, index: usize) -> u64 {
    ((index as u64) << 20 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

impl Area {
    /// Anonymous memory that is zero.
    pub(crate) fn anonymous(pages: usize) -> io::Result<Self> {
        let bytes = pages * page_size();
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, RIGHTS, MapFlags::PRIVATE)? };
        Self::of(base, bytes)
    }

    /// A file in memory, shared with all other mappings of it, or a copy of it.
    pub(crate) fn of_file(file: impl AsFd, pages: usize, is_shared: bool) -> io::Result<Self> {
        let (bytes, flags) =
            (pages * page_size(), if is_shared { MapFlags::SHARED } else { MapFlags::PRIVATE });
        // SAFETY: as above.
        let base = unsafe { mmap(ptr::null_mut(), bytes, RIGHTS, flags, file, 0)? };
        Self::of(base, bytes)
    }

    /// A file for [`Area::of_file`].
    pub(crate) fn file(pages: usize) -> io::Result<OwnedFd> {
        let file = memfd_create("battery", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, (pages * page_size()) as u64)?;
        Ok(file)
    }

    fn of(base: *mut c_void, bytes: usize) -> io::Result<Self> {
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes })
    }

    pub(crate) fn address(&self) -> usize {
        self.base.addr().get()
    }

    pub(crate) fn pages(&self) -> usize {
        self.bytes / page_size()
    }

    /// All pages.
    pub(crate) fn all(&self) -> Range<usize> {
        0..self.pages()
    }

    /// The pages' first byte and their length.
    fn range(&self, pages: &Range<usize>) -> (*mut c_void, usize) {
        assert!(pages.end <= self.pages(), "pages {pages:?} of {}", self.pages());
        // SAFETY: within the mapping, as just asserted.
        let first = unsafe { self.base.as_ptr().byte_add(pages.start * page_size()) };
        (first.cast(), pages.len() * page_size())
    }

    /// Stores the words of a seed.
    pub(crate) fn fill(&mut self, pages: Range<usize>, seed: u64) {
        let (first, bytes) = self.range(&pages);
        let (first, before) = (first.cast::<u64>(), pages.start * page_size() / 8);
        for index in 0..bytes / 8 {
            // SAFETY: the word is in the mapping and aligned. No reference points to it.
            unsafe { first.add(index).write_volatile(word(seed, before + index)) };
        }
    }

    /// Whether all words are those of a seed; if not, which is not.
    pub(crate) fn check(&self, pages: Range<usize>, seed: u64) -> Result<(), Failure> {
        let before = pages.start * page_size() / 8;
        self.expect(pages, |index| word(seed, before + index))
    }

    /// Whether all words are 0.
    pub(crate) fn check_zero(&self, pages: Range<usize>) -> Result<(), Failure> {
        self.expect(pages, |_| 0)
    }

    fn expect(&self, pages: Range<usize>, expected: impl Fn(usize) -> u64) -> Result<(), Failure> {
        let (first, bytes) = self.range(&pages);
        for index in 0..bytes / 8 {
            // SAFETY: as for `fill`.
            let found = unsafe { first.cast::<u64>().add(index).read_volatile() };
            if found != expected(index) {
                let page = pages.start + index * 8 / page_size();
                let expected = expected(index);
                return Err(
                    format!("page {page} of {}: {found:#x} instead of {expected:#x}", self.pages()).into()
                );
            }
        }
        Ok(())
    }

    /// Gives the kernel advice.
    pub(crate) fn advise(&mut self, pages: Range<usize>, advice: Advice) -> io::Result<()> {
        let (first, bytes) = self.range(&pages);
        // SAFETY: the range is in this mapping. Its contents are accessed only by the functions
        // here, which expect no particular value.
        unsafe { madvise(first, bytes, advice)? };
        Ok(())
    }

    /// Makes pages read-only, or writable.
    pub(crate) fn protect(&mut self, pages: Range<usize>, is_writable: bool) -> io::Result<()> {
        let rights =
            if is_writable { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::READ };
        let (first, bytes) = self.range(&pages);
        // SAFETY: the range is in this mapping, which no reference points into.
        unsafe { mprotect(first, bytes, rights)? };
        Ok(())
    }

    /// Moves it to another place: the kernel moves translations, not contents.
    pub(crate) fn relocate(&mut self) -> io::Result<()> {
        let place = Self::anonymous(self.pages())?;
        // SAFETY: exactly this mapping moves, over one of the same size that nothing else uses; no
        // reference points into either.
        unsafe {
            mremap_fixed(
                self.base.as_ptr().cast(),
                self.bytes,
                self.bytes,
                FIXED,
                place.base.as_ptr().cast(),
            )?
        };
        self.base = place.base;
        std::mem::forget(place);
        Ok(())
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: exactly this mapping; no reference into it exists. The kernel does not refuse to
        // unmap an existing mapping.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_damaged_is_found_and_named() {
        let mut area = Area::anonymous(3).expect("maps");
        area.check_zero(0..3).expect("is new");
        area.fill(0..3, 7);
        area.check(0..3, 7).expect("is as stored");
        area.check(1..2, 7).expect("and so is a part");
        assert!(area.check(0..3, 8).is_err());
        area.advise(1..2, Advice::LinuxDontNeed).expect("discards");
        let why = area.check(0..3, 7).expect_err("is damaged").to_string();
        assert!(why.starts_with("page 1 of 3: 0x0 instead of "), "{why}");
        area.check_zero(1..2).expect("is zero again");
        area.relocate().expect("moves");
        area.check(2..3, 7).expect("has moved");
    }

    #[test]
    fn a_copy_of_a_file_is_not_the_file() {
        let file = Area::file(2).expect("makes");
        let mut shared = Area::of_file(&file, 2, true).expect("maps");
        shared.fill(0..2, 1);
        let mut copy = Area::of_file(&file, 2, false).expect("maps");
        copy.check(0..2, 1).expect("is the file's");
        copy.fill(0..1, 2);
        shared.check(0..2, 1).expect("is as before");
        copy.check(1..2, 1).expect("is the file's");
    }
}
