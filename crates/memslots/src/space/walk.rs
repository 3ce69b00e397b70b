//! A pass over the nested page table.

use core::ops::Range;

use paging::{
    Change, DirtySink, Editor, Format, Gather, Invalidation, Level, Permissions, Progress, TableMemory,
};

use super::owed::Owed;
use super::task::Task;
use paging::Gpa;

use crate::{GuestMemory, Memslots};

/// Marks pages in the log of the slot that contains them.
pub(super) struct Marker<'a> {
    memory: GuestMemory<'a>,
    /// Offset added to the addresses of dirty pages.
    shift: u64,
}

impl<'a> Marker<'a> {
    /// With the current slots.
    pub(super) fn new(slots: &'a Memslots, shift: u64) -> Self {
        Self { memory: slots.memory(), shift }
    }
}

impl DirtySink for Marker<'_> {
    fn dirty(&mut self, page: Range<u64>) {
        self.memory.mark_dirty(page.start.wrapping_add(self.shift)..page.end.wrapping_add(self.shift));
    }

    fn dirty_pages(&mut self, start: u64, pages: u64) {
        self.memory.mark_pages(Gpa(start.wrapping_add(self.shift)), pages);
    }
}

/// A pass that has begun.
pub(super) enum Walk<'a, F: Format, M: TableMemory> {
    Plain(Change<'a, F, M>),
    /// A pass that stops for a flush at each page.
    PageByPage(Change<'a, F, M>),
    Marking(Change<'a, F, M, Marker<'a>>),
}

impl<'a, F: Format, M: TableMemory> Walk<'a, F, M> {
    /// Begins `task`, and adds the removed tables and translations to `owed`; `None` if it needs no
    /// walk. Large pages get the permissions `rights`.
    pub(super) fn begin(
        editor: Editor<'a, F, M>,
        slots: &'a Memslots,
        task: Task,
        rights: Permissions,
        owed: &mut Owed<M>,
    ) -> Option<Self> {
        use paging::Tables::{Detach, Keep};
        let change = match task {
            Task::Zap(range) => {
                owed.zaps(&range);
                editor.zap(range, Detach)
            }
            Task::ZapPages(range) => {
                return Some(Self::PageByPage(continuing(editor.zap(range, Keep), owed)));
            }
            Task::Thaw(range, flushed) => editor.thaw(range, flushed),
            Task::Protect(range) => editor.write_protect(range),
            Task::Split(range) => editor.split(range, Level::Page4K),
            Task::Clean(range) => editor.clean(range, paging::NoSink),
            Task::Transfer(range, shift) => {
                let change = editor.clean(range, Marker::new(slots, shift));
                return Some(Self::Marking(continuing(change, owed)));
            }
            // Memory that is aligned differently than its addresses is never mapped by large pages.
            Task::Collapse(range, host, level) => editor.collapse(range, level, host, rights).ok()?,
            Task::Flush => return None,
        };
        Some(Self::Plain(continuing(change, owed)))
    }

    /// Visits at most `entries_max` entries.
    pub(super) fn step(&mut self, entries_max: u32) -> Progress {
        match self {
            Self::Plain(change) => change.step(entries_max),
            Self::PageByPage(change) => step_page(change, entries_max),
            Self::Marking(change) => change.step(entries_max),
        }
    }

    /// Ends it.
    pub(super) fn into_gather(self) -> Gather<M> {
        match self {
            Self::Plain(change) | Self::PageByPage(change) => change.into_gather(),
            Self::Marking(change) => change.into_gather(),
        }
    }

    /// Takes the gather so far.
    pub(super) fn take_gather(&mut self) -> Gather<M> {
        match self {
            Self::Plain(change) | Self::PageByPage(change) => change.take_gather(),
            Self::Marking(change) => change.take_gather(),
        }
    }
}

/// Steps to the next page that must be flushed.
fn step_page<F: Format, M: TableMemory>(change: &mut Change<'_, F, M>, entries_max: u32) -> Progress {
    for _ in 0..entries_max.max(1) {
        let progress = change.step(1);
        if change.gather().invalidation() != Invalidation::Nothing {
            return Progress::Flush;
        }
        if progress != Progress::More {
            return progress;
        }
    }
    Progress::More
}

fn continuing<'a, F: Format, M: TableMemory, S: DirtySink>(
    change: Change<'a, F, M, S>,
    owed: &mut Owed<M>,
) -> Change<'a, F, M, S> {
    match owed.take_gather() {
        Some(gather) => change.continuing(gather),
        None => change,
    }
}
