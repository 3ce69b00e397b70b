//! A change in steps.

use core::fmt;
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::cursor::Cursor;
use crate::format::{Entry, FROZEN};
use crate::frames::{FrameRuns, Frames, NoFrames};
use crate::span::{self, Piece, Span};
use crate::sync::{AtomicU64, overwrite};
use crate::{ENTRY_COUNT, Editor, Format, Gather, Level, Permissions, PhysAddr, Stamp, TableMemory, Tables};

/// Number of changes so far, of all tables: a table that gets another's former root must not get
/// its stamps again, or an old receipt would free new tables. Not for the model checker to see: it
/// orders nothing.
static CHANGES: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);

/// Takes note of pages that have been stored to.
pub trait DirtySink {
    /// The page with these input addresses was dirty, and is clean now.
    fn dirty(&mut self, page: Range<u64>);

    /// The same for small pages: the `n`th from the input address `start` if bit `n` of `pages` is
    /// set. `start` is aligned to 64 of them, unless the range of the change begins there.
    fn dirty_pages(&mut self, start: u64, pages: u64) {
        let mut rest = pages;
        while rest != 0 {
            let page = start.wrapping_add(u64::from(rest.trailing_zeros()) << Level::Page4K.shift());
            self.dirty(page..page.wrapping_add(Level::Page4K.size()));
            rest &= rest - 1;
        }
    }
}

impl<S: FnMut(Range<u64>)> DirtySink for S {
    fn dirty(&mut self, page: Range<u64>) {
        self(page);
    }
}

/// The sink of changes that have nothing to tell.
#[derive(Clone, Copy, Debug)]
pub struct NoSink;

impl DirtySink for NoSink {
    fn dirty(&mut self, _: Range<u64>) {}
    fn dirty_pages(&mut self, _: u64, _: u64) {}
}

/// What a change does with the entries it meets.
pub(crate) enum Action<S> {
    Zap(Tables),
    WriteProtect,
    Clean(S),
    /// Down to pages of this level.
    Split(Level),
    Collapse {
        level: Level,
        /// Output address less input offset.
        shift: u64,
        permissions: Permissions,
    },
    Protect(Permissions),
    /// What changes before this one have frozen.
    Thaw(u64),
}

/// How far a step has got: of a [`Change`], and of whatever is made of changes.
///
/// Exhaustive: each asks something else of the caller before the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Through.
    Done,
    /// There is more to do: the next step goes on where this one has stopped.
    More,
    /// Somebody else is in the way. The next step tries again; let others run meanwhile. A
    /// [`Change`] never waits.
    Waiting,
    /// What is owed has to be flushed first. Of a [`FramedChange`]: its gather has no room for more
    /// frames, and is to be [taken](FramedChange::take_gather).
    Flush,
    /// There is no memory for a table to split a page with. The next step tries again.
    OutOfTables,
}

/// What a visit of entries comes to.
pub(crate) enum Visit {
    /// This many entries are done.
    Passed(usize),
    /// The entry is done but for the table it points to, or pointed to.
    Into(PhysAddr),
    /// The entry was a leaf and is a table now, which takes as long as to visit the table; the
    /// change goes on in it if it is told.
    Split(Option<PhysAddr>),
    /// Nothing was done, because the gather is full.
    Full,
    /// Nothing was done, for want of a table.
    OutOfTables,
}

/// A change that has begun: it is made in [steps](Self::step), between which its user may do
/// anything else, and faults may be served all the time.
///
/// The change is the editor while it lasts. What is owed, translations to invalidate and tables to
/// free, is in it until it is finished, wherever it stops. Dropping it leaves the rest of the range
/// as it is, and leaks what is owed.
#[must_use = "a change does nothing until it is stepped or finished"]
pub struct Change<'t, F: Format, M: TableMemory, S: DirtySink = NoSink, R: Frames = NoFrames> {
    pub(crate) editor: Editor<'t, F, M>,
    pub(crate) action: Action<S>,
    pub(crate) cursor: Cursor,
    pub(crate) gather: Gather<M, R>,
}

impl<'t, F: Format, M: TableMemory, S: DirtySink, R: Frames> Change<'t, F, M, S, R> {
    pub(crate) fn new(editor: Editor<'t, F, M>, spans: [Span; 2], action: Action<S>) -> Self {
        let cursor = Cursor::new::<F>(editor.table.root, spans);
        let gather = Self::new_gather(&editor);
        Self { editor, action, cursor, gather }
    }

