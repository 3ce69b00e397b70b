//! Pages for nested page tables.
//!
//! They are separate from the heap: a page from the heap takes two pages because of its alignment,
//! and a guest whose tables use up the pool must not starve the hypervisor.

use alloc::vec::Vec;
use baremetal::pages::PAGE;
use core::ops::Range;
use memslots::SLOTS_MAX;

/// Memory covered by a table of each level, except the root.
const COVERED: [u64; 3] = [2 << 20, 1 << 30, 512 << 30];
/// Tables at the two edges of a slot, of each level.
const EDGES: u64 = 2 * COVERED.len() as u64;
/// Tables with marks for missing memory, and the root.
const OTHERS: u64 = 64 + 1;

/// Physical pages, each of which is either taken or free.
#[derive(Debug, Default)]
pub struct PagePool {
    /// Pages that have never been taken, in one or more pieces.
    fresh: Vec<Range<u64>>,
    /// Pages that have been returned; it has room for all.
    returned: Vec<u64>,
    count: u32,
}

impl PagePool {
    /// No pages.
    pub const fn empty() -> Self {
        Self { fresh: Vec::new(), returned: Vec::new(), count: 0 }
    }

    /// Number of pages for the tables of this many bytes of memory in any slots, with all of it
    /// mapped by pages of 4 KiB. The number is doubled: tables that a change has detached are
    /// returned only when they can no longer be walked, and others may be created meanwhile.
    pub fn needed(memory: u64) -> u32 {
        Self::needed_inside(memory).saturating_add(2 * (EDGES * SLOTS_MAX as u64 + OTHERS) as u32)
    }

    /// The same without tables at edges and those that every guest has.
    pub fn needed_inside(memory: u64) -> u32 {
        let tables: u64 = COVERED.iter().map(|covered| memory.div_ceil(*covered)).sum();
        u32::try_from(2 * tables).unwrap_or(u32::MAX)
    }

    /// Adds `count` free pages from the page-aligned address `start` on.
    pub fn add(&mut self, start: u64, count: u32) {
        self.count += count;
        self.returned.reserve(self.count as usize - self.returned.len());
        self.fresh.push(start..start + u64::from(count) * PAGE);
    }

    /// Takes a page, with arbitrary contents; `None` if none is left.
    pub fn take(&mut self) -> Option<u64> {
        if let Some(page) = self.returned.pop() {
            return Some(page);
        }
        let piece = self.fresh.iter_mut().find(|piece| !piece.is_empty())?;
        piece.start += PAGE;
        Some(piece.start - PAGE)
    }

    /// Returns a page from [`take`](Self::take) that is no longer in use.
    pub fn give(&mut self, page: u64) {
        debug_assert!(!self.returned.contains(&page), "{page:#x} was not taken");
        self.returned.push(page);
    }

    /// Number of pages.
    #[cfg(test)]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Number of free pages.
    pub fn free_count(&self) -> u32 {
        let fresh: u64 = self.fresh.iter().map(|piece| (piece.end - piece.start) / PAGE).sum();
        fresh as u32 + self.returned.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Any order of taking and returning.
        #[test]
        fn u7_each_page_is_somebodys_or_free_and_never_two_peoples(steps in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut pool = PagePool::empty();
            pool.add(0x10_0000, 5);
            pool.add(0x10_5000, 3);
            let mut taken = BTreeSet::new();
            for step in steps {
                if step < 160 {
                    match pool.take() {
                        Some(page) => {
                            prop_assert!((0x10_0000..0x10_8000).contains(&page) && page % PAGE == 0);
                            prop_assert!(taken.insert(page), "{:#x} is taken already", page);
                        }
                        None => prop_assert_eq!(taken.len(), 8),
                    }
                } else if let Some(page) = taken.iter().copied().nth(usize::from(step) % taken.len().max(1)) {
                    taken.remove(&page);
                    pool.give(page);
                }
                prop_assert_eq!(pool.free_count() as usize, 8 - taken.len());
                prop_assert!(pool.returned.capacity() >= 8, "giving back allocates nothing");
            }
        }
    }

    #[test]
    fn u7_there_are_tables_for_all_memory_in_small_pages_twice() {
        // 1 GiB: 512 tables with pages of 4 KiB, one above them, and one above that. Each of 64
        // slots may begin and end within a table of each level. Marks have 64, and there is a root.
        assert_eq!(PagePool::needed(1 << 30), 2 * (512 + 1 + 1) + 2 * (64 * 6 + 64 + 1));
        assert_eq!((PagePool::needed_inside(1), PagePool::needed(u64::MAX)), (2 * 3, u32::MAX));
    }

    #[test]
    fn nothing_comes_out_of_nothing() {
        assert_eq!((PagePool::empty().take(), PagePool::empty().free_count()), (None, 0));
    }
}
