//! Memory mappings whose words are accessed page by page.

use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};
use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

/// Bytes of a page: the kernel's, which is 4 KiB on AMD64, and 4, 16 or 64 KiB on Arm64.
pub fn page_bytes() -> usize {
    // SAFETY: the function only reads a value that does not change.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Words of a page.
pub fn page_words() -> usize {
    page_bytes() / size_of::<u64>()
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

impl Mapping {
    /// Writable anonymous memory of this process.
    pub fn anonymous(pages: usize) -> io::Result<Self> {
        let (page_bytes, rights) = (page_bytes(), ProtFlags::READ | ProtFlags::WRITE);
        let bytes = length(pages, page_bytes)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, rights, MapFlags::PRIVATE)? };
        Self::of(base.cast(), pages, page_bytes, true)
    }

    /// Pages of a file from page `first` on, shared with all other mappings of it, read-only.
    pub fn of_file(file: impl AsFd, first: u64, pages: usize) -> io::Result<Self> {
        Self::of_file_by(page_bytes(), file, first, pages)
    }

    /// The same with pages of this size, which is a multiple of the kernel's.
    fn of_file_by(page_bytes: usize, file: impl AsFd, first: u64, pages: usize) -> io::Result<Self> {
        let offset = first.checked_mul(page_bytes as u64).ok_or(io::ErrorKind::InvalidInput)?;
        let bytes = length(pages, page_bytes)?;
        // SAFETY: as above.
        let base = unsafe { mmap(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, offset)? };
        Self::of(base.cast(), pages, page_bytes, false)
    }

    fn of(base: *mut u64, pages: usize, page_bytes: usize, is_writable: bool) -> io::Result<Self> {
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
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
        unsafe { madvise(self.base.as_ptr().cast(), self.bytes(), advice)? };
        Ok(())
    }

    /// Makes its pages writable or read-only.
    pub fn protect(&mut self, is_writable: bool) -> io::Result<()> {
        let rights =
            if is_writable { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::READ };
        // SAFETY: the range is this mapping, which no reference points into.
        unsafe { mprotect(self.base.as_ptr().cast(), self.bytes(), rights)? };
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

    fn tempfile() -> std::fs::File {
        let path = std::env::temp_dir().join(format!("quell-mapping-{}", std::process::id()));
        let options =
            std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        let file = options.expect("opens");
        std::fs::remove_file(path).expect("removes");
        file
    }
}
