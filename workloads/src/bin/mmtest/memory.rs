//! Memory of one thread, touched page by page, each page with canaries.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io;
use std::ptr::{self, NonNull};

pub(crate) const PAGE_BYTES: usize = 4096;
const WORDS: usize = PAGE_BYTES / 8;

/// A canary that differs from what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    pub(crate) thread: u16,
    pub(crate) page: usize,
    pub(crate) expected: u64,
    pub(crate) found: u64,
}

/// Anonymous memory that only one thread uses.
pub(crate) struct Memory {
    thread: u16,
    base: NonNull<u64>,
    pages: usize,
    /// Full passes made, and pages of the pass in progress.
    passes: u64,
    next: usize,
    damages: u64,
    first: Option<Damage>,
}

impl Memory {
    /// `pages` pages, at least one, that no pass has touched yet.
    pub(crate) fn new(thread: u16, pages: usize) -> io::Result<Self> {
        let bytes = pages * PAGE_BYTES;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, rights, MapFlags::PRIVATE)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { thread, base, pages, passes: 0, next: 0, damages: 0, first: None })
    }

    /// Checks the canaries of up to `count` pages and writes new ones, from where the last call
    /// ended, at most to the end of the pass.
    pub(crate) fn touch(&mut self, count: usize) {
        let end = self.pages.min(self.next + count);
        for page in self.next..end {
            // The first access to a page is a store: a load would make the kernel map its page of
            // zeroes, and each store would then flush that from the TLBs of all CPUs. That is
            // another workload.
            if self.passes != 0 {
                self.check(page, self.passes);
            }
            for word in words(page) {
                // SAFETY: the word is in the mapping, which is used by this value only.
                unsafe { self.word(page, word).write_volatile(self.canary(page, word, self.passes + 1)) };
            }
        }
        self.next = end;
        if self.next == self.pages {
            self.next = 0;
            self.passes += 1;
        }
    }

    pub(crate) fn check_all(&mut self) {
        for page in 0..self.pages {
            self.check(page, self.passes + u64::from(page < self.next));
        }
    }

    pub(crate) fn passes(&self) -> u64 {
        self.passes
    }

    /// Pages touched so far, counted each time.
    pub(crate) fn touches(&self) -> u64 {
        self.passes * self.pages as u64 + self.next as u64
    }

    /// Number of wrong canaries, and the first of them.
    pub(crate) fn damages(&self) -> (u64, Option<Damage>) {
        (self.damages, self.first)
    }

    fn check(&mut self, page: usize, pass: u64) {
        for word in words(page) {
            // SAFETY: as in `touch`.
            let found = unsafe { self.word(page, word).read_volatile() };
            let expected = self.canary(page, word, pass);
            if found != expected {
                self.damages += 1;
                self.first.get_or_insert(Damage { thread: self.thread, page, expected, found });
            }
        }
    }

    /// The value that a pass writes to a word of a page; before the first pass there are zeroes.
    fn canary(&self, page: usize, word: usize, pass: u64) -> u64 {
        match pass {
            0 => 0,
            _ => u64::from(self.thread) << 48 ^ (page as u64) << 20 ^ (word as u64) << 52 ^ pass,
        }
    }

    fn word(&self, page: usize, word: usize) -> *mut u64 {
        // SAFETY: pages and words are indices within the mapping.
        unsafe { self.base.as_ptr().add(page * WORDS + word) }
    }
}

/// The words of a page that hold canaries: the first, and one at a different position in each page.
fn words(page: usize) -> [usize; 2] {
    [0, 1 + page % (WORDS - 1)]
}

// SAFETY: the mapping belongs to the value alone.
unsafe impl Send for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made at the beginning; nothing refers to it any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.pages * PAGE_BYTES) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_end_and_begin_with_the_pages() {
        let mut memory = Memory::new(3, 10).expect("maps");
        for (count, passes, touches) in [(4, 0, 4), (4, 0, 8), (4, 1, 10), (100, 2, 20), (1, 2, 21)] {
            memory.touch(count);
            assert_eq!((memory.passes(), memory.touches()), (passes, touches));
        }
        memory.check_all();
        assert_eq!(memory.damages(), (0, None));
    }

    #[test]
    fn every_wrong_canary_is_found() {
        for (touched, page, word) in
            [(&[5][..], 2, 0), (&[5], 7, 0), (&[10, 5], 2, 3), (&[10, 10], 0, 1), (&[10, 5], 9, 10)]
        {
            let mut memory = Memory::new(7, 10).expect("maps");
            touched.iter().for_each(|&count| memory.touch(count));
            // SAFETY: a word of the mapping.
            unsafe { *memory.word(page, word) ^= 1 << 40 };
            memory.check_all();
            let (damages, first) = memory.damages();
            let first = first.expect("is found");
            assert_eq!((damages, first.thread, first.page), (1, 7, page));
            assert_eq!(first.found ^ first.expected, 1 << 40);
            let is_ahead = page >= memory.next && memory.passes() != 0;
            memory.touch(100);
            assert_eq!(memory.damages().0, 1 + u64::from(is_ahead), "by the pass too, if it comes there");
        }
    }

    #[test]
    fn an_old_page_or_another_threads_is_wrong() {
        let mut memory = Memory::new(1, 4).expect("maps");
        memory.touch(4);
        let canary = memory.canary(2, 0, 1);
        for other in [memory.canary(3, 0, 1), memory.canary(2, 3, 1), memory.canary(2, 0, 2), 0] {
            assert_ne!(canary, other);
        }
        memory.thread = 2;
        assert_ne!(canary, memory.canary(2, 0, 1));
        memory.check_all();
        assert_eq!(memory.damages().0, 8);
    }
}
