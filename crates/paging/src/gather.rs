//! What an unmapping leaves to do: translations to invalidate, and tables to free after that.

use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use crate::{Level, PhysAddr, TableMemory};

/// Names one change of one page table. Later changes of the same table have later stamps, and no stamp
/// comes twice, not even if another table gets the same root one day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub(crate) root: PhysAddr,
    pub(crate) sequence: u64,
}

impl Stamp {
    /// Whether a flush that was issued when the table's stamp was `self` covers the change `earlier`.
    pub fn covers(self, earlier: Self) -> bool {
        self.root == earlier.root && self.sequence >= earlier.sequence
    }
}

/// Proof that a flush has completed. Only in exchange for one are tables freed.
///
/// The flush engine knows nothing of this crate, so whoever joins the two implements this for a type
/// that holds the engine's receipt together with the table's [stamp](crate::PageTable::stamp),
/// **sampled before the flush was issued**.
///
/// # Safety
///
/// When `covers(stamp)` is true, no processor holds or will use a translation, or an upper-level entry
/// in a walk cache, that the change `stamp` removed, and all effects of accesses through it are visible.
pub unsafe trait FlushReceipt {
    /// Whether the flush was issued after the change `stamp`, and has completed on every processor.
    fn covers(&self, stamp: Stamp) -> bool;
}

/// The receipt for a table that no processor has walked yet.
#[derive(Debug)]
pub struct NeverWalked(());

impl NeverWalked {
    /// A receipt without a flush.
    ///
    /// # Safety
    ///
    /// No processor has been given the root of any table that this receipt is used for.
    pub unsafe fn new() -> Self {
        Self(())
    }
}

// SAFETY: a processor that never had the root holds none of the table's translations.
unsafe impl FlushReceipt for NeverWalked {
    fn covers(&self, _: Stamp) -> bool {
        true
    }
}

/// Translations to invalidate, all of pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushRange {
    /// First input address.
    pub start: u64,
    /// Length in bytes, a multiple of the level's size.
    pub len: u64,
    /// Level of the leaves.
    pub level: Level,
}

/// What must be invalidated before the [`Gather`] can be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidation<'a> {
    /// Nothing changed that a processor can hold.
    Nothing,
    /// These ranges, and with them the walk caches if [tables](Gather::table_count) are held.
    Ranges(&'a [FlushRange]),
    /// The whole address space: there were more ranges than fit.
    Everything,
}

/// Most ranges that a gather tells apart.
pub const GATHER_RANGES_MAX: usize = 16;

/// The result of an unmapping: what to invalidate, and the tables that were cut off, held back until
/// a receipt shows that no processor walks them.
///
/// Tables are linked through their first entries, so holding any number takes no memory. Dropping a
/// gather leaks them, which is safe.
#[must_use = "translations stay in use, and tables leak, until the gather is flushed and released"]
pub struct Gather<M: TableMemory> {
    memory: M,
    stamp: Stamp,
    ranges: [FlushRange; GATHER_RANGES_MAX],
    range_count: usize,
    overflowed: bool,
    held: Option<PhysAddr>,
    table_count: usize,
    visited_count: u64,
}

impl<M: TableMemory> Gather<M> {
    pub(crate) fn new(memory: M, stamp: Stamp) -> Self {
        const NONE: FlushRange = FlushRange { start: 0, len: 0, level: Level::Page4K };
        Self {
            memory,
            stamp,
            ranges: [NONE; GATHER_RANGES_MAX],
            range_count: 0,
            overflowed: false,
            held: None,
            table_count: 0,
            visited_count: 0,
        }
    }

    /// What to invalidate.
    pub fn invalidation(&self) -> Invalidation<'_> {
        if self.overflowed || (self.range_count == 0 && self.table_count != 0) {
            Invalidation::Everything
        } else if self.range_count == 0 {
            Invalidation::Nothing
        } else {
            Invalidation::Ranges(&self.ranges[..self.range_count])
        }
    }

    /// Number of tables held back. While it is not 0, the invalidation must include walk caches.
    pub fn table_count(&self) -> usize {
        self.table_count
    }

    /// Number of entries that the change looked at: its cost.
    pub fn visited_count(&self) -> u64 {
        self.visited_count
    }

    /// The change that this gather results from.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Frees the held tables in exchange for a receipt, and returns how many there were.
    ///
    /// # Errors
    ///
    /// Gives the gather back, with all it holds, if the receipt is not for a flush after its change.
    #[expect(clippy::result_large_err, reason = "there is no heap to put it on")]
    pub fn release(self, receipt: &impl FlushReceipt) -> Result<usize, Self> {
        if self.invalidation() != Invalidation::Nothing && !receipt.covers(self.stamp) {
            return Err(self);
        }
        let mut held = self.held;
        for _ in 0..self.table_count {
            let Some(table) = held else { break };
            // SAFETY: a held table came from this memory and is not freed yet.
            let link = unsafe { &self.memory.entries(table)[0] };
            held = match link.swap(0, Relaxed) {
                0 => None,
                next => Some(PhysAddr(next)),
            };
            // SAFETY: no entry points to the table since the change of `stamp`, the receipt shows that
            // no processor walks it, and the list does not name it twice. The entries are zero: the
            // walker cleared them all, and the link is cleared above.
            unsafe { self.memory.free(table) };
        }
        Ok(self.table_count)
    }

    pub(crate) fn visit(&mut self) {
        self.visited_count = self.visited_count.saturating_add(1);
    }

    /// Records that the leaf at `start` is gone or changed.
    pub(crate) fn leaf(&mut self, start: u64, level: Level) {
        if let Some(last) = self.ranges[..self.range_count].last_mut()
            && last.level == level
            && last.start.wrapping_add(last.len) == start
        {
            last.len += level.size();
        } else if let Some(free) = self.ranges.get_mut(self.range_count) {
            *free = FlushRange { start, len: level.size(), level };
            self.range_count += 1;
        } else {
            self.overflowed = true;
        }
    }

    /// Holds back a table that was cut off and whose entries are all zero.
    pub(crate) fn hold(&mut self, table: PhysAddr) {
        // SAFETY: the walker found the table in the tree, so it came from this memory and is not freed;
        // it was cut off by its only parent, so no other gather holds it.
        let link = unsafe { &self.memory.entries(table)[0] };
        // A processor that still walks the table takes the page-aligned link for an absent entry.
        link.store(self.held.map_or(0, PhysAddr::as_u64), Relaxed);
        self.held = Some(table);
        self.table_count += 1;
    }
}

impl<M: TableMemory> fmt::Debug for Gather<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather")
            .field("stamp", &self.stamp)
            .field("invalidation", &self.invalidation())
            .field("table_count", &self.table_count)
            .finish_non_exhaustive()
    }
}