    /// Adds what this change comes to owe to what an earlier one of the same page table owes, so
    /// that one flush does for both.
    pub fn continuing(self, gather: Gather<M, R>) -> Self {
        Self { gather, ..self }
    }

    /// Visits at most `entries_max` entries, or one if that is 0.
    ///
    /// The time it takes is bounded by that: an entry that is split counts as many as the table
    /// that takes its place has.
    pub fn step(&mut self, entries_max: u32) -> Progress {
        let mut left = entries_max.max(1) as usize;
        let progress = loop {
            let Some(piece) = self.cursor.piece() else { break Progress::Done };
            if left == 0 {
                break Progress::More;
            }
            let run = self.cursor.run().min(left);
            match self.visit(&piece, run) {
                Visit::Passed(count) => {
                    left = left.saturating_sub(count);
                    self.pass(count);
                }
                Visit::Into(table) => {
                    left -= 1;
                    self.gather.visited(1);
                    self.cursor.descend(table);
                }
                Visit::Split(table) => {
                    left = left.saturating_sub(ENTRY_COUNT);
                    match table {
                        Some(table) => {
                            self.gather.visited(1);
                            self.cursor.descend(table);
                        }
                        None => self.pass(1),
                    }
                }
                Visit::Full => break Progress::Flush,
                Visit::OutOfTables => break Progress::OutOfTables,
            }
        };
        // What follows may be a flush.
        self.editor.table.memory.publish();
        progress
    }

    /// Makes the rest of the change, and returns what is owed.
    ///
    /// Where there is no table to split a page with, the page is passed over, and
    /// [counted](Gather::unsplit_count).
    pub fn finish(mut self) -> Gather<M, R> {
        loop {
            match self.step(u32::MAX) {
                Progress::Done => return self.into_gather(),
                Progress::OutOfTables => {
                    self.gather.unsplit();
                    self.pass(1);
                }
                Progress::More | Progress::Flush | Progress::Waiting => {}
            }
        }
    }

    /// Takes what is owed so far, so that it can be flushed and released while the change goes on.
    pub fn take_gather(&mut self) -> Gather<M, R> {
        let next = Self::new_gather(&self.editor);
        let mut gather = core::mem::replace(&mut self.gather, next);
        gather.set_stamp(stamp(&self.editor));
        if let Some(cut) = self.cursor.cut() {
            // The rest of a table that was cut off belongs to the next gather, and with it all that
            // a fault may still have put there.
            self.gather.cut(span::address_of::<F>(cut.start), cut.len, Level::Page4K);
        }
        gather
    }

    /// Ends the change where it is, and returns what is owed.
    pub fn into_gather(self) -> Gather<M, R> {
        let mut gather = self.gather;
        gather.set_stamp(stamp(&self.editor));
        gather
    }

    /// What is owed so far.
    pub fn gather(&self) -> &Gather<M, R> {
        &self.gather
    }

    fn new_gather(editor: &Editor<'t, F, M>) -> Gather<M, R> {
        Gather::new(editor.table.memory.clone(), Entry::decode::<F>, editor.table.stamp())
    }

    fn pass(&mut self, count: usize) {
        let gather = &mut self.gather;
        gather.visited(count as u64);
        self.cursor.advance::<F>(count, |table| gather.hold(table));
    }

    /// Visits the entry of `piece`, and in a table of the last level up to `run` entries from it
    /// on.
    fn visit(&mut self, piece: &Piece, run: usize) -> Visit {
        let level = self.cursor.level();
        let table = self.editor.table;
        let entries = table.entries(self.cursor.table());
        let first = level.index(piece.entry_start);
        if self.cursor.cut().is_some() {
            return self.freeze(&entries[first..], level, run);
        }
        if level == Level::Page4K {
            return self.visit_leaves(&entries[first..first + run], piece.entry_start);
        }
        self.visit_entry(&entries[first], level, piece)
    }

