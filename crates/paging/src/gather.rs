//! The work that a change leaves: translations to invalidate, then tables and frames to free.

use core::fmt;
use core::sync::atomic::Ordering::AcqRel;

use crate::format::{Entry, link};
use crate::frames::{Frames, NoFrames};
use crate::reclaim::{Decode, Freeing, Released};
use crate::{FlushReceipt, Level, PhysAddr, Stamp, TableMemory};

/// Translations to invalidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushRange {
    /// First input address.
    pub start: u64,
    /// Length in bytes, a multiple of the level's size.
    pub len: u64,
    /// Level of the leaves; of the smallest possible leaves if `tables` is set.
    pub level: Level,
    /// Whether entries that pointed to tables were removed as well. Walk caches must then be
    /// invalidated with the leaves, so neither a leaf-only hint nor a level hint is right.
    pub tables: bool,
}

/// The invalidation that must be done before the [`Gather`] can be released.
///
/// Exhaustive: a caller that overlooks one invalidates too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidation<'a> {
    /// Nothing changed that a processor can hold.
    Nothing,
    /// These ranges.
    Ranges(&'a [FlushRange]),
    /// The whole address space: there were more ranges than fit.
    Everything,
}

/// The most ranges that a gather distinguishes. They are moved along with it, which delays the user
/// that waits for a flush; and with more ranges it is better to invalidate everything.
pub const GATHER_RANGES_MAX: usize = 8;

/// The result of a change: the translations to invalidate, and the tables that were cut off and the
/// frames that were unmapped, held back until a receipt shows that no processor uses them.
/// Of a tree that was cut off, the topmost table is linked, and with it the first table of each
/// level below; the others are found when it is [reclaimed](Freeing). The links are in the tables'
/// first entries, so holding any number of tables takes no memory. Dropping a gather leaks the
/// tables and frames it holds, which is safe.
#[must_use = "translations stay in use, and tables leak, until the gather is flushed and released"]
pub struct Gather<M: TableMemory, R: Frames = NoFrames> {
    memory: M,
    /// How the tables' format decodes an entry.
    decode: Decode,
    stamp: Stamp,
    ranges: [FlushRange; GATHER_RANGES_MAX],
    range_count: usize,
    overflowed: bool,
    /// The table that was linked last, and the level of its entries.
    held: Option<(PhysAddr, Level)>,
    table_count: usize,
    detached_count: usize,
    frames: R,
    visited_count: u64,
    unsplit_count: u64,
}

impl<M: TableMemory, R: Frames> Gather<M, R> {
    pub(crate) fn new(memory: M, decode: Decode, stamp: Stamp) -> Self {
        const NONE: FlushRange = FlushRange { start: 0, len: 0, level: Level::Page4K, tables: false };
        Self {
            memory,
            decode,
            stamp,
            ranges: [NONE; GATHER_RANGES_MAX],
            range_count: 0,
            overflowed: false,
            held: None,
            table_count: 0,
            detached_count: 0,
            frames: R::NONE,
            visited_count: 0,
            unsplit_count: 0,
        }
    }

