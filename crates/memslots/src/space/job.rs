//! A change of the slots, in steps.

use core::fmt;

use arrayvec::ArrayVec;
use paging::{
    ENTRY_COUNT, FlushReceipt, Format, Freeing, Gather, Invalidation, Permissions, Stamp, TableMemory,
};

use super::task::{self, Task};
use super::walk::{Walk, Walked};
use super::{GuestSpace, Turn};
use crate::{Generation, Published, Quiesced, Retired, SlotChange, SpaceId};

/// How far a step has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Somebody still uses the former slots: step again, and let others run meanwhile.
    Waiting,
    /// There is more to do: step again.
    More,
    /// Flush everything that was translated by this guest's nested table, on all vCPUs, and pass the receipt on. A step
    /// does nothing until then.
    Flush,
    /// The job is over.
    Done,
}

/// What a job has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Entries of the nested page table that were looked at.
    pub visited: u64,
    /// Tables that were freed.
    pub tables: u64,
    /// Flushes that it took.
    pub flushes: u64,
}

/// What was taken out of use and waits for a flush, or has had it and goes back.
pub(super) struct Owed<M: TableMemory> {
    gather: Option<Gather<M>>,
    freeing: Option<Freeing<M>>,
    /// Entries that `gather`'s changes visited, as far as they are counted.
    counted: u64,
    /// When tables were last changed: a flush has to be later.
    last: Stamp,
    /// A flush has to come now.
    awaits_flush: bool,
    pub(super) report: Report,
}

impl<M: TableMemory> Owed<M> {
    /// Nothing, when it is `now`.
    pub(super) fn new(now: Stamp) -> Self {
        let report = Report::default();
        Self { gather: None, freeing: None, counted: 0, last: now, awaits_flush: false, report }
    }

    /// When tables were last changed.
    pub(super) const fn last(&self) -> Stamp {
        self.last
    }

    /// What has to be done before anything else: a flush by others, or freeing, which this goes on with for about as long
    /// as it takes to visit so many entries.
    pub(super) fn step(&mut self, entries_max: u32) -> Option<Progress> {
        if self.awaits_flush {
            return Some(Progress::Flush);
        }
        self.free(entries_max).then_some(Progress::More)
    }

    /// Nothing more is done before a flush.
    pub(super) fn await_flush(&mut self) -> Progress {
        self.awaits_flush = true;
        Progress::Flush
    }

    /// What the next pass is to add to.
    pub(super) const fn gather(&mut self) -> &mut Option<Gather<M>> {
        &mut self.gather
    }

    pub(super) fn put(&mut self, gather: Gather<M>) {
        self.report.visited += gather.visited_count() - self.counted;
        self.counted = gather.visited_count();
        self.last = gather.stamp();
        self.gather = Some(gather);
    }

    pub(super) fn needs_flush(&self) -> bool {
        self.gather.as_ref().is_some_and(|gather| gather.invalidation() != Invalidation::Nothing)
    }

    /// Everything was flushed: what the receipt is for is freed from now on. False if it is for an earlier flush.
    pub(super) fn release(&mut self, receipt: &impl FlushReceipt) -> bool {
        if !receipt.covers(self.last) {
            return false;
        }
        if let Some(gather) = self.gather.take() {
            match gather.release_in_steps(receipt) {
                Ok(freeing) => {
                    self.report.tables += freeing.table_count() as u64;
                    self.counted = 0;
                    // What was freed before is free: nothing is gathered until it is.
                    self.freeing = Some(freeing);
                }
                Err(gather) => {
                    self.gather = Some(gather);
                    return false;
                }
            }
        }
        self.report.flushes += 1;
        self.awaits_flush = false;
        true
    }

    /// Frees tables; false if there are none.
    fn free(&mut self, entries_max: u32) -> bool {
        let Some(freeing) = &mut self.freeing else { return false };
        let tables_max = (entries_max as usize / ENTRY_COUNT).max(1);
        if !freeing.step(tables_max) {
            self.freeing = None;
        }
        true
    }
}

enum Stage<'a> {
    /// The new slots are visible; the former ones may still be in use.
    Draining(Published<'a>),
    /// Translations are dealt with, one change after the other.
    Treating {
        update: Quiesced<'a>,
        /// The change that comes next.
        next: usize,
    },
    /// Nothing is left.
    Over(Generation),
    /// In between two of the others, and for good if the update could not be finished.
    Stuck,
}

/// A change of a guest's slots that has begun.
///
/// From its beginning readers see the new slots. It must be stepped until it is done; dropped before, it leaves the slots'
/// generation in progress for good, and translations of former slots in place: safe only for who takes the guest down.
#[must_use = "a job does nothing until it is stepped"]
pub struct Job<'a, F: Format, M: TableMemory> {
    space: &'a GuestSpace<F, M>,
    stage: Stage<'a>,
    /// What is left to do for the present change, the next one last.
    tasks: ArrayVec<Task, 4>,
    walk: Option<Walk<'a, F, M>>,
    owed: Owed<M>,
    _turn: Turn<'a>,
}

