//! The tasks for the translations of a slot that changes.

use core::ops::Range;

use arrayvec::ArrayVec;
use paging::{Flushed, Level, PhysAddr};

use super::ZapWay;
use crate::{Slot, SlotChange, Treatment};

/// The most tasks of one change, plus one that a flush adds.
pub(super) const TASKS_MAX: usize = 5;

/// One pass over a range of the nested page table, or a flush between two passes.
#[derive(Clone, Debug)]
pub(super) enum Task {
    /// Remove the translations.
    Zap(Range<u64>),
    /// The same one page at a time, with a flush for each.
    ZapPages(Range<u64>),
    /// Let faults fill entries again that were cut off before a flush.
    Thaw(Range<u64>, Flushed),
    /// Remove the right to store.
    Protect(Range<u64>),
    /// Split large pages.
    Split(Range<u64>),
    /// Clear the dirty bits, and discard them.
    Clean(Range<u64>),
    /// Clear the dirty bits and mark the pages in the log, at this offset in bytes.
    Transfer(Range<u64>, u64),
    /// Restore large pages: the range, and the memory behind its start.
    Collapse(Range<u64>, PhysAddr, Level),
    /// Flush before continuing.
    Flush,
}

/// The tasks that a change requires, the last one first.
pub(super) fn tasks(change: &SlotChange, zap: ZapWay) -> ArrayVec<Task, TASKS_MAX> {
    let range = change.former.range();
    let mut tasks = ArrayVec::new();
    match (change.treatment, change.current) {
        (Treatment::Nothing, _) | (Treatment::Collapse, None) => {}
        (Treatment::WriteProtect, _) => tasks.push(Task::Protect(range)),
        (Treatment::StartLog, current) => {
            tasks.push(Task::Split(range.clone()));
            let by_faults = current.is_some_and(|slot| slot.is_logged_by_faults());
            tasks.push(if by_faults { Task::Protect(range) } else { Task::Clean(range) });
        }
        (Treatment::Collapse, Some(slot)) => return collapse(&slot),
        (Treatment::Zap, Some(slot)) if change.keeps_log => {
            // The dirty bits of removed leaves must not be lost: stop stores first.
            tasks.push(Task::Protect(range.clone()));
            tasks.push(Task::Flush);
            tasks.push(Task::Transfer(range.clone(), slot.gpa.0.wrapping_sub(range.start)));
            push_zap(&mut tasks, range, zap);
        }
        (Treatment::Zap, _) => push_zap(&mut tasks, range, zap),
    }
    tasks.reverse();
    tasks
}

fn push_zap(tasks: &mut ArrayVec<Task, TASKS_MAX>, range: Range<u64>, zap: ZapWay) {
    if zap == ZapWay::PageByPage {
        tasks.push(Task::ZapPages(range.clone()));
    }
    tasks.push(Task::Zap(range));
}

/// The tasks that make the pages of a slot as large as possible, the last one first.
pub(super) fn collapse(slot: &Slot) -> ArrayVec<Task, TASKS_MAX> {
    let levels = [Level::Page2M, Level::Page1G];
    levels.into_iter().map(|level| Task::Collapse(slot.range(), slot.host, level)).collect()
}