    /// The translations to invalidate.
    pub fn invalidation(&self) -> Invalidation<'_> {
        if self.overflowed || (self.range_count == 0 && self.table_count != 0) {
            Invalidation::Everything
        } else if self.range_count == 0 {
            Invalidation::Nothing
        } else {
            Invalidation::Ranges(&self.ranges[..self.range_count])
        }
    }

    /// Number of known tables held back. Below those of a [detached](Self::detached_count) tree
    /// there may be more, which are [counted](Released::table_count) when they are freed.
    pub fn table_count(&self) -> usize {
        self.table_count
    }

    /// Number of trees that were cut off as a whole.
    pub fn detached_count(&self) -> usize {
        self.detached_count
    }

    /// Number of entries that the change looked at: its cost.
    pub fn visited_count(&self) -> u64 {
        self.visited_count
    }

    /// Number of leaves that a split has left too large for lack of tables.
    pub fn unsplit_count(&self) -> u64 {
        self.unsplit_count
    }

    /// The change that produced this gather.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Frees the tables and frames held, given a receipt.
    ///
    /// # Errors
    ///
    /// Returns the gather, with everything it holds, if the receipt is not for a flush after its
    /// change.
    #[expect(clippy::result_large_err, reason = "there is no heap to put it on")]
    pub fn release(self, receipt: &(impl FlushReceipt + ?Sized)) -> Result<Released<R>, Self> {
        self.release_in_steps(receipt).map(Freeing::finish)
    }

    /// The same in steps, for users that must not be blocked for long: trees that were cut off are
    /// walked, and each of their tables is cleared.
    ///
    /// # Errors
    ///
    /// As for [`release`](Self::release).
    #[expect(clippy::result_large_err, reason = "there is no heap to put it on")]
    pub fn release_in_steps(self, receipt: &(impl FlushReceipt + ?Sized)) -> Result<Freeing<M, R>, Self> {
        let is_covered = receipt.covers(self.stamp);
        if self.invalidation() != Invalidation::Nothing && !is_covered {
            return Err(self);
        }
        let Self { memory, decode, stamp, held, frames, .. } = self;
        Ok(Freeing::new(memory, decode, held, is_covered.then_some(stamp), frames))
    }

    /// The same, but frames zapped from now on are recorded.
    pub(crate) fn framed<T: Frames>(self) -> Gather<M, T> {
        Gather {
            memory: self.memory,
            decode: self.decode,
            stamp: self.stamp,
            ranges: self.ranges,
            range_count: self.range_count,
            overflowed: self.overflowed,
            held: self.held,
            table_count: self.table_count,
            detached_count: self.detached_count,
            frames: T::NONE,
            visited_count: self.visited_count,
            unsplit_count: self.unsplit_count,
        }
    }

    pub(crate) fn set_stamp(&mut self, stamp: Stamp) {
        self.stamp = stamp;
    }

    pub(crate) fn visited(&mut self, count: u64) {
        self.visited_count = self.visited_count.saturating_add(count);
    }

    pub(crate) fn unsplit(&mut self) {
        self.unsplit_count += 1;
    }

    pub(crate) fn frames(&mut self) -> &mut R {
        &mut self.frames
    }

    /// Records that the leaves of `level` in `len` bytes from `start` were removed or changed.
    pub(crate) fn leaves(&mut self, start: u64, len: u64, level: Level) {
        self.push(FlushRange { start, len, level, tables: false });
    }

    /// Records that the table whose entries span `entry`s bytes each, `len` in all, was cut off.
    pub(crate) fn cut(&mut self, start: u64, len: u64, entry: Level) {
        self.push(FlushRange { start, len, level: entry, tables: true });
    }

    /// Records that the last table that was cut off has tables below, with entries of `level`.
    pub(crate) fn deepen(&mut self, level: Level) {
        if let Some(last) = self.ranges[..self.range_count].last_mut() {
            last.level = last.level.min(level);
        }
    }

    fn push(&mut self, range: FlushRange) {
        if let Some(last) = self.ranges[..self.range_count].last_mut()
            && last.tables == range.tables
            && (last.tables || last.level == range.level)
            && last.start.wrapping_add(last.len) == range.start
        {
            last.len += range.len;
            last.level = last.level.min(range.level);
        } else if let Some(free) = self.ranges.get_mut(self.range_count) {
            *free = range;
            self.range_count += 1;
        } else {
            self.overflowed = true;
        }
    }

    /// Holds back a table that was cut off and emptied, and that no fault fills any more.
    pub(crate) fn hold(&mut self, table: PhysAddr) {
        self.link(table, Level::Page4K);
    }

    /// Holds back a table that was cut off, with entries of `level`, and everything below it,
    /// including entries that faults still in it add until the receipt.
    pub(crate) fn detach(&mut self, table: PhysAddr, level: Level) {
        self.detached_count += 1;
        let (mut table, mut level) = (table, level);
        loop {
            let first = self.link(table, level);
            match ((self.decode)(first, level), level.below()) {
                (Entry::Table(next), Some(below)) => (table, level) = (next, below),
                _ => return,
            }
        }
    }

    /// Links a table, and returns its former first entry. Walks that are still in the table find
    /// that entry frozen.
    ///
    /// By exchange: a fault may be adding a table there. A later fault finds the entry frozen.
    fn link(&mut self, table: PhysAddr, level: Level) -> u64 {
        // SAFETY: the walker found the table in the tree, so it came from this memory and is not
        // freed; it was cut off by its only parent, so no other gather holds it.
        let first = unsafe { &self.memory.entries(table)[0] };
        // Pairs with a fault's exchange of the entry (`descend`), which comes before, its table
        // zeroed, or fails.
        let former = first.swap(link(self.held), AcqRel);
        self.held = Some((table, level));
        self.table_count += 1;
        former
    }
}

impl<M: TableMemory, R: Frames> fmt::Debug for Gather<M, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather")
            .field("stamp", &self.stamp)
            .field("invalidation", &self.invalidation())
            .field("table_count", &self.table_count)
            .field("detached_count", &self.detached_count)
            .field("frames", &self.frames)
            .finish_non_exhaustive()
    }
}
