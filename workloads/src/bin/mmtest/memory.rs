//! Memory of one thread, touched page by page, each page with canaries.

use std::io;
use workloads::mapping::{Mapping, page_words};

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
    memory: Mapping,
    /// Full passes made, and pages of the pass in progress.
    passes: u64,
    next: usize,
    damages: u64,
    first: Option<Damage>,
}

impl Memory {
    /// `pages` pages, at least one, that no pass has touched yet.
    pub(crate) fn new(thread: u16, pages: usize) -> io::Result<Self> {
        let memory = Mapping::anonymous(pages)?;
        Ok(Self { thread, memory, passes: 0, next: 0, damages: 0, first: None })
    }

    /// Checks the canaries of `count` pages, or to the end of the pass, and writes new ones.
    pub(crate) fn touch(&mut self, count: usize) {
        let end = self.memory.pages().min(self.next + count);
        for page in self.next..end {
            // First a store: a load would make the kernel map its page of zeroes, and each store
            // would then flush that from all TLBs. That is another workload.
            if self.passes != 0 {
                self.check(page, self.passes);
            }
            for word in words(page) {
                self.memory.write(page, word, self.canary(page, word, self.passes + 1));
            }
        }
        self.next = end;
        if self.next == self.memory.pages() {
            self.next = 0;
            self.passes += 1;
        }
    }

    pub(crate) fn check_all(&mut self) {
        for page in self.memory.all() {
            self.check(page, self.passes + u64::from(page < self.next));
        }
    }

    pub(crate) fn passes(&self) -> u64 {
        self.passes
    }

    pub(crate) fn touches(&self) -> u64 {
        self.passes * self.memory.pages() as u64 + self.next as u64
    }

    pub(crate) fn damages(&self) -> (u64, Option<Damage>) {
        (self.damages, self.first)
    }

    fn check(&mut self, page: usize, pass: u64) {
        for word in words(page) {
            let (found, expected) = (self.memory.read(page, word), self.canary(page, word, pass));
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
}

/// The words of a page that hold canaries: the first, and one at a different position in each page.
fn words(page: usize) -> [usize; 2] {
    [0, 1 + page % (page_words() - 1)]
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
            let wrong = memory.memory.read(page, word) ^ 1 << 40;
            memory.memory.write(page, word, wrong);
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
