//! A change of the slots, in steps.

use core::fmt;
use core::ops::Range;

use arrayvec::ArrayVec;
use paging::{Editor, FlushReceipt, Format, Invalidation, Permissions, Progress, TableMemory, Tables};

use super::owed::Owed;
use super::task::{self, TASKS_MAX, Task};
use super::walk::Walk;
use super::{GuestSpace, Turn, ZapWay};
use crate::{Generation, Published, Quiesced, Retired, Slot, SlotChange, SpaceId};

/// A change of a guest's memory, or a fetch of a dirty log: something that is done in steps, with
/// flushes between them.
///
/// A step never ends in [`Progress::OutOfTables`]. It [waits](Progress::Waiting) while somebody
/// still uses the former slots, or while somebody who is no job edits the page table.
pub trait Steps {
    /// Goes on, for at most `entries_max` entries. `retire` gets the memory and logs that are out
    /// of use in the end.
    ///
    /// At [`Progress::Flush`] flush what was translated by this guest's nested table, everything or
    /// what [`invalidation`](Self::invalidation) names, on all vCPUs, and pass the receipt
    /// [on](Self::flushed). A step does nothing until then.
    fn step(&mut self, entries_max: u32, retire: impl FnMut(Retired)) -> Progress;

    /// What has to be flushed at the least, at [`Progress::Flush`]. If that is nothing, translation
    /// sections that began before are waited for all the same.
    fn invalidation(&self) -> Invalidation<'_>;

    /// Takes note that what was asked for was flushed after the last step. False if the receipt is
    /// of an earlier flush: then nothing has changed.
    #[must_use = "without a receipt there is no next step"]
    fn flushed(&mut self, receipt: &(impl FlushReceipt + ?Sized)) -> bool;
}

/// What a job has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Entries of the nested page table that were looked at.
    pub visited: u64,
    /// Tables that were freed.
    pub tables: u64,
    /// Trees of tables that were cut off as a whole, without a look at what was in them.
    pub detached: u64,
    /// Flushes that it took.
    pub flushes: u64,
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
    /// The slots are as they were: translations of one are dealt with.
    Resizing,
    /// The slots are settled. Tables may be left to be freed.
    Over(Generation),
    /// In between two of the others, and for good if the update could not be finished.
    Stuck,
}

/// A change of a guest's slots that has begun.
///
/// From its beginning readers see the new slots. It must be stepped until it is done; dropped
/// before, it leaves the slots' generation in progress for good, and translations of former slots
/// in place: safe only for a caller that takes the guest down. Once there is a
/// [generation](Self::generation) only tables are left to be freed, and would leak.
#[must_use = "a job does nothing until it is stepped"]
pub struct Job<'a, F: Format, M: TableMemory> {
    space: &'a GuestSpace<F, M>,
    stage: Stage<'a>,
    /// The slot that is dealt with, as it is now, if it is.
    slot: Option<Slot>,
    /// What is left to do for it, the next one last.
    tasks: ArrayVec<Task, TASKS_MAX>,
    walk: Option<Walk<'a, F, M>>,
    owed: Owed<M>,
    _turn: Turn<'a>,
}

impl<'a, F: Format, M: TableMemory> Job<'a, F, M> {
    pub(super) fn new(space: &'a GuestSpace<F, M>, turn: Turn<'a>, published: Published<'a>) -> Self {
        let (stage, tasks, owed) = (Stage::Draining(published), ArrayVec::new(), Owed::new(space.stamp()));
        Self { space, stage, slot: None, tasks, walk: None, owed, _turn: turn }
    }

    /// One that makes the pages of a slot as large as they can be.
    pub(super) fn collapsing(space: &'a GuestSpace<F, M>, turn: Turn<'a>, slot: Slot) -> Self {
        let (tasks, owed) = (task::collapse(&slot), Owed::new(space.stamp()));
        Self { space, stage: Stage::Resizing, slot: Some(slot), tasks, walk: None, owed, _turn: turn }
    }

