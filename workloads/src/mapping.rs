//! Memory mappings whose words are accessed page by page.

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

const BOTH: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Bytes of a page: the kernel's, which is 4 KiB on AMD64, and 4, 16 or 64 KiB on Arm64.
pub fn page_bytes() -> usize {
    page_size()
}

/// Words of a page.
pub fn page_words() -> usize {
    page_bytes() / size_of::<u64>()
}

/// A file in memory with this many pages.
pub fn memory_file(pages: usize) -> io::Result<OwnedFd> {
    let file = memfd_create("workloads", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, (pages * page_bytes()) as u64)?;
    Ok(file)
}

/// The word at a place of memory that was filled with this seed. It is never 0, as a new page's is.
const fn seeded(seed: u64, index: usize) -> u64 {
    ((index as u64) << 20 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// Pages at an address of the kernel's choice. They are unmapped when the value is dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u64>,
    pages: usize,
    page_bytes: usize,
    is_writable: bool,
}

// SAFETY: the mapping belongs to the process, not to a thread, and to this value alone.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference only reads, and there is none while something is stored.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Writable anonymous memory of this process.
    pub fn anonymous(pages: usize) -> io::Result<Self> {
        let page_bytes = page_bytes();
        let bytes = length(pages, page_bytes)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, BOTH, MapFlags::PRIVATE)? };
        Self::of(base, pages, page_bytes, true)
    }

    /// Pages of a file from page `first` on, shared with all other mappings of it, read-only.
    pub fn of_file(file: impl AsFd, first: u64, pages: usize) -> io::Result<Self> {
        Self::of_file_by(page_bytes(), file, first, pages)
    }

    /// The same with pages of this size, which is a multiple of the kernel's.
    pub fn of_file_by(page_bytes: usize, file: impl AsFd, first: u64, pages: usize) -> io::Result<Self> {
        Self::map(page_bytes, file, first, pages, false, MapFlags::SHARED)
    }

    /// The same, writable.
    pub fn shared(file: impl AsFd, first: u64, pages: usize) -> io::Result<Self> {
        Self::map(page_bytes(), file, first, pages, true, MapFlags::SHARED)
    }

    /// The first pages of a file, each copied when it is stored to.
    pub fn copy_of(file: impl AsFd, pages: usize) -> io::Result<Self> {
        Self::map(page_bytes(), file, 0, pages, true, MapFlags::PRIVATE)
    }

    fn map(
        page_bytes: usize,
        file: impl AsFd,
        first: u64,
        pages: usize,
        is_writable: bool,
        flags: MapFlags,
    ) -> io::Result<Self> {
        let offset = first.checked_mul(page_bytes as u64).ok_or(io::ErrorKind::InvalidInput)?;
        let (bytes, rights) = (length(pages, page_bytes)?, if is_writable { BOTH } else { ProtFlags::READ });
        // SAFETY: as for `anonymous`.
        let base = unsafe { mmap(ptr::null_mut(), bytes, rights, flags, file, offset)? };
        Self::of(base, pages, page_bytes, is_writable)
    }

    fn of(base: *mut c_void, pages: usize, page_bytes: usize, is_writable: bool) -> io::Result<Self> {
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, pages, page_bytes, is_writable })
    }

    fn bytes(&self) -> usize {
        self.pages * self.page_bytes
    }

    /// The address of its first page.
    pub fn address(&self) -> usize {
        self.base.addr().get()
    }

    /// The number of its pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// All its pages.
    pub fn all(&self) -> Range<usize> {
        0..self.pages
    }

    /// The pages' first byte and their length.
    fn range(&self, pages: &Range<usize>) -> (*mut c_void, usize) {
        assert!(pages.end <= self.pages, "pages {pages:?} of {}", self.pages);
        // SAFETY: within the mapping, as just asserted.
        let first = unsafe { self.base.as_ptr().byte_add(pages.start * self.page_bytes) };
        (first.cast(), pages.len() * self.page_bytes)
    }

    /// Gives the kernel advice. What is discarded reads as zero, or as the file.
    pub fn advise(&mut self, pages: Range<usize>, advice: Advice) -> io::Result<()> {
        let (first, bytes) = self.range(&pages);
        // SAFETY: in this mapping, whose contents only functions here access, expecting nothing.
        unsafe { madvise(first, bytes, advice)? };
        Ok(())
    }

    /// Discards all pages.
    pub fn discard(&mut self) -> io::Result<()> {
        self.advise(self.all(), Advice::LinuxDontNeed)
    }

    /// Makes its pages writable or read-only.
    pub fn protect(&mut self, is_writable: bool) -> io::Result<()> {
        self.protect_some(self.all(), is_writable)?;
        self.is_writable = is_writable;
        Ok(())
    }

    /// The same for some pages, which nobody may store to while they are read-only.
    pub fn protect_some(&mut self, pages: Range<usize>, is_writable: bool) -> io::Result<()> {
        let rights =
            if is_writable { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::READ };
        let (first, bytes) = self.range(&pages);
        // SAFETY: the range is in this mapping, which no reference points into.
        unsafe { mprotect(first, bytes, rights)? };
        Ok(())
    }

    /// Moves it to another place: the kernel moves translations, not contents.
    pub fn relocate(&mut self) -> io::Result<()> {
        let (place, bytes) = (Self::anonymous(self.pages)?, self.bytes());
        let (from, to) = (self.base.as_ptr().cast(), place.base.as_ptr().cast());
        // SAFETY: just this mapping moves, over an unused one of its size; nothing refers to them.
        unsafe { mremap_fixed(from, bytes, bytes, MremapFlags::MAYMOVE, to)? };
        self.base = place.base;
        std::mem::forget(place);
        Ok(())
    }

    /// Stores the words of a seed.
    pub fn fill(&mut self, pages: Range<usize>, seed: u64) {
        let words = self.page_bytes / size_of::<u64>();
        for page in pages {
            (0..words).for_each(|word| self.write(page, word, seeded(seed, page * words + word)));
        }
    }

    /// Whether all words are those of a seed; if not, which is not.
    pub fn check(&self, pages: Range<usize>, seed: u64) -> Result<(), String> {
        self.expect(pages, |index| seeded(seed, index))
    }

    /// Whether all words are 0.
    pub fn check_zero(&self, pages: Range<usize>) -> Result<(), String> {
        self.expect(pages, |_| 0)
    }

    fn expect(&self, pages: Range<usize>, expected: impl Fn(usize) -> u64) -> Result<(), String> {
        let words = self.page_bytes / size_of::<u64>();
        for (page, word) in pages.flat_map(|page| (0..words).map(move |word| (page, word))) {
            let (found, expected) = (self.read(page, word), expected(page * words + word));
            if found != expected {
                return Err(format!("page {page} of {}: {found:#x} instead of {expected:#x}", self.pages));
            }
        }
        Ok(())
    }

    /// A word of a page, both counted from 0.
    ///
    /// # Panics
    ///
    /// If there is no such word.
    #[inline]
    pub fn read(&self, page: usize, word: usize) -> u64 {
        // SAFETY: the word is in the mapping, which is readable, and aligned.
        unsafe { self.word(page, word).read_volatile() }
    }

    /// Stores a word.
    ///
    /// # Panics
    ///
    /// If there is no such word, or the mapping is read-only.
    #[inline]
    pub fn write(&mut self, page: usize, word: usize, value: u64) {
        assert!(self.is_writable, "the mapping is not writable");
        // SAFETY: the word is in the mapping, which is writable, and aligned.
        unsafe { self.word(page, word).write_volatile(value) };
    }

    fn word(&self, page: usize, word: usize) -> *mut u64 {
        let words = self.page_bytes / size_of::<u64>();
        assert!(page < self.pages && word < words, "page {page}, word {word} of {} pages", self.pages);
        // SAFETY: within the mapping, as just asserted.
        unsafe { self.base.as_ptr().add(page * words + word) }
    }

    /// Unmaps it, and returns whether that succeeded.
    pub fn unmap(self) -> io::Result<()> {
        let (base, bytes) = (self.base, self.bytes());
        std::mem::forget(self);
        // SAFETY: exactly the mapping that this value had; no reference into it exists.
        unsafe { munmap(base.as_ptr().cast(), bytes)? };
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: as above. The kernel does not refuse to unmap an existing mapping.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes()) };
    }
}

