//! What a change leaves to do: translations to invalidate, then tables and frames to free.

use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use crate::format::{ABSENT, FROZEN};
use crate::frames::{FrameRun, FrameRuns};
use crate::{FlushReceipt, Level, PhysAddr, Stamp, TableMemory};

/// Translations to invalidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushRange {
    /// First input address.
    pub start: u64,
    /// Length in bytes, a multiple of the level's size.
    pub len: u64,
    /// Level of the leaves; of the smallest that there may be, if `tables` is set.
    pub level: Level,
    /// Whether entries that pointed to tables are gone as well: then walk caches must be invalidated
    /// with the leaves, so no hint that only leaves changed, nor at which level, is right.
    pub tables: bool,
}

/// What must be invalidated before the [`Gather`] can be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidation<'a> {
    /// Nothing changed that a processor can hold.
    Nothing,
    /// These ranges.
    Ranges(&'a [FlushRange]),
    /// The whole address space: there were more ranges than fit.
    Everything,
}

/// Most ranges that a gather tells apart.
pub const GATHER_RANGES_MAX: usize = 16;

/// What a gather held back, now free.
#[derive(Clone, Copy, Debug)]
pub struct Released {
    /// Number of tables that went back to their memory.
    pub table_count: usize,
    frames: FrameRuns,
}

impl Released {
    /// Memory that was unmapped, if the change was asked to [keep account](crate::Change::with_frames)
    /// of it. No processor reaches it any more.
    pub fn frames(&self) -> &[FrameRun] {
        self.frames.as_slice()
    }
}

/// The result of a change: what to invalidate, and the tables that were cut off and the frames that
/// were unmapped, held back until a receipt shows that no processor uses them.
///
/// Tables are linked through their first entries, so holding any number takes no memory. Dropping a
/// gather leaks what it holds, which is safe.
#[must_use = "translations stay in use, and tables leak, until the gather is flushed and released"]
pub struct Gather<M: TableMemory> {
    memory: M,
    stamp: Stamp,
    ranges: [FlushRange; GATHER_RANGES_MAX],
    range_count: usize,
    overflowed: bool,
    held: Option<PhysAddr>,
    table_count: usize,
    frames: FrameRuns,
    visited_count: u64,
    unsplit_count: u64,
}

impl<M: TableMemory> Gather<M> {
    pub(crate) fn new(memory: M, stamp: Stamp) -> Self {
        const NONE: FlushRange = FlushRange { start: 0, len: 0, level: Level::Page4K, tables: false };
        Self {
            memory,
            stamp,
            ranges: [NONE; GATHER_RANGES_MAX],
            range_count: 0,
            overflowed: false,
            held: None,
            table_count: 0,
            frames: FrameRuns::EMPTY,
            visited_count: 0,
            unsplit_count: 0,
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

    /// Number of tables held back.
    pub fn table_count(&self) -> usize {
        self.table_count
    }

    /// Number of entries that the change looked at: its cost.
    pub fn visited_count(&self) -> u64 {
        self.visited_count
    }

    /// Number of leaves that a split has left larger than it should, for want of tables.
    pub fn unsplit_count(&self) -> u64 {
        self.unsplit_count
    }

    /// The change that this gather results from.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Frees what is held in exchange for a receipt.
    ///
    /// # Errors
    ///
    /// Gives the gather back, with all it holds, if the receipt is not for a flush after its change.
    #[expect(clippy::result_large_err, reason = "there is no heap to put it on")]
    pub fn release(self, receipt: &impl FlushReceipt) -> Result<Released, Self> {
        self.release_in_steps(receipt).map(Freeing::finish)
    }

    /// The same for users who must not be away for long: freeing a table takes as long as visiting its entries.
    ///
    /// # Errors
    ///
    /// As for [`release`](Self::release).
    #[expect(clippy::result_large_err, reason = "there is no heap to put it on")]
    pub fn release_in_steps(self, receipt: &impl FlushReceipt) -> Result<Freeing<M>, Self> {
        if self.invalidation() != Invalidation::Nothing && !receipt.covers(self.stamp) {
            return Err(self);
        }
        let Self { memory, held, table_count, frames, .. } = self;
        Ok(Freeing { memory, held, left: table_count, table_count, frames })
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

    pub(crate) fn frames(&mut self) -> &mut FrameRuns {
        &mut self.frames
    }

    /// Records that the leaves of `level` in `len` bytes from `start` are gone or changed.
    pub(crate) fn leaves(&mut self, start: u64, len: u64, level: Level) {
        self.push(FlushRange { start, len, level, tables: false });
    }

    /// Records that the table was cut off whose entries span `entry`s bytes each, `len` in all.
    pub(crate) fn cut(&mut self, start: u64, len: u64, entry: Level) {
        self.push(FlushRange { start, len, level: entry, tables: true });
    }

    /// Records that the table which was cut off last has tables below, with entries of `level`.
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

    /// Holds back a table that was cut off and that nobody fills any more.
    pub(crate) fn hold(&mut self, table: PhysAddr) {
        // SAFETY: the walker found the table in the tree, so it came from this memory and is not freed;
        // it was cut off by its only parent, so no other gather holds it.
        let link = unsafe { &self.memory.entries(table)[0] };
        // Who still walks the table takes the link for what it was: frozen.
        link.store(self.held.map_or(0, PhysAddr::as_u64) | FROZEN, Relaxed);
        self.held = Some(table);
        self.table_count += 1;
    }
}

/// Tables of a gather whose flush is over, on their way back to their memory. Dropping it leaks the rest.
#[must_use = "tables leak until they are freed"]
pub struct Freeing<M: TableMemory> {
    memory: M,
    held: Option<PhysAddr>,
    /// Tables in the list.
    left: usize,
    table_count: usize,
    frames: FrameRuns,
}

impl<M: TableMemory> Freeing<M> {
    /// Frees at most so many tables; whether there are more.
    pub fn step(&mut self, tables_max: usize) -> bool {
        for _ in 0..tables_max {
            let Some(table) = self.held.filter(|_| self.left != 0) else { return false };
            self.left -= 1;
            // SAFETY: a held table came from this memory and is not freed yet.
            let entries = unsafe { self.memory.entries(table) };
            self.held = match entries[0].load(Relaxed) & !FROZEN {
                0 => None,
                next => Some(PhysAddr(next)),
            };
            for entry in entries {
                entry.store(ABSENT, Relaxed);
            }
            // SAFETY: no entry points to the table since the change of the gather's stamp; the receipt shows that
            // neither a processor nor software walks it; and the list does not name it twice. The
            // entries are zero since the loop above.
            unsafe { self.memory.free(table) };
        }
        self.held.is_some() && self.left != 0
    }

    /// Frees the rest.
    pub fn finish(mut self) -> Released {
        while self.step(usize::MAX) {}
        Released { table_count: self.table_count, frames: self.frames }
    }

    /// Number of tables in all.
    pub fn table_count(&self) -> usize {
        self.table_count
    }
}

impl<M: TableMemory> fmt::Debug for Freeing<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Freeing").field("left", &self.left).finish_non_exhaustive()
    }
}

impl<M: TableMemory> fmt::Debug for Gather<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather")
            .field("stamp", &self.stamp)
            .field("invalidation", &self.invalidation())
            .field("table_count", &self.table_count)
            .field("frames", &self.frames.as_slice())
            .finish_non_exhaustive()
    }
}
