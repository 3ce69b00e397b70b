//! Reclaiming: the tables of a gather are returned to their memory after its flush.

use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use crate::format::{Entry, link, linked};
use crate::frames::{FrameRun, FrameRuns, Frames, NoFrames};
use crate::{ENTRY_COUNT, Level, PhysAddr, Stamp, TableMemory};

/// The memory that a gather held back, now free.
#[derive(Clone, Copy, Debug)]
pub struct Released<R: Frames = NoFrames> {
    /// Number of tables that were returned to their memory.
    pub table_count: usize,
    frames: R,
}

impl Released<FrameRuns> {
    /// Memory that was unmapped by a change that [recorded](crate::Change::with_frames) it. No
    /// processor can reach it any more.
    pub fn frames(&self) -> &[FrameRun] {
        self.frames.as_slice()
    }
}

/// Shows that all changes up to some change of a page table have been flushed.
#[derive(Clone, Copy, Debug)]
pub struct Flushed(pub(crate) Stamp);

/// Decodes an entry of a table of a level.
pub(crate) type Decode = fn(u64, Level) -> Entry;

/// Tables of a gather whose flush is over, being returned to their memory. Dropping it leaks the
/// rest.
///
/// Nothing else reaches these tables: they were cut off before the flush, processors have held
/// nothing of them since, and earlier walks by software have ended. So the entries of a table that
/// points to others are read once, with plain loads, and those of the last level not at all.
#[must_use = "tables leak until they are freed"]
pub struct Freeing<M: TableMemory, R: Frames = NoFrames> {
    memory: M,
    decode: Decode,
    /// Head of the list of tables still to be examined, and the level of its entries.
    held: Option<(PhysAddr, Level)>,
    /// A table that was taken from the list, and its next entry to examine.
    scanned: Option<(PhysAddr, Level, usize)>,
    flushed: Option<Stamp>,
    table_count: usize,
    visited_count: u64,
    frames: R,
}

impl<M: TableMemory, R: Frames> Freeing<M, R> {
    /// From the list that starts at `held`. `flushed` is what the receipt covers, if there was a
    /// flush.
    pub(crate) fn new(
        memory: M,
        decode: Decode,
        held: Option<(PhysAddr, Level)>,
        flushed: Option<Stamp>,
        frames: R,
    ) -> Self {
        Self { memory, decode, held, scanned: None, flushed, table_count: 0, visited_count: 0, frames }
    }

    /// Examines or clears at most `entries_max` entries, or one table if that is fewer; returns
    /// whether there is more to do.
    pub fn step(&mut self, entries_max: u32) -> bool {
        let mut left = (entries_max as usize).max(ENTRY_COUNT);
        loop {
            if let Some((table, level, next)) = self.scanned {
                let end = ENTRY_COUNT.min(next.saturating_add(left));
                self.scan(table, level, next..end);
                left -= end - next;
                self.scanned = Some((table, level, end));
                if end < ENTRY_COUNT || left < ENTRY_COUNT {
                    return true;
                }
                self.scanned = None;
                left -= ENTRY_COUNT;
                self.free(table);
            } else {
                let Some((table, level)) = self.held else { return false };
                if left < ENTRY_COUNT {
                    return true;
                }
                // SAFETY: a held table came from this memory and is not freed yet.
                let first = unsafe { &self.memory.entries(table)[0] };
                self.held = linked(first.load(Relaxed));
                if level == Level::Page4K {
                    left -= ENTRY_COUNT;
                    self.free(table);
                } else {
                    // The first entry was the link; its target is in the list.
                    self.scanned = Some((table, level, 1));
                }
            }
        }
    }

    /// Adds the tables that these entries point to to the list.
    fn scan(&mut self, table: PhysAddr, level: Level, entries: core::ops::Range<usize>) {
        let Some(below) = level.below() else { return };
        self.visited_count += entries.len() as u64;
        // Only this object uses the list, so it can be changed while the entries are read.
        let memory = self.memory.clone();
        // SAFETY: as in `step`.
        for entry in unsafe { &memory.entries(table)[entries] } {
            if let Entry::Table(next) = (self.decode)(entry.load(Relaxed), level) {
                self.link(next, below);
            }
        }
    }

    /// Adds a table to the list, and with it those named only by its first entry.
    fn link(&mut self, table: PhysAddr, level: Level) {
        let (mut table, mut level) = (table, level);
        loop {
            // SAFETY: an entry of a table that was cut off named the table, so it came from this
            // memory and is not freed; and each table has one parent.
            let first = unsafe { &self.memory.entries(table)[0] };
            let former = first.load(Relaxed);
            first.store(link(self.held), Relaxed);
            self.held = Some((table, level));
            match ((self.decode)(former, level), level.below()) {
                (Entry::Table(next), Some(below)) => (table, level) = (next, below),
                _ => return,
            }
        }
    }

    fn free(&mut self, table: PhysAddr) {
        self.table_count += 1;
        // SAFETY: no entry has pointed to the table since the change of the gather's stamp, except
        // in tables that were cut off as well; the receipt shows that neither a processor nor
        // software walks it; and the list does not name it twice. The entries are zero when it is
        // freed.
        unsafe {
            self.memory.clear(table);
            self.memory.free(table);
        }
    }

    /// Frees the rest.
    pub fn finish(mut self) -> Released<R> {
        while self.step(u32::MAX) {}
        Released { table_count: self.table_count, frames: self.frames }
    }

    /// Number of tables freed so far.
    pub fn table_count(&self) -> usize {
        self.table_count
    }

    /// Number of entries examined so far.
    pub fn visited_count(&self) -> u64 {
        self.visited_count
    }

    /// The change that the receipt covers, to [thaw](crate::Editor::thaw) entries that were cut
    /// off; `None` if no receipt was needed.
    pub fn flushed(&self) -> Option<Flushed> {
        self.flushed.map(Flushed)
    }
}

impl<M: TableMemory, R: Frames> fmt::Debug for Freeing<M, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Freeing")
            .field("held", &self.held)
            .field("table_count", &self.table_count)
            .finish_non_exhaustive()
    }
}
