//! Changes while processors run: the operations that an editor can begin.

use core::fmt;
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::change::{Action, Change, DirtySink};
use crate::format::{ABSENT, Entry, FROZEN, frozen_until_after, piece};
use crate::span::{self, Span};
use crate::sync::AtomicU64;
use crate::table::check_output;
use crate::{FlushRange, Flushed, Format, Level, MapError, PageTable, Permissions, PhysAddr, TableMemory};

/// How a zap treats tables that only cover zapped addresses.
///
/// Exhaustive: callers pass it, and the list is complete: cut off with a break or without, or kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tables {
    /// Cut them off and hold them in the gather. If a table may not replace another without a
    /// break, there is one break for each tree that is cut off.
    Free,
    /// The same without such breaks: the entry of a tree that was cut off stays frozen, so that
    /// faults there get [`MapError::Raced`], until it is [thawed](Editor::thaw) after the flush.
    /// The same as `Free` for formats that [replace in place](Format::REPLACES_IN_PLACE).
    Detach,
    /// Keep them in place, empty: cheaper if the range is soon used again, and nothing is held.
    Keep,
}

/// The right to change and remove translations. Only one editor exists at a time; faults continue
/// meanwhile.
///
/// Each method begins a [`Change`], which has done nothing yet.
pub struct Editor<'t, F: Format, M: TableMemory> {
    pub(crate) table: &'t PageTable<F, M>,
}

impl<F: Format, M: TableMemory> PageTable<F, M> {
    /// Becomes the editor, or returns `None` if there is one already.
    pub fn edit(&self) -> Option<Editor<'_, F, M>> {
        // Acquire, and pairs with the release when an editor is dropped: this one sees that
        // editor's changes.
        let free = self.is_edited.compare_exchange(false, true, Acquire, Acquire);
        free.is_ok().then_some(Editor { table: self })
    }
}