impl<'a, F: Format, M: TableMemory> Job<'a, F, M> {
    pub(super) fn new(space: &'a GuestSpace<F, M>, turn: Turn<'a>, published: Published<'a>) -> Self {
        Self {
            space,
            stage: Stage::Draining(published),
            tasks: ArrayVec::new(),
            walk: None,
            owed: Owed::new(space.stamp()),
            _turn: turn,
        }
    }

    /// Goes on, for at most `entries_max` entries. `retire` gets the memory and logs that are out of use in the end.
    pub fn step(&mut self, entries_max: u32, retire: impl FnMut(Retired)) -> Progress {
        if let Some(progress) = self.owed.step(entries_max) {
            return progress;
        }
        if let Some(walk) = &mut self.walk {
            let walked = walk.step(entries_max);
            return self.walked(walked);
        }
        match core::mem::replace(&mut self.stage, Stage::Stuck) {
            Stage::Draining(published) => match published.wait(|| false) {
                Ok(update) => {
                    self.stage = Stage::Treating { update, next: 0 };
                    self.next_task(retire)
                }
                Err(published) => {
                    self.stage = Stage::Draining(published);
                    Progress::Waiting
                }
            },
            stage @ Stage::Treating { .. } => {
                self.stage = stage;
                self.next_task(retire)
            }
            Stage::Over(generation) => {
                self.stage = Stage::Over(generation);
                Progress::Done
            }
            Stage::Stuck => Progress::Waiting,
        }
    }

    /// Takes note that everything was flushed after the last step. False if the receipt is of an earlier flush: then
    /// nothing has changed.
    #[must_use = "without a receipt the job does not go on"]
    pub fn flushed(&mut self, receipt: &impl FlushReceipt) -> bool {
        if !self.owed.release(receipt) {
            return false;
        }
        if let Stage::Treating { update, next } = &mut self.stage
            && self.tasks.is_empty()
            && update.change(*next).is_none()
        {
            return update.settle(SpaceId::FIRST, receipt, self.owed.last());
        }
        true
    }

    /// What was done so far.
    pub fn report(&self) -> Report {
        self.owed.report
    }

    /// The generation that the job has led to, when it is done.
    pub fn generation(&self) -> Option<Generation> {
        match self.stage {
            Stage::Over(generation) => Some(generation),
            _ => None,
        }
    }

    fn walked(&mut self, walked: Walked<M>) -> Progress {
        match walked {
            Walked::More => return Progress::More,
            Walked::Through(gather) => self.owed.put(gather),
            Walked::OutOfTables(gather) => {
                self.owed.put(gather);
                // What cannot be split goes: faults bring it back in small pages.
                if let Some(change) = self.present() {
                    self.tasks.clear();
                    self.tasks.push(Task::Zap(change.former.range()));
                }
            }
        }
        self.walk = None;
        Progress::More
    }

    /// The change that is being dealt with.
    fn present(&self) -> Option<SlotChange> {
        let Stage::Treating { update, next } = &self.stage else { return None };
        update.change(next.checked_sub(1)?)
    }

    fn next_task(&mut self, retire: impl FnMut(Retired)) -> Progress {
        let Stage::Treating { update, next } = &mut self.stage else { return Progress::Waiting };
        if self.tasks.is_empty() {
            match update.change(*next) {
                None => return self.conclude(retire),
                Some(change) => {
                    self.tasks = task::tasks(&change);
                    *next += 1;
                }
            }
        }
        match self.tasks.pop() {
            None => Progress::More,
            Some(Task::Flush) => self.owed.await_flush(),
            Some(task) => self.begin(task),
        }
    }

    fn begin(&mut self, task: Task) -> Progress {
        let task = match task {
            Task::Zap(_) if self.space.zaps_everything => Task::Zap(0..u64::MAX),
            Task::Collapse(_, _, level) if level > self.space.largest => return Progress::More,
            task => task,
        };
        let rights = self.rights();
        match self.space.tables.edit() {
            Some(editor) => {
                self.walk = Walk::begin(editor, &self.space.slots, task, rights, self.owed.gather());
                Progress::More
            }
            // Somebody who is no job.
            None => {
                self.tasks.push(task);
                Progress::Waiting
            }
        }
    }

    /// What leaves of the slot that is being dealt with allow.
    fn rights(&self) -> Permissions {
        match self.present().and_then(|change| change.current) {
            Some(slot) if !slot.is_read_only() => Permissions::RWX,
            _ => Permissions::RX,
        }
    }

    /// All changes are dealt with: flush if need be, and end the update.
    fn conclude(&mut self, retire: impl FnMut(Retired)) -> Progress {
        let Stage::Treating { update, .. } = &self.stage else { return Progress::Waiting };
        if self.owed.needs_flush() || update.needs_receipt(SpaceId::FIRST) {
            return self.owed.await_flush();
        }
        let Stage::Treating { update, .. } = core::mem::replace(&mut self.stage, Stage::Stuck) else {
            return Progress::Waiting;
        };
        match update.finish(retire) {
            Ok(generation) => {
                self.stage = Stage::Over(generation);
                Progress::Done
            }
            // Not after what was asked above; it would be left in progress, which is safe.
            Err(_) => Progress::Waiting,
        }
    }
}

impl<F: Format, M: TableMemory> fmt::Debug for Job<'_, F, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("tasks", &self.tasks)
            .field("report", &self.report())
            .finish_non_exhaustive()
    }
}
