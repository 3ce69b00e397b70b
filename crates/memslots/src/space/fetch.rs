//! Fetching a dirty log, in steps.

use core::fmt;

use paging::{FlushReceipt, Format, Invalidation, Progress, TableMemory};

use super::job::{Report, Steps};
use super::owed::Owed;
use super::task::Task;
use super::walk::Walk;
use super::{GuestSpace, Turn};
use crate::{DirtyFetch, Retired, Slot, SlotError, SlotId};

/// The stage of a fetch. `dirty.rs` explains this order.
enum Stage<'a, 'w> {
    /// Dirty bits that the processors set in leaves are transferred to marks in the log.
    Transferring(&'w mut [u64]),
    /// The marks are taken, and pages are write-protected again, or their dirty bits cleared.
    Taken(DirtyFetch<'a, 'w>),
    /// The fetch is done; this many pages are dirty.
    Over(u64),
    /// Between two of the other stages.
    Moving,
}

/// A fetch of a slot's dirty log that has begun.
///
/// The result contains a page if there was a store to it since the last fetch that was visible when
/// this one began. Read the page's contents after the fetch is done: stores until then may be in
/// this result only. If dropped before it is done, it leaves its findings to the next fetch.
#[must_use = "a fetch does nothing until it is stepped"]
pub struct FetchJob<'a, 'w, F: Format, M: TableMemory> {
    space: &'a GuestSpace<F, M>,
    slot: Slot,
    stage: Stage<'a, 'w>,
    walk: Option<Walk<'a, F, M>>,
    owed: Owed<M>,
    _turn: Turn<'a>,
}

impl<'a, 'w, F: Format, M: TableMemory> FetchJob<'a, 'w, F, M> {
    pub(super) fn new(
        space: &'a GuestSpace<F, M>,
        turn: Turn<'a>,
        id: SlotId,
        words: &'w mut [u64],
    ) -> Result<Self, SlotError> {
        let slot = space.slot(id)?;
        let (stage, task) = if !slot.is_logged() {
            return Err(SlotError::NoLog);
        } else if slot.is_logged_by_marks() {
            let fetch = space.slots.memory().fetch_dirty(id, 0, words)?;
            // From the first to the last marked page. A page in between that a fault has just made
            // writable and marked keeps its mark; so does one that a processor has listed.
            let task = if slot.is_logged_by_faults() { Task::Protect } else { Task::Clean };
            let task = fetch.hull().map(task);
            (Stage::Taken(fetch), task)
        } else {
            (Stage::Transferring(words), Some(Task::Transfer(slot.range(), 0)))
        };
        let mut job = Self { space, slot, stage, walk: None, owed: Owed::new(space.stamp()), _turn: turn };
        if let Some(task) = task {
            let editor = space.tables.edit().ok_or(SlotError::Busy)?;
            job.walk = Walk::begin(editor, &space.slots, task, paging::Permissions::R, &mut job.owed);
        }
        Ok(job)
    }

    /// Number of dirty pages, once the fetch is done.
    pub fn page_count(&self) -> Option<u64> {
        match self.stage {
            Stage::Over(count) => Some(count),
            _ => None,
        }
    }

    /// The work done so far.
    pub fn report(&self) -> Report {
        self.owed.report
    }
}

impl<F: Format, M: TableMemory> Steps for FetchJob<'_, '_, F, M> {
    fn step(&mut self, entries_max: u32, _: impl FnMut(Retired)) -> Progress {
        if self.owed.awaits_flush() {
            return Progress::Flush;
        }
        if let Some(walk) = &mut self.walk
            && walk.step(entries_max) == Progress::More
        {
            return Progress::More;
        }
        if let Some(walk) = self.walk.take() {
            self.owed.put(walk.into_gather());
            // What follows looks at each word of the log: that is enough for a step.
            return Progress::More;
        }
        match core::mem::replace(&mut self.stage, Stage::Moving) {
            Stage::Transferring(words) => {
                match self.space.slots.memory().fetch_dirty(self.slot.id, 0, words) {
                    Ok(fetch) => {
                        self.stage = Stage::Taken(fetch);
                        self.owed.await_flush()
                    }
                    // Its slot cannot be removed while this is the job.
                    Err(_) => Progress::Waiting,
                }
            }
            // A flush even if nothing was changed: it waits for faults that are being handled.
            Stage::Taken(fetch) => {
                self.stage = Stage::Taken(fetch);
                self.owed.await_flush()
            }
            Stage::Over(count) => {
                self.stage = Stage::Over(count);
                Progress::Done
            }
            Stage::Moving => Progress::Waiting,
        }
    }

    fn invalidation(&self) -> Invalidation<'_> {
        self.owed.invalidation()
    }

    fn flushed(&mut self, receipt: &(impl FlushReceipt + ?Sized)) -> bool {
        if self.owed.release(receipt).is_none() {
            return false;
        }
        if let Stage::Taken(fetch) = core::mem::replace(&mut self.stage, Stage::Moving) {
            self.stage = match fetch.finish(receipt, self.owed.last()) {
                Ok(count) => Stage::Over(count),
                Err(fetch) => Stage::Taken(fetch),
            };
        }
        matches!(self.stage, Stage::Over(_))
    }
}

impl<F: Format, M: TableMemory> fmt::Debug for FetchJob<'_, '_, F, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchJob")
            .field("slot", &self.slot)
            .field("report", &self.report())
            .finish_non_exhaustive()
    }
}