    /// Takes the next step that is no walk: a walk that begins, or `None` if there is more that can
    /// be done now. A walk may visit as many entries as `at_once` says already.
    fn advance(
        &mut self,
        entries_max: u32,
        at_once: Option<u32>,
        retire: &mut impl FnMut(Retired),
    ) -> Result<Option<Walk<'a, F, M>>, Progress> {
        if let Stage::Draining(_) = self.stage {
            self.drain()?;
        }
        if self.tasks.is_empty() {
            match &mut self.stage {
                Stage::Treating { update, next } => match update.change(*next) {
                    None => return self.conclude(retire).map(|()| None),
                    Some(change) => {
                        self.tasks = task::tasks(&change, self.space.zap);
                        self.slot = change.current;
                        *next += 1;
                    }
                },
                Stage::Resizing => return self.conclude(retire).map(|()| None),
                _ => return Err(Progress::Waiting),
            }
        }
        match self.tasks.pop() {
            None => Ok(None),
            Some(Task::Flush) => Err(self.owed.await_flush()),
            Some(task) => self.begin(task, entries_max, at_once),
        }
    }

    /// The former slots are drained, if nobody uses them any more.
    fn drain(&mut self) -> Result<(), Progress> {
        let Stage::Draining(published) = core::mem::replace(&mut self.stage, Stage::Stuck) else {
            return Err(Progress::Waiting);
        };
        match published.wait(|| false) {
            Ok(update) => {
                self.stage = Stage::Treating { update, next: 0 };
                Ok(())
            }
            Err(published) => {
                self.stage = Stage::Draining(published);
                Err(Progress::Waiting)
            }
        }
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

    /// Goes on with a pass over the tables. `None` if it is through.
    fn go_on(&mut self, mut walk: Walk<'a, F, M>, entries_max: u32) -> Option<Progress> {
        match walk.step(entries_max) {
            progress @ (Progress::More | Progress::Waiting) => {
                self.walk = Some(walk);
                return Some(progress);
            }
            Progress::Flush => {
                self.owed.put(walk.take_gather());
                self.walk = Some(walk);
                return Some(self.owed.await_flush());
            }
            Progress::Done => self.owed.put(walk.into_gather()),
            Progress::OutOfTables => {
                self.owed.put(walk.into_gather());
                // What cannot be split goes: faults bring it back in small pages.
                if let Some(change) = self.present() {
                    self.tasks.clear();
                    self.tasks.push(Task::Zap(change.former.range()));
                }
            }
        }
        None
    }

    /// The change that is being dealt with.
    fn present(&self) -> Option<SlotChange> {
        let Stage::Treating { update, next } = &self.stage else { return None };
        update.change(next.checked_sub(1)?)
    }

    fn begin(
        &mut self,
        task: Task,
        entries_max: u32,
        at_once: Option<u32>,
    ) -> Result<Option<Walk<'a, F, M>>, Progress> {
        let task = match task {
            Task::Zap(_) if self.space.zap == ZapWay::Everything => Task::Zap(0..u64::MAX),
            Task::Collapse(_, _, level) if level > self.space.largest => return Ok(None),
            // Faults wait for it, so it comes before anything is freed.
            task @ Task::Thaw(..) => task,
            // What was freed before is free: nothing is gathered until it is.
            task if self.owed.free(entries_max) => {
                self.tasks.push(task);
                return Err(Progress::More);
            }
            task => task,
        };
        let rights = self.rights();
        let zap = match &task {
            Task::Zap(range) if self.owed.is_nothing() => at_once.zip(Some(range.clone())),
            _ => None,
        };
        match (self.space.tables.edit(), zap) {
            (Some(editor), Some((entries_max, range))) => self.zap(editor, range, entries_max),
            (Some(editor), _) => Ok(Walk::begin(editor, &self.space.slots, task, rights, &mut self.owed)),
            // Somebody who is no job.
            (None, _) => {
                self.tasks.push(task);
                Err(Progress::Waiting)
            }
        }
    }

    /// Zaps what most often is done with the first entries. Somebody waits for the flush that
    /// follows, and a walk is large to be moved about.
    fn zap(
        &mut self,
        editor: Editor<'a, F, M>,
        range: Range<u64>,
        entries_max: u32,
    ) -> Result<Option<Walk<'a, F, M>>, Progress> {
        self.owed.zaps(&range);
        let mut change = editor.zap(range, Tables::Detach);
        if change.step(entries_max) == Progress::Done {
            self.owed.put(change.into_gather());
            return Ok(None);
        }
        self.walk = Some(Walk::Plain(change));
        Err(Progress::More)
    }

    /// What leaves of the slot that is being dealt with allow.
    fn rights(&self) -> Permissions {
        match &self.slot {
            Some(slot) if !slot.is_read_only() => Permissions::RWX,
            _ => Permissions::RX,
        }
    }

    /// All changes are dealt with: flush if need be, and end the update.
    fn conclude(&mut self, retire: &mut impl FnMut(Retired)) -> Result<(), Progress> {
        let needs_receipt = match &self.stage {
            Stage::Treating { update, .. } => update.needs_receipt(SpaceId::FIRST),
            _ => false,
        };
        if self.owed.needs_flush() || needs_receipt {
            return Err(self.owed.await_flush());
        }
        let generation = match core::mem::replace(&mut self.stage, Stage::Stuck) {
            // Does not fail after what was asked above; it would be left in progress, which is
            // safe.
            Stage::Treating { update, .. } => update.finish(retire).ok(),
            Stage::Resizing => Some(self.space.slots.generation()),
            _ => None,
        };
        self.stage = Stage::Over(generation.ok_or(Progress::Waiting)?);
        Ok(())
    }
}

