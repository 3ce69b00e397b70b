//! Tables and translations that a job has removed.

use core::ops::Range;

use paging::{FlushReceipt, Flushed, Freeing, Gather, Invalidation, Progress, Stamp, TableMemory};

use super::job::Report;

/// Tables and translations that were removed and wait for a flush, or that were flushed and are
/// being freed.
pub(super) struct Owed<M: TableMemory> {
    gather: Option<Gather<M>>,
    freeing: Option<Freeing<M>>,
    /// Entries that `gather`'s changes visited, and trees that they detached, as far as they have
    /// been counted.
    counted: (u64, usize),
    /// From the first to the last address that `gather`'s changes have zapped.
    zapped: Range<u64>,
    /// The latest change of the tables: a flush has to be later.
    last: Stamp,
    /// A flush must be next.
    awaits_flush: bool,
    pub(super) report: Report,
}

impl<M: TableMemory> Owed<M> {
    /// Empty, with the stamp `now`.
    pub(super) fn new(now: Stamp) -> Self {
        Self {
            gather: None,
            freeing: None,
            counted: (0, 0),
            zapped: 0..0,
            last: now,
            awaits_flush: false,
            report: Report::default(),
        }
    }

    /// The latest change of the tables.
    pub(super) const fn last(&self) -> Stamp {
        self.last
    }

    /// Whether nothing can be done before a flush.
    pub(super) const fn awaits_flush(&self) -> bool {
        self.awaits_flush
    }

    /// Requires a flush before anything else.
    pub(super) fn await_flush(&mut self) -> Progress {
        self.awaits_flush = true;
        Progress::Flush
    }

    /// Takes the gather that the next pass adds to.
    pub(super) fn take_gather(&mut self) -> Option<Gather<M>> {
        self.gather.take()
    }

    /// Whether no pass has left a gather.
    pub(super) const fn is_nothing(&self) -> bool {
        self.gather.is_none()
    }

    pub(super) fn put(&mut self, gather: Gather<M>) {
        let (visited, detached) = self.counted;
        self.counted = (gather.visited_count(), gather.detached_count());
        self.report.visited += self.counted.0.saturating_sub(visited);
        self.report.detached += self.counted.1.saturating_sub(detached) as u64;
        self.last = gather.stamp();
        self.gather = Some(gather);
    }

    /// Records that a pass begins that zaps these addresses.
    pub(super) fn zaps(&mut self, range: &Range<u64>) {
        self.zapped = match self.zapped.is_empty() {
            true => range.clone(),
            false => self.zapped.start.min(range.start)..self.zapped.end.max(range.end),
        };
    }

    pub(super) fn invalidation(&self) -> Invalidation<'_> {
        self.gather.as_ref().map_or(Invalidation::Nothing, Gather::invalidation)
    }

    pub(super) fn needs_flush(&self) -> bool {
        self.invalidation() != Invalidation::Nothing
    }

    /// Records that the gather has been flushed: tables that the receipt covers are freed from now
    /// on. `None` if the receipt is for an earlier flush; otherwise the range to thaw, if any.
    pub(super) fn release(
        &mut self,
        receipt: &(impl FlushReceipt + ?Sized),
    ) -> Option<Option<(Range<u64>, Flushed)>> {
        if !receipt.covers(self.last) {
            return None;
        }
        let mut thaw = None;
        if let Some(gather) = self.gather.take() {
            let (has_tables, has_cuts) = (gather.table_count() != 0, gather.detached_count() != 0);
            match gather.release_in_steps(receipt) {
                Ok(freeing) => {
                    self.counted = (0, 0);
                    let zapped = core::mem::replace(&mut self.zapped, 0..0);
                    thaw = freeing.flushed().filter(|_| has_cuts).map(|flushed| (zapped, flushed));
                    if has_tables {
                        // None is in progress: nothing is gathered until earlier tables are freed.
                        self.freeing = Some(freeing);
                    }
                }
                Err(gather) => {
                    self.gather = Some(gather);
                    return None;
                }
            }
        }
        self.report.flushes += 1;
        self.awaits_flush = false;
        Some(thaw)
    }

    /// Whether there are tables to free.
    pub(super) const fn has_tables(&self) -> bool {
        self.freeing.is_some()
    }

    /// Frees tables, for about as long as visiting `entries_max` entries takes; false if there are
    /// none.
    pub(super) fn free(&mut self, entries_max: u32) -> bool {
        let Some(freeing) = &mut self.freeing else { return false };
        let (tables, visited) = (freeing.table_count(), freeing.visited_count());
        let has_more = freeing.step(entries_max);
        self.report.tables += (freeing.table_count() - tables) as u64;
        self.report.visited += freeing.visited_count() - visited;
        if !has_more {
            self.freeing = None;
        }
        has_more
    }
}
