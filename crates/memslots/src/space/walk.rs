//! A pass over the nested page table.

use core::ops::Range;

use paging::{Change, DirtySink, Editor, Format, Gather, Level, Permissions, Progress, TableMemory};

use super::task::Task;
use crate::{GuestMemory, Memslots};

/// Marks pages in the log of the slot that they are in.
pub(super) struct Marker<'a> {
    memory: GuestMemory<'a>,
    /// What is added to the addresses that were dirty.
    shift: u64,
}

impl<'a> Marker<'a> {
    /// By the slots of now.
    pub(super) fn new(slots: &'a Memslots, shift: u64) -> Self {
        Self { memory: slots.memory(), shift }
    }
}

impl DirtySink for Marker<'_> {
    fn dirty(&mut self, page: Range<u64>) {
        self.memory.mark_dirty(page.start.wrapping_add(self.shift)..page.end.wrapping_add(self.shift));
    }
}

/// A pass that has begun.
pub(super) enum Walk<'a, F: Format, M: TableMemory> {
    Plain(Change<'a, F, M>),
    Marking(Change<'a, F, M, Marker<'a>>),
}

/// How a step of a pass ended.
pub(super) enum Walked<M: TableMemory> {
    /// There is more to do.
    More,
    /// It is through, and this is owed.
    Through(Gather<M>),
    /// There is no table to split a page with; this is owed.
    OutOfTables(Gather<M>),
}

impl<'a, F: Format, M: TableMemory> Walk<'a, F, M> {
    /// Begins `task`, and adds what it comes to owe to `owed`; `None` if there is nothing to walk for it. The rights that
    /// a large page gets are `rights`.
    pub(super) fn begin(
        editor: Editor<'a, F, M>,
        slots: &'a Memslots,
        task: Task,
        rights: Permissions,
        owed: &mut Option<Gather<M>>,
    ) -> Option<Self> {
        use paging::Tables::Free;
        let change = match task {
            Task::Zap(range) => editor.zap(range, Free),
            Task::Protect(range) => editor.write_protect(range),
            Task::Split(range) => editor.split(range, Level::Page4K),
            Task::Clean(range) => editor.clean(range, paging::NoSink),
            Task::Transfer(range, shift) => {
                let change = editor.clean(range, Marker::new(slots, shift));
                return Some(Self::Marking(continuing(change, owed)));
            }
            // Memory that lies differently within large pages is never mapped by them.
            Task::Collapse(range, host, level) => editor.collapse(range, level, host, rights).ok()?,
            Task::Flush => return None,
        };
        Some(Self::Plain(continuing(change, owed)))
    }

    /// Visits at most so many entries.
    pub(super) fn step(&mut self, entries_max: u32) -> Walked<M> {
        let progress = match self {
            Self::Plain(change) => change.step(entries_max),
            Self::Marking(change) => change.step(entries_max),
        };
        match progress {
            Progress::Yielded | Progress::Full => Walked::More,
            Progress::Done => Walked::Through(self.take_gather()),
            Progress::OutOfTables => Walked::OutOfTables(self.take_gather()),
        }
    }

    fn take_gather(&mut self) -> Gather<M> {
        match self {
            Self::Plain(change) => change.take_gather(),
            Self::Marking(change) => change.take_gather(),
        }
    }
}

fn continuing<'a, F: Format, M: TableMemory, S: DirtySink>(
    change: Change<'a, F, M, S>,
    owed: &mut Option<Gather<M>>,
) -> Change<'a, F, M, S> {
    match owed.take() {
        Some(gather) => change.continuing(gather),
        None => change,
    }
}