impl<F: Format, M: TableMemory> Steps for Job<'_, F, M> {
    /// One that takes translations of whole tables away is at its flush after the first step that
    /// does not [wait](Progress::Waiting), however many they are: the tables are gone through after
    /// the flush, when the slots are settled and nobody waits any more, in steps of their own.
    fn step(&mut self, entries_max: u32, mut retire: impl FnMut(Retired)) -> Progress {
        if self.owed.awaits_flush() {
            return Progress::Flush;
        }
        let mut walk = self.walk.take();
        let mut has_walked = false;
        let was_settled = self.generation().is_some();
        // Each turn but the one that walks ends, or takes a task from the list.
        loop {
            if let Some(walk) = walk.take() {
                if has_walked {
                    self.walk = Some(walk);
                    return Progress::More;
                }
                has_walked = true;
                if let Some(progress) = self.go_on(walk, entries_max) {
                    return progress;
                }
            }
            if let Stage::Over(_) = self.stage {
                if !was_settled && self.owed.has_tables() {
                    // A waiter for the change does not wait for the tables.
                    return Progress::More;
                }
                return if self.owed.free(entries_max) { Progress::More } else { Progress::Done };
            }
            let at_once = (!has_walked).then_some(entries_max);
            match self.advance(entries_max, at_once, &mut retire) {
                Ok(begun) => walk = begun,
                Err(progress) => return progress,
            }
        }
    }

    fn invalidation(&self) -> Invalidation<'_> {
        self.owed.invalidation()
    }

    fn flushed(&mut self, receipt: &(impl FlushReceipt + ?Sized)) -> bool {
        let Some(thaw) = self.owed.release(receipt) else { return false };
        let is_last = self.tasks.is_empty();
        if let Some((range, flushed)) = thaw.filter(|_| !F::REPLACES_IN_PLACE) {
            self.tasks.push(Task::Thaw(range, flushed));
        }
        match &mut self.stage {
            Stage::Treating { update, next } if is_last && update.change(*next).is_none() => {
                update.settle(SpaceId::FIRST, receipt, self.owed.last())
            }
            _ => true,
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
