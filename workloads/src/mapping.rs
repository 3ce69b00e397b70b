//! Memory mappings whose words are accessed page by page.

use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};
use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

/// Bytes of a page; the guests of both architectures have small pages.
pub const PAGE_BYTES: usize = 4096;
/// Words of a page.
pub const PAGE_WORDS: usize = PAGE_BYTES / size_of::<u64>();

/// Pages at an address of the kernel's choice. They are unmapped when the value is dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u64>,
    pages: usize,
    is_writable: bool,
}

// SAFETY: the mapping belongs to the process, not to a thread, and to this value alone.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Writable anonymous memory of this process.
    pub fn anonymous(pages: usize) -> io::Result<Self> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes(pages)?, rights, MapFlags::PRIVATE)? };
        Self::of(base.cast(), pages, true)
    }

    /// Pages of a file from page `first` on, shared with all other mappings of it, read-only.
    pub fn of_file(file: impl AsFd, first: u64, pages: usize) -> io::Result<Self> {
        let offset = first.checked_mul(PAGE_BYTES as u64).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: as above.
        let base =
            unsafe { mmap(ptr::null_mut(), bytes(pages)?, ProtFlags::READ, MapFlags::SHARED, file, offset)? };
        Self::of(base.cast(), pages, false)
    }

    fn of(base: *mut u64, pages: usize, is_writable: bool) -> io::Result<Self> {
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, pages, is_writable })
    }

    /// The address of its first page.
    pub fn address(&self) -> usize {
        self.base.addr().get()
    }

    /// The number of its pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Disables huge pages for it.
    pub fn keep_small(&self) -> io::Result<()> {
        self.advise(Advice::LinuxNoHugepage)
    }

    /// Discards all pages; they read as zero when they are next touched.
    pub fn discard(&mut self) -> io::Result<()> {
        self.advise(Advice::LinuxDontNeed)
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: the range is this mapping. Its contents are accessed only by `read` and `write`,
        // which expect no particular value.
        unsafe { madvise(self.base.as_ptr().cast(), bytes(self.pages)?, advice)? };
        Ok(())
    }

    /// Makes its pages writable or read-only.
    pub fn protect(&mut self, is_writable: bool) -> io::Result<()> {
        let rights =
            if is_writable { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::READ };
        // SAFETY: the range is this mapping, which no reference points into.
        unsafe { mprotect(self.base.as_ptr().cast(), bytes(self.pages)?, rights)? };
        self.is_writable = is_writable;
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
        assert!(page < self.pages && word < PAGE_WORDS, "page {page}, word {word} of {} pages", self.pages);
        // SAFETY: within the mapping, as just asserted.
        unsafe { self.base.as_ptr().add(page * PAGE_WORDS + word) }
    }

    /// Unmaps it, and returns whether that succeeded.
    pub fn unmap(self) -> io::Result<()> {
        let (base, pages) = (self.base, self.pages);
        std::mem::forget(self);
        // SAFETY: exactly the mapping that this value had; no reference into it exists.
        unsafe { munmap(base.as_ptr().cast(), bytes(pages)?)? };
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: as above. The kernel does not refuse to unmap an existing mapping.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.pages * PAGE_BYTES) };
    }
}

fn bytes(pages: usize) -> io::Result<usize> {
    Ok(pages.checked_mul(PAGE_BYTES).ok_or(io::ErrorKind::InvalidInput)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn words_keep_what_was_stored_until_they_are_discarded() {
        let mut memory = Mapping::anonymous(2).expect("maps");
        memory.write(1, PAGE_WORDS - 1, 7);
        memory.protect(false).expect("protects");
        assert_eq!((memory.read(1, PAGE_WORDS - 1), memory.read(0, 0)), (7, 0));
        memory.protect(true).expect("protects");
        memory.discard().expect("discards");
        assert_eq!(memory.read(1, PAGE_WORDS - 1), 0);
        memory.unmap().expect("unmaps");
    }

    #[test]
    fn a_file_is_seen_from_the_page_that_was_asked_for() {
        let mut file = tempfile();
        let words = (0..3 * PAGE_WORDS as u64).flat_map(u64::to_ne_bytes).collect::<Vec<_>>();
        file.write_all(&words).expect("writes");
        let seen = Mapping::of_file(&file, 1, 2).expect("maps");
        assert_eq!(seen.read(0, 0), PAGE_WORDS as u64);
        assert_eq!(seen.read(1, 3), 2 * PAGE_WORDS as u64 + 3);
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

    fn tempfile() -> std::fs::File {
        let path = std::env::temp_dir().join(format!("quell-mapping-{}", std::process::id()));
        let options =
            std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        let file = options.expect("opens");
        std::fs::remove_file(path).expect("removes");
        file
    }
}