fn length(pages: usize, page_bytes: usize) -> io::Result<usize> {
    Ok(pages.checked_mul(page_bytes).ok_or(io::ErrorKind::InvalidInput)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn words_keep_what_was_stored_until_they_are_discarded() {
        let mut memory = Mapping::anonymous(2).expect("maps");
        let last = page_words() - 1;
        memory.write(1, last, 7);
        memory.protect(false).expect("protects");
        assert_eq!((memory.read(1, last), memory.read(0, 0)), (7, 0));
        memory.protect(true).expect("protects");
        memory.discard().expect("discards");
        assert_eq!(memory.read(1, last), 0);
        memory.unmap().expect("unmaps");
    }

    #[test]
    fn a_file_is_seen_from_the_page_that_was_asked_for() {
        // Of a kernel with larger pages, too.
        for page_bytes in [page_bytes(), 16 << 10, 64 << 10] {
            let mut file = tempfile();
            let words = page_bytes as u64 / 8;
            let contents = (0..3 * words).flat_map(u64::to_ne_bytes).collect::<Vec<_>>();
            file.write_all(&contents).expect("writes");
            let seen = Mapping::of_file_by(page_bytes, &file, 1, 2).expect("maps");
            assert_eq!((seen.read(0, 0), seen.read(1, 3)), (words, 2 * words + 3));
            assert_eq!(seen.read(1, words as usize - 1), 3 * words - 1);
        }
    }

    #[test]
    #[should_panic(expected = "not writable")]
    fn what_is_protected_is_not_written_to() {
        let mut memory = Mapping::anonymous(1).expect("maps");
        memory.protect(false).expect("protects");
        memory.write(0, 0, 1);
    }

    #[test]
    #[should_panic(expected = "page 1, word 0 of 1 pages")]
    fn a_page_that_is_not_there_is_not_read() {
        Mapping::anonymous(1).expect("maps").read(1, 0);
    }

    #[test]
    fn a_size_that_does_not_fit_is_refused() {
        assert!(Mapping::anonymous(usize::MAX).is_err());
        assert!(Mapping::anonymous(0).is_err(), "by the kernel");
    }

    #[test]
    fn what_is_damaged_is_found_and_named() {
        let mut area = Mapping::anonymous(3).expect("maps");
        area.check_zero(0..3).expect("is new");
        area.fill(0..3, 7);
        area.check(0..3, 7).expect("is as stored");
        area.check(1..2, 7).expect("and so is a part");
        assert!(area.check(0..3, 8).is_err());
        area.advise(1..2, Advice::LinuxDontNeed).expect("discards");
        let why = area.check(0..3, 7).expect_err("is damaged");
        assert!(why.starts_with("page 1 of 3: 0x0 instead of "), "{why}");
        area.check_zero(1..2).expect("is zero again");
        area.relocate().expect("moves");
        area.check(2..3, 7).expect("has moved");
    }

    #[test]
    fn a_copy_of_a_file_is_not_the_file() {
        let file = memory_file(2).expect("makes");
        let mut shared = Mapping::shared(&file, 0, 2).expect("maps");
        shared.fill(0..2, 1);
        let mut copy = Mapping::copy_of(&file, 2).expect("maps");
        copy.check(0..2, 1).expect("is the file's");
        copy.fill(0..1, 2);
        shared.check(0..2, 1).expect("is as before");
        copy.check(1..2, 1).expect("is the file's");
    }

    fn tempfile() -> std::fs::File {
        let path = std::env::temp_dir().join(format!("quell-mapping-{}", std::process::id()));
        let options =
            std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        let file = options.expect("opens");
        std::fs::remove_file(path).expect("removes");
        file
    }
}