    /// Empties entries of a table that is cut off, such that no fault fills them again.
    fn freeze(&mut self, entries: &[AtomicU64], level: Level, run: usize) -> Visit {
        if level == Level::Page4K && !R::ARE_KEPT {
            // Plain stores: nothing that an entry holds is wanted any more, not even what a fault
            // or the processor writes at this moment. The whole of the table is in the gather, and
            // a fault that comes later does not exchange a frozen entry.
            for entry in &entries[..run] {
                overwrite(entry, FROZEN);
            }
            return Visit::Passed(run);
        }
        let entry = &entries[0];
        let frozen = self.exchange_framed(entry, level, FROZEN);
        match frozen.map(|old| (Entry::decode::<F>(old, level), level.below())) {
            None => Visit::Full,
            Some((Entry::Table(next), Some(below))) => {
                self.gather.deepen(below);
                Visit::Into(next)
            }
            Some(_) => Visit::Passed(1),
        }
    }

    /// Exchanges an entry for `new`, and returns what it was; `None`, and no exchange, if it is a
    /// leaf whose frame does not fit into the gather.
    ///
    /// By compare-exchange, because a fault may just be putting a table there, which must not get
    /// lost, or a leaf, whose frame must not. An exchange fails only when one of these has
    /// happened, or the processor has made the leaf dirty; nobody undoes that, so there are few
    /// turns.
    pub(crate) fn exchange_framed(&mut self, cell: &AtomicU64, level: Level, new: u64) -> Option<u64> {
        // Pairs with the exchange of a fault (`descend`) that linked a table here.
        let mut old = cell.load(Acquire);
        loop {
            let leaf = match Entry::decode::<F>(old, level) {
                Entry::Leaf(pa) if R::ARE_KEPT => Some(pa),
                _ => None,
            };
            if let Some(pa) = leaf
                && !self.gather.frames().push(pa, level.size())
            {
                return None;
            }
            // As above; what is written pairs with a walk that loads the entry to walk on
            // (`descend`, `look`).
            match cell.compare_exchange(old, new, AcqRel, Acquire) {
                Ok(_) => return Some(old),
                Err(other) => {
                    if leaf.is_some() {
                        self.gather.frames().unpush(level.size());
                    }
                    old = other;
                }
            }
        }
    }
}

impl<'t, F: Format, M: TableMemory> Change<'t, F, M> {
    /// Has the gathers of a zap keep account of the memory that is unmapped, for users that own it
    /// by the page. There is room for a limited number of runs, so it is made in steps; and tables
    /// are gone through before the flush.
    pub fn with_frames(self) -> FramedChange<'t, F, M> {
        let Self { editor, action, cursor, gather } = self;
        FramedChange(Change { editor, action, cursor, gather: gather.framed() })
    }
}

/// A change whose gathers hold frames.
#[must_use = "a change does nothing until it is stepped"]
pub struct FramedChange<'t, F: Format, M: TableMemory>(Change<'t, F, M, NoSink, FrameRuns>);

impl<F: Format, M: TableMemory> FramedChange<'_, F, M> {
    /// As [`Change::step`]. May end in [`Progress::Flush`].
    pub fn step(&mut self, entries_max: u32) -> Progress {
        self.0.step(entries_max)
    }

    /// Takes what is owed so far: when the gather is full, at the end, or in between.
    pub fn take_gather(&mut self) -> Gather<M, FrameRuns> {
        self.0.take_gather()
    }
}

/// A new stamp for what has been changed so far.
///
/// Release, and pairs with [`PageTable::stamp`](crate::PageTable::stamp): a flush that is issued
/// with this stamp or a later one is issued after the changes. Hence also not earlier than at the
/// end.
pub(crate) fn stamp<F: Format, M: TableMemory>(editor: &Editor<'_, F, M>) -> Stamp {
    // Being the editor orders the changes of one table. One a nanosecond would take 584 years to
    // wrap.
    let sequence = CHANGES.fetch_add(1, Relaxed).wrapping_add(1);
    editor.table.sequence.store(sequence, Release);
    Stamp { root: editor.table.root, sequence }
}

impl<F: Format, M: TableMemory, S: DirtySink, R: Frames> fmt::Debug for Change<'_, F, M, S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change")
            .field("cursor", &self.cursor)
            .field("gather", &self.gather)
            .finish_non_exhaustive()
    }
}

impl<F: Format, M: TableMemory> fmt::Debug for FramedChange<'_, F, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
