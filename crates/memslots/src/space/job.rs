//! Changes of the slots, in steps.

use core::fmt;
use core::ops::Range;

use arrayvec::ArrayVec;
use paging::{Editor, FlushReceipt, Format, Invalidation, Permissions, Progress, TableMemory, Tables};

use super::owed::Owed;
use super::task::{self, TASKS_MAX, Task};
use super::walk::Walk;
use super::{GuestSpace, Turn, ZapWay};
use crate::{Generation, Published, Quiesced, Retired, Slot, SlotChange, SpaceId};

/// A change of a guest's memory, or a fetch of a dirty log, in steps with flushes between them.
///
/// A step never ends in [`Progress::OutOfTables`]. It [waits](Progress::Waiting) while a reader
/// still uses the former slots, or while an editor other than a job has the page table.
pub trait Steps {
    /// Continues, for at most `entries_max` entries. `retire` receives the memory and logs that are
    /// no longer in use at the end.
    ///
    /// At [`Progress::Flush`], flush this guest's nested translations on all vCPUs, either
    /// everything or the ranges that [`invalidation`](Self::invalidation) names, and pass the
    /// receipt [on](Self::flushed). A step does nothing until then.
    fn step(&mut self, entries_max: u32, retire: impl FnMut(Retired)) -> Progress;

    /// The minimum to flush at [`Progress::Flush`]. Even if that is nothing, the flush must wait
    /// for translation sections that began before.
    fn invalidation(&self) -> Invalidation<'_>;

    /// Records that the requested flush was done after the last step. Returns false if the receipt
    /// is of an earlier flush: then nothing has changed.
    #[must_use = "without a receipt there is no next step"]
    fn flushed(&mut self, receipt: &(impl FlushReceipt + ?Sized)) -> bool;
}

/// The work that a job has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Entries of the nested page table that were visited.
    pub visited: u64,
    /// Tables that were freed.
    pub tables: u64,
    /// Trees of tables that were cut off as a whole, without visiting their contents.
    pub detached: u64,
    /// Flushes that it needed.
    pub flushes: u64,
}

enum Stage<'a> {
    /// The new slots are visible; the former ones may still be in use.
    Draining(Published<'a>),
    /// Translations are treated, one change after the other.
    Treating {
        update: Quiesced<'a>,
        /// The next change.
        next: usize,
    },
    /// The slots are unchanged: the translations of one slot are treated.
    Resizing,
    /// The slots are settled. Tables may remain to be freed.
    Over(Generation),
    /// Between two of the other stages, and permanently if the update could not be finished.
    Stuck,
}