impl<'t, F: Format, M: TableMemory> Editor<'t, F, M> {
    /// Removes the mappings and marks in at least `range`: a page that reaches beyond it is removed
    /// as a whole, so that no memory is needed and nothing can fail. For nested tables, where a
    /// fault restores mappings that are still wanted.
    pub fn zap(self, range: Range<u64>, tables: Tables) -> Change<'t, F, M> {
        Change::new(self, span::widened::<F>(&range), Action::Zap(tables))
    }

    /// Lets faults fill the entries again that a zap with [`Tables::Detach`] has cut off in at
    /// least `range`, where `flushed` covers that zap. The gather of this change is empty.
    pub fn thaw(self, range: Range<u64>, flushed: Flushed) -> Change<'t, F, M> {
        let is_same = flushed.0.root == self.table.root;
        let sequence = if is_same { flushed.0.sequence } else { 0 };
        Change::new(self, span::widened::<F>(&range), Action::Thaw(sequence))
    }

    /// Removes the mappings in exactly `range`, splitting pages that reach beyond it, e.g. to punch
    /// a guard page. Addresses without a mapping are skipped.
    ///
    /// # Errors
    ///
    /// [`MapError::Unaligned`] and [`MapError::OutOfRange`] for the range, and
    /// [`MapError::OutOfTables`] where a page cannot be split. No translation has changed then.
    pub fn unmap(self, range: Range<u64>) -> Result<Change<'t, F, M>, MapError> {
        let span = span::exact::<F>(&range)?;
        self.split_at_ends(&span)?;
        Ok(Change::new(self, [span, 0..0], Action::Zap(Tables::Free)))
    }

    /// Removes the right to store from the mappings in at least `range`. Dirty bits stay.
    pub fn write_protect(self, range: Range<u64>) -> Change<'t, F, M> {
        Change::new(self, span::widened::<F>(&range), Action::WriteProtect)
    }

    /// Makes the dirty leaves in at least `range` clean, and reports each of them to `sink`.
    ///
    /// The next clean may miss stores made before the flush that the gather requests, so read the
    /// pages after the flush.
    pub fn clean<S: DirtySink>(self, range: Range<u64>, sink: S) -> Change<'t, F, M, S> {
        Change::new(self, span::widened::<F>(&range), Action::Clean(sink))
    }

    /// Splits the pages in at least `range` that are larger than `level` into pages of `level`.
    /// Translations are unchanged.
    pub fn split(self, range: Range<u64>, level: Level) -> Change<'t, F, M> {
        Change::new(self, span::widened::<F>(&range), Action::Split(level))
    }

    /// Replaces tables in `range` by leaves of `level`: the reverse of a [split](Self::split). The
    /// range must be mapped, now or by later faults, to the memory starting at `pa`.
    ///
    /// Tables that cover one whole page of `level` are replaced, whether they are full or not. A
    /// leaf that allows stores is dirty, [tracked](Permissions::TRACKED) or not, so no dirty state
    /// of the pieces is lost.
    ///
    /// # Errors
    ///
    /// [`MapError::Unaligned`], [`MapError::OutOfRange`] and [`MapError::Permissions`]; nothing has
    /// changed then.
    pub fn collapse(
        self,
        range: Range<u64>,
        level: Level,
        pa: PhysAddr,
        permissions: Permissions,
    ) -> Result<Change<'t, F, M>, MapError> {
        let span = span::exact::<F>(&range)?;
        check_output::<F>(pa, span.end - span.start)?;
        if !F::admits(permissions) {
            return Err(MapError::Permissions);
        }
        let fits = (span.start ^ pa.0) & level.offset_mask() == 0 && level <= F::LARGEST;
        if !fits && !span.is_empty() {
            return Err(MapError::Unaligned);
        }
        let permissions = permissions - Permissions::TRACKED;
        let action = Action::Collapse { level, shift: pa.0.wrapping_sub(span.start), permissions };
        Ok(Change::new(self, [span, 0..0], action))
    }

    /// Changes the permissions of the mappings in exactly `range`, splitting pages that reach
    /// beyond it. Addresses without a mapping are skipped.
    ///
    /// # Errors
    ///
    /// [`MapError::Permissions`], and as for [`unmap`](Self::unmap).
    pub fn protect(self, range: Range<u64>, permissions: Permissions) -> Result<Change<'t, F, M>, MapError> {
        let span = span::exact::<F>(&range)?;
        if !F::admits(permissions) {
            return Err(MapError::Permissions);
        }
        self.split_at_ends(&span)?;
        Ok(Change::new(self, [span, 0..0], Action::Protect(permissions)))
    }

    fn split_at_ends(&self, span: &Span) -> Result<(), MapError> {
        self.split_at(span.start)?;
        self.split_at(span.end)
    }

    /// Splits leaves until `boundary` is between two of them. No translation changes, only the page
    /// sizes.
    fn split_at(&self, boundary: u64) -> Result<(), MapError> {
        let (mut table, mut level) = (self.table.root, F::ROOT);
        while boundary & level.offset_mask() != 0 {
            let Some(below) = level.below() else { break };
            let cell = self.table.cell(table, level, boundary);
            // Pairs with the exchange or store that linked the table it leads to (`descend`,
            // `split_leaf`).
            let entry = cell.load(Acquire);
            (table, level) = match Entry::decode::<F>(entry, level) {
                Entry::Absent | Entry::Frozen => break,
                Entry::Table(next) => (next, below),
                Entry::Leaf(_) => {
                    // There is no gather for a leaf that processors may still hold.
                    let in_place = F::REPLACES_IN_PLACE;
                    (self.split_leaf(cell, entry, below, boundary & !level.offset_mask(), in_place)?, below)
                }
            };
        }
        Ok(())
    }

    /// Replaces a leaf by a table of leaves of `below`, and returns the table. `start` is the
    /// offset of the leaf's page. If this is done `in_place`, processors may continue to hold the
    /// leaf.
    pub(crate) fn split_leaf(
        &self,
        cell: &AtomicU64,
        leaf: u64,
        below: Level,
        start: u64,
        in_place: bool,
    ) -> Result<PhysAddr, MapError> {
        let memory = &self.table.memory;
        let next = memory.allocate().ok_or(MapError::OutOfTables)?;
        let level = below.above().unwrap_or(below);
        let new = F::table(next, level);
        if in_place {
            let mut leaf = leaf;
            // Each iteration after the first finds a leaf that the processor has made dirty, or to
            // which a fault has added rights; neither is undone while this editor exists. So there
            // are few iterations.
            loop {
                self.fill(next, leaf, below);
                // Pairs with walkers' loads of the entry (`descend`, `look`), which find the table
                // filled; and with a fault's exchange (`meet`).
                match cell.compare_exchange(leaf, new, AcqRel, Acquire) {
                    Ok(_) => return Ok(next),
                    Err(other) => leaf = other,
                }
            }
        }
        let range =
            FlushRange { start: span::address_of::<F>(start), len: level.size(), level, tables: false };
        let leaf = self.break_entry(cell, range);
        self.fill(next, leaf, below);
        // Pairs with walkers' loads of the entry (`descend`, `look`), which find the table filled.
        cell.store(new, Release);
        Ok(next)
    }

    /// Whether a page in use may change its size in one store.
    pub(crate) fn resizes_in_place(&self) -> bool {
        F::REPLACES_IN_PLACE || self.table.memory.resizes_in_place()
    }

    /// Removes the pointer to a table. `range` is the table's range.
    ///
    /// A fault may put another table there at once. Where that requires a break, this function
    /// makes it, or the entry stays frozen until the flush that the gather requests.
    pub(crate) fn cut_table(&self, cell: &AtomicU64, range: FlushRange, tables: Tables) {
        let absent = match tables {
            _ if F::REPLACES_IN_PLACE => ABSENT,
            // This change's number will be a later one. Relaxed: only editors store it.
            Tables::Detach => frozen_until_after(self.table.sequence.load(Relaxed)),
            Tables::Free | Tables::Keep => {
                self.break_entry(cell, range);
                ABSENT
            }
        };
        // A store, because only the editor writes an entry that points to a table or is frozen.
        // Pairs with the load of a fault that finds the entry (`descend`): the load comes after the
        // break.
        cell.store(absent, Release);
    }

    /// Replaces the pointer to a table by a leaf. `range` is the table's range.
    pub(crate) fn join_leaf(&self, cell: &AtomicU64, leaf: u64, range: FlushRange) {
        if !self.resizes_in_place() {
            self.break_entry(cell, range);
        }
        // Pairs with the load of a fault that finds the entry (`descend`): the load comes after the
        // break.
        cell.store(leaf, Release);
    }

    /// Takes an entry out of use everywhere, and returns its last value. Faults find it frozen
    /// until it gets its new value.
    fn break_entry(&self, cell: &AtomicU64, range: FlushRange) -> u64 {
        // Pairs with a fault's exchange of the entry (`descend`, `meet`), which comes before or
        // fails.
        let entry = cell.swap(FROZEN, AcqRel);
        self.table.memory.publish();
        self.table.memory.break_before_make(range);
        entry
    }

    /// Fills a new table with the pieces of a leaf.
    fn fill(&self, table: PhysAddr, leaf: u64, below: Level) {
        let Some(level) = below.above() else { return };
        // Addresses are already in position, so the pieces differ by their size.
        let mut piece = piece::<F>(leaf, F::address(leaf, level), below);
        for entry in self.table.entries(table) {
            // Relaxed: the store or exchange that publishes the table releases it.
            entry.store(piece, Relaxed);
            piece = piece.wrapping_add(below.size());
        }
        self.table.memory.publish();
    }
}

impl<F: Format, M: TableMemory> Drop for Editor<'_, F, M> {
    fn drop(&mut self) {
        // Pairs with the exchange in `edit`, by the next editor.
        self.table.is_edited.store(false, Release);
    }
}

impl<F: Format, M: TableMemory> fmt::Debug for Editor<'_, F, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Editor").field("root", &self.table.root).finish_non_exhaustive()
    }
}
