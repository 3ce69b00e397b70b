//! Changes in steps.

use core::fmt;
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::cursor::Cursor;
use crate::format::{Entry, FROZEN};
use crate::frames::{FrameRuns, Frames, NoFrames};
use crate::span::{self, Span, SpanPiece};
use crate::sync::{AtomicU64, overwrite};
use crate::{ENTRY_COUNT, Editor, Format, Gather, Level, Permissions, PhysAddr, Stamp, TableMemory, Tables};

/// Number of changes so far, over all tables: a table that gets another's former root must not get
/// its stamps again, or an old receipt would free new tables. Hidden from the model checker: it
/// orders nothing.
static CHANGES: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);

/// Receives the pages that have been stored to.
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

/// The sink of changes that report no pages.
#[derive(Clone, Copy, Debug)]
pub struct NoSink;

impl DirtySink for NoSink {
    fn dirty(&mut self, _: Range<u64>) {}
    fn dirty_pages(&mut self, _: u64, _: u64) {}
}

/// The action that a change takes on the entries it meets.
pub(crate) enum Action<S> {
    Zap(Tables),
    WriteProtect,
    Clean(S),
    /// Down to pages of this level.
    Split(Level),
    Collapse {
        level: Level,
        /// Output address minus input offset.
        shift: u64,
        permissions: Permissions,
    },
    Protect(Permissions),
    /// Thaws entries that earlier changes have frozen.
    Thaw(u64),
}

/// The result of a step: of a [`Change`], and of anything made of changes.
///
/// Exhaustive: each requires another action of the caller before the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Finished.
    Done,
    /// There is more to do: the next step continues where this one stopped.
    More,
    /// Another user is in the way. The next step tries again; let others run meanwhile. A
    /// [`Change`] never waits.
    Waiting,
    /// The pending invalidations must be flushed first. For a [`FramedChange`]: its gather has no
    /// room for more frames and must be [taken](FramedChange::take_gather).
    Flush,
    /// There is no memory for a table to split a page with. The next step tries again.
    OutOfTables,
}

/// The result of visiting entries.
pub(crate) enum Visit {
    /// This many entries are done.
    Passed(usize),
    /// The entry is done, except for the table it points to, or pointed to.
    Into(PhysAddr),
    /// The entry was a leaf and is now a table, which takes as long as visiting the table. If a
    /// table is given, the change continues in it.
    Split(Option<PhysAddr>),
    /// Nothing was done because the gather is full.
    Full,
    /// Nothing was done for lack of a table.
    OutOfTables,
}