/// A change of a guest's slots that has begun.
///
/// Readers see the new slots from the beginning. The job must be stepped until it is done. Dropped
/// before that, it leaves the slots' generation in progress permanently, and translations of former
/// slots in place: safe only for a caller that destroys the guest. Once there is a
/// [generation](Self::generation) only tables remain to be freed, and would leak.
#[must_use = "a job does nothing until it is stepped"]
pub struct Job<'a, F: Format, M: TableMemory> {
    space: &'a GuestSpace<F, M>,
    stage: Stage<'a>,
    /// The current state of the slot being treated, if it still exists.
    slot: Option<Slot>,
    /// The remaining tasks for it, the next one last.
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

    /// A job that makes the pages of a slot as large as possible.
    pub(super) fn collapsing(space: &'a GuestSpace<F, M>, turn: Turn<'a>, slot: Slot) -> Self {
        let (tasks, owed) = (task::collapse(&slot), Owed::new(space.stamp()));
        Self { space, stage: Stage::Resizing, slot: Some(slot), tasks, walk: None, owed, _turn: turn }
    }

    /// Takes the next step that is no walk, which may begin one. `Err` if nothing more can be done
    /// now. A walk may visit as many as `at_once` entries immediately.
    fn advance(
        &mut self,
        entries_max: u32,
        at_once: Option<u32>,
        retire: &mut impl FnMut(Retired),
    ) -> Result<(), Progress> {
        if let Stage::Draining(_) = self.stage {
            self.drain()?;
        }
        if self.tasks.is_empty() {
            match &mut self.stage {
                Stage::Treating { update, next } => match update.change(*next) {
                    None => return self.conclude(retire),
                    Some(change) => {
                        self.tasks = task::tasks(&change, self.space.zap);
                        self.slot = change.current;
                        *next += 1;
                    }
                },
                Stage::Resizing => return self.conclude(retire),
                _ => return Err(Progress::Waiting),
            }
        }
        match self.tasks.pop() {
            None => Ok(()),
            Some(Task::Flush) => Err(self.owed.await_flush()),
            Some(task) => self.begin(task, entries_max, at_once),
        }
    }

    /// The former slots are drained, if no reader uses them any more.
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

    /// The work done so far.
    pub fn report(&self) -> Report {
        self.owed.report
    }

    /// The generation that the job has produced, once it is done.
    pub fn generation(&self) -> Option<Generation> {
        match self.stage {
            Stage::Over(generation) => Some(generation),
            _ => None,
        }
    }

    /// Continues the pass over the tables, in its place, since a walk is expensive to move. `None`
    /// if there is none, or it is finished.
    fn go_on(&mut self, entries_max: u32) -> Option<Progress> {
        let walk = self.walk.as_mut()?;
        let progress = walk.step(entries_max);
        if matches!(progress, Progress::More | Progress::Waiting) {
            return Some(progress);
        }
        self.owed.put(walk.take_gather());
        if progress == Progress::Flush {
            return Some(self.owed.await_flush());
        }
        self.walk = None;
        // A page that cannot be split is zapped: faults restore it in small pages.
        if progress == Progress::OutOfTables
            && let Some(change) = self.present()
        {
            self.tasks.clear();
            self.tasks.push(Task::Zap(change.former.range()));
        }
        None
    }

    /// The change being treated.
    fn present(&self) -> Option<SlotChange> {
        let Stage::Treating { update, next } = &self.stage else { return None };
        update.change(next.checked_sub(1)?)
    }

    fn begin(&mut self, task: Task, entries_max: u32, at_once: Option<u32>) -> Result<(), Progress> {
        let task = match task {
            Task::Zap(_) if self.space.zap == ZapWay::Everything => Task::Zap(0..u64::MAX),
            Task::Collapse(_, _, level) if level > self.space.largest => return Ok(()),
            // Faults wait for it, so it precedes any freeing.
            task @ Task::Thaw(..) => task,
            // Earlier tables are freed first: nothing is gathered until then.
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
            (Some(editor), _) => {
                self.walk = Walk::begin(editor, &self.space.slots, task, rights, &mut self.owed);
                Ok(())
            }
            // An editor other than a job.
            (None, _) => {
                self.tasks.push(task);
                Err(Progress::Waiting)
            }
        }
    }

    /// Zaps a range, which the first step usually completes: a caller waits for the flush that
    /// follows.
    fn zap(&mut self, editor: Editor<'a, F, M>, range: Range<u64>, entries_max: u32) -> Result<(), Progress> {
        self.owed.zaps(&range);
        let mut change = editor.zap(range, Tables::Detach);
        if change.step(entries_max) == Progress::Done {
            self.owed.put(change.into_gather());
            return Ok(());
        }
        self.walk = Some(Walk::Plain(change));
        Err(Progress::More)
    }

    /// The permissions of leaves of the slot being treated.
    fn rights(&self) -> Permissions {
        self.slot.as_ref().map_or(Permissions::RX, Slot::rights)
    }

    /// All changes are treated: flushes if necessary, and ends the update.
    fn conclude(&mut self, retire: &mut impl FnMut(Retired)) -> Result<(), Progress> {
        let needs_receipt = match &self.stage {
            Stage::Treating { update, .. } => update.needs_receipt(SpaceId::FIRST),
            _ => false,
        };
        if self.owed.needs_flush() || needs_receipt {
            return Err(self.owed.await_flush());
        }
        let generation = match core::mem::replace(&mut self.stage, Stage::Stuck) {
            // Does not fail after the checks above; otherwise the update would be left in progress,
            // which is safe.
            Stage::Treating { update, .. } => update.finish(retire).ok(),
            Stage::Resizing => Some(self.space.slots.generation()),
            _ => None,
        };
        self.stage = Stage::Over(generation.ok_or(Progress::Waiting)?);
        Ok(())
    }
}

impl<F: Format, M: TableMemory> Steps for Job<'_, F, M> {
    /// A job that removes translations of whole tables reaches its flush in the first step that
    /// does not [wait](Progress::Waiting), however many they are. The tables are visited in
    /// separate steps after the flush, when the slots are settled and no caller waits any more.
    fn step(&mut self, entries_max: u32, mut retire: impl FnMut(Retired)) -> Progress {
        if self.owed.awaits_flush() {
            return Progress::Flush;
        }
        let mut has_walked = false;
        let was_settled = self.generation().is_some();
        // Each iteration, except the one that walks, returns or takes a task from the list.
        loop {
            if self.walk.is_some() {
                if has_walked {
                    return Progress::More;
                }
                has_walked = true;
                if let Some(progress) = self.go_on(entries_max) {
                    return progress;
                }
            }
            if let Stage::Over(_) = self.stage {
                if !was_settled && self.owed.has_tables() {
                    // The caller that waits for the change need not wait for the tables.
                    return Progress::More;
                }
                return if self.owed.free(entries_max) { Progress::More } else { Progress::Done };
            }
            let at_once = (!has_walked).then_some(entries_max);
            match self.advance(entries_max, at_once, &mut retire) {
                Ok(()) => {}
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
