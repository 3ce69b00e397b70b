//! Memory in pages.

use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes in a page.
pub const PAGE: u64 = 4096;

/// Usable memory, from `start` up to and excluding `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ram {
    /// First address.
    pub start: u64,
    /// Address after the last one.
    pub end: u64,
}

impl From<Ram> for Range<u64> {
    fn from(ram: Ram) -> Self {
        ram.start..ram.end
    }
}

/// A page of memory; image and hardware see it at the same address. Since large pages consist of
/// it, it is also the unit of all memory here.
#[repr(C, align(4096))]
pub struct Page([AtomicU64; 512]);

impl Default for Page {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {:#x}", self.address())
    }
}

impl Page {
    /// An empty page.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 512])
    }

    /// Its address.
    pub fn address(&self) -> u64 {
        (&raw const *self).addr() as u64
    }

    /// Its words.
    pub fn words(&self) -> &[AtomicU64; 512] {
        &self.0
    }

    /// Copies `words` to its beginning.
    pub fn write(&self, words: &[u64]) {
        self.write_at(0, words);
    }

    /// Copies `words` to its word `first` and following; words beyond its end are dropped.
    pub fn write_at(&self, first: usize, words: &[u64]) {
        for (slot, word) in self.0.iter().skip(first).zip(words) {
            slot.store(*word, Ordering::Relaxed);
        }
    }
}

/// Pages that are allocated once.
pub struct Arena<const N: usize> {
    pages: [Page; N],
    /// Pages that have been allocated or skipped.
    used: AtomicUsize,
}

impl<const N: usize> Default for Arena<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Arena<N> {
    /// Nothing is allocated yet.
    pub const fn new() -> Self {
        Self { pages: [const { Page::new() }; N], used: AtomicUsize::new(0) }
    }

    /// `count` adjacent pages, the first at a multiple of `align` pages; `None` if that many are
    /// not left.
    pub fn take(&'static self, count: usize, align: usize) -> Option<&'static [Page]> {
        let start = (self.pages[0].address() / PAGE) as usize;
        let first = |used: usize| (start + used).next_multiple_of(align.max(1)) - start;
        let step = |used: usize| Some(first(used) + count).filter(|end| *end <= N);
        // Pairs with itself on other processors: each page is allocated once.
        let used = self.used.try_update(Ordering::AcqRel, Ordering::Acquire, step).ok()?;
        self.pages.get(first(used)..first(used) + count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_handed_out_once_and_aligned() {
        static ARENA: Arena<64> = Arena::new();
        let first = ARENA.take(3, 1).expect("64 are there");
        let aligned = ARENA.take(8, 16).expect("at most 3 + 15 + 8 are used");
        assert_eq!(aligned[0].address() % (16 * PAGE), 0);
        assert!(aligned[0].address() >= first[2].address() + PAGE);
        assert!(ARENA.take(64, 1).is_none(), "more than there are");
        let rest = ARENA.take(1, 1).expect("a failure takes nothing");
        assert_eq!(rest[0].address(), aligned[7].address() + PAGE);
    }

    #[test]
    fn what_does_not_fit_a_page_is_left_out() {
        let page = Page::new();
        page.write_at(511, &[1, 2]);
        assert_eq!(page.words()[511].load(Ordering::Relaxed), 1);
        assert_eq!(page.words()[0].load(Ordering::Relaxed), 0);
    }
}