/// A change that has begun: it is made in [steps](Self::step), between which its user may do other
/// work, and faults may be served at any time.
///
/// The change holds the editor while it lasts. It also holds the translations to invalidate and the
/// tables to free until it is finished, wherever it stops. Dropping it leaves the rest of the range
/// as it is, and leaks the tables.
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

    /// Merges the gather of this change with that of an earlier change of the same page table, so
    /// that one flush serves both.
    pub fn continuing(self, gather: Gather<M, R>) -> Self {
        Self { gather, ..self }
    }

    /// Visits at most `entries_max` entries, or one if that is 0.
    ///
    /// This bounds the time it takes: splitting an entry counts as much as the entries of the table
    /// that takes its place.
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
        // A flush may follow.
        self.editor.table.memory.publish();
        progress
    }

    /// Makes the rest of the change, and returns the gather.
    ///
    /// If there is no table to split a page with, the page is skipped, and
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

    /// Takes the gather so far, so that it can be flushed and released while the change goes on.
    pub fn take_gather(&mut self) -> Gather<M, R> {
        let next = Self::new_gather(&self.editor);
        let mut gather = core::mem::replace(&mut self.gather, next);
        gather.set_stamp(stamp(&self.editor));
        if let Some(cut) = self.cursor.cut() {
            // The rest of a table that was cut off belongs to the next gather, and so does
            // everything that a fault may still put there.
            self.gather.cut(span::address_of::<F>(cut.start), cut.len, Level::Page4K);
        }
        gather
    }

    /// Ends the change where it is, and returns the gather.
    pub fn into_gather(self) -> Gather<M, R> {
        let mut gather = self.gather;
        gather.set_stamp(stamp(&self.editor));
        gather
    }

    /// The gather so far.
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

    /// Visits the entry of `piece`; in a table of the last level, up to `run` entries starting with
    /// it.
    fn visit(&mut self, piece: &SpanPiece, run: usize) -> Visit {
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

    /// Empties entries of a table that is cut off, so that no fault fills them again.
    fn freeze(&mut self, entries: &[AtomicU64], level: Level, run: usize) -> Visit {
        if level == Level::Page4K && !R::ARE_KEPT {
            // Plain stores: the former contents of an entry are no longer wanted, not even a value
            // that a fault or the processor writes at this moment. The gather covers the whole
            // table, and a later fault does not exchange a frozen entry.
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

    /// Exchanges an entry for `new`, and returns the former value; `None`, and no exchange, if it
    /// is a leaf whose frame does not fit into the gather.
    ///
    /// By compare-exchange, because a fault may be adding a table, which must not be lost, or a
    /// leaf, whose frame must not be lost. An exchange fails only when one of these has happened,
    /// or the processor has made the leaf dirty. None of these is ever undone, so there are few
    /// iterations.
    pub(crate) fn exchange_framed(&mut self, cell: &AtomicU64, level: Level, new: u64) -> Option<u64> {
        // Pairs with the exchange of a fault (`descend`) that linked a table here.
        let mut old = cell.load(Acquire);
        loop {
            let leaf = match Entry::decode::<F>(old, level) {
                Entry::Leaf(pa) if R::ARE_KEPT => Some(pa),
                _ => None,
            };
            if leaf.is_some_and(|pa| !self.gather.frames().has_room(pa)) {
                return None;
            }
            // As above; the written value pairs with a walk that loads the entry to descend
            // (`descend`, `look`).
            match cell.compare_exchange(old, new, AcqRel, Acquire) {
                Ok(_) => {
                    if let Some(pa) = leaf {
                        self.gather.frames().push(pa, level.size());
                    }
                    return Some(old);
                }
                Err(other) => old = other,
            }
        }
    }
}

impl<'t, F: Format, M: TableMemory> Change<'t, F, M> {
    /// Makes the gathers of a zap record the unmapped memory, for users that own it by the page. A
    /// gather has room for a limited number of runs, so the zap is made in steps, and tables are
    /// walked before the flush.
    pub fn with_frames(self) -> FramedChange<'t, F, M> {
        let Self { editor, action, cursor, gather } = self;
        FramedChange(Change { editor, action, cursor, gather: gather.framed() })
    }
}

/// A change whose gathers record frames.
#[must_use = "a change does nothing until it is stepped"]
pub struct FramedChange<'t, F: Format, M: TableMemory>(Change<'t, F, M, NoSink, FrameRuns>);

impl<F: Format, M: TableMemory> FramedChange<'_, F, M> {
    /// As [`Change::step`]. May end in [`Progress::Flush`].
    pub fn step(&mut self, entries_max: u32) -> Progress {
        self.0.step(entries_max)
    }

    /// Takes the gather so far: when it is full, at the end, or in between.
    pub fn take_gather(&mut self) -> Gather<M, FrameRuns> {
        self.0.take_gather()
    }
}

/// A new stamp for the changes made so far.
///
/// Release, and pairs with [`PageTable::stamp`](crate::PageTable::stamp): a flush that is issued
/// with this stamp or a later one is issued after the changes. So the stamp must not be taken
/// before the changes are made.
pub(crate) fn stamp<F: Format, M: TableMemory>(editor: &Editor<'_, F, M>) -> Stamp {
    // The editor is exclusive, which orders the changes of one table. At one per nanosecond the
    // counter takes 584 years to wrap.
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
