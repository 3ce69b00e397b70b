//! Memory of known contents: a word follows from its address and from the checks of its page.

use core::ops::Range;

use crate::tests::prelude::*;
use baremetal::arch::guarded;

const WORD: u64 = 8;

/// A processor's part of memory, one page after the other.
pub(super) struct Patterns {
    pages: Range<u64>,
    next: u64,
    pass: u64,
}

const fn word(address: u64, pass: u64) -> u64 {
    (address ^ pass.rotate_right(16)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn words(page: u64) -> impl Iterator<Item = u64> {
    (page..page + PAGE).step_by(WORD as usize)
}

/// Fills a page; returns how many of its words cannot be written to.
fn fill(page: u64, pass: u64) -> u64 {
    // SAFETY: the pages are free memory, and each is of one processor.
    words(page).filter(|address| unsafe { guarded::store(*address, word(*address, pass)) }.is_err()).count()
        as u64
}

impl Patterns {
    /// The part of processor `number` of `count` of this memory, filled.
    pub(super) fn new(memory: Range<u64>, number: usize, count: usize) -> Self {
        let pages = (memory.end - memory.start) / PAGE / count as u64;
        let start = memory.start + number as u64 * pages * PAGE;
        let pages = start..start + pages * PAGE;
        pages.clone().step_by(PAGE as usize).for_each(|page| {
            let _ = fill(page, 0);
        });
        Self { next: pages.start, pages, pass: 0 }
    }

    /// Checks the next page and gives it new contents. Returns how many words are wrong.
    pub(super) fn check_one(&mut self) -> u64 {
        if self.next >= self.pages.end {
            (self.next, self.pass) = (self.pages.start, self.pass + 1);
        }
        let (page, pass) = (self.next, self.pass);
        self.next += PAGE;
        let wrong = words(page).filter(|address| guarded::load(*address) != Ok(word(*address, pass)));
        wrong.count() as u64 + fill(page, pass + 1)
    }
}
