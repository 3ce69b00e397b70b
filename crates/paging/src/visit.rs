//! The action of a change on an entry that it meets.

use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::change::{Action, Change, DirtySink, Visit};
use crate::cursor::Cut;
use crate::format::{ABSENT, Entry, frozen_after, needs_flush, repermitted};
use crate::frames::Frames;
use crate::span::{self, SpanPiece};
use crate::sync::{AtomicU64, overwrite};
use crate::{FlushRange, Format, Level, Permissions, PhysAddr, TableMemory, Tables};

impl<F: Format, M: TableMemory, S: DirtySink, R: Frames> Change<'_, F, M, S, R> {
    /// Visits an entry above the last level.
    pub(crate) fn visit_entry(&mut self, cell: &AtomicU64, level: Level, piece: &SpanPiece) -> Visit {
        // Pairs with a fault's exchange of the entry (`descend`).
        let entry = cell.load(Acquire);
        match (Entry::decode::<F>(entry, level), level.below()) {
            (Entry::Table(next), Some(below)) => self.visit_table(cell, level, below, next, piece),
            (Entry::Leaf(_), Some(below)) => self.visit_large(cell, level, below, entry, piece),
            (Entry::Frozen, _) => {
                self.thaw(cell, entry);
                Visit::Passed(1)
            }
            _ => Visit::Passed(1),
        }
    }

    fn visit_table(
        &mut self,
        cell: &AtomicU64,
        level: Level,
        below: Level,
        next: PhysAddr,
        piece: &SpanPiece,
    ) -> Visit {
        let start = span::address_of::<F>(piece.entry_start);
        let cut = FlushRange { start, len: level.size(), level: Level::Page4K, tables: true };
        match self.action {
            Action::Zap(tables @ (Tables::Free | Tables::Detach)) if piece.whole => {
                // Before anything else, so that no new walk enters a table being removed.
                self.editor.cut_table(cell, cut, tables);
            }
            Action::Thaw(_) if piece.whole => return Visit::Passed(1),
            Action::Collapse { level: to, shift, permissions } if level == to && piece.whole => {
                let pa = PhysAddr(piece.entry_start.wrapping_add(shift));
                self.editor.join_leaf(cell, F::leaf(pa, level, permissions), cut);
            }
            Action::Collapse { level: to, .. } if level <= to => return Visit::Passed(1),
            Action::Split(to) if below <= to => return Visit::Passed(1),
            _ => return Visit::Into(next),
        }
        if R::ARE_KEPT && matches!(self.action, Action::Zap(_)) {
            self.gather.cut(start, level.size(), below);
            self.cursor.begin_cut(Cut { level: below, start: piece.entry_start, len: level.size() });
            return Visit::Into(next);
        }
        // The gather assumes the smallest page size without looking.
        self.gather.cut(start, level.size(), Level::Page4K);
        self.gather.detach(next, below);
        Visit::Passed(1)
    }

    /// Makes an entry absent that was frozen until a flush, once that flush is over.
    fn thaw(&self, cell: &AtomicU64, frozen: u64) {
        if let Action::Thaw(sequence) = self.action
            && frozen_after(frozen) < sequence
        {
            // Only the editor writes a frozen entry.
            overwrite(cell, ABSENT);
        }
    }

    fn visit_large(
        &mut self,
        cell: &AtomicU64,
        level: Level,
        below: Level,
        leaf: u64,
        piece: &SpanPiece,
    ) -> Visit {
        match self.action {
            Action::Split(to) if level > to => {
                let in_place = self.editor.resizes_in_place();
                let Ok(table) = self.editor.split_leaf(cell, leaf, below, piece.entry_start, in_place) else {
                    return Visit::OutOfTables;
                };
                if in_place && !F::REPLACES_IN_PLACE {
                    // The pieces may be changed next, and then flushed with a hint at their own
                    // level.
                    self.gather.leaves(span::address_of::<F>(piece.entry_start), level.size(), level);
                }
                Visit::Split((below > to).then_some(table))
            }
            _ => self.visit_leaf(cell, level, leaf, piece.entry_start),
        }
    }

    /// Visits entries of a table of the last level, the first of them at the offset `start`.
    pub(crate) fn visit_leaves(&mut self, cells: &[AtomicU64], start: u64) -> Visit {
        match self.action {
            Action::Zap(_) if R::ARE_KEPT => {}
            Action::Zap(_) => {
                self.zap_leaves(cells, start);
                return Visit::Passed(cells.len());
            }
            Action::WriteProtect | Action::Clean(_) => {
                self.sweep(cells, start);
                return Visit::Passed(cells.len());
            }
            Action::Protect(_) => {}
            Action::Split(_) | Action::Collapse { .. } | Action::Thaw(_) => {
                return Visit::Passed(cells.len());
            }
        }
        let mut start = start;
        for (count, cell) in cells.iter().enumerate() {
            // Pairs with a fault's exchange of the entry (`descend`).
            let entry = cell.load(Acquire);
            let is_leaf = F::is_present(entry);
            if is_leaf || entry != ABSENT && matches!(self.action, Action::Zap(_)) {
                match self.visit_leaf(cell, Level::Page4K, entry, start) {
                    Visit::Passed(_) => {}
                    stopped if count == 0 => return stopped,
                    _ => return Visit::Passed(count),
                }
            }
            start += Level::Page4K.size();
        }
        Visit::Passed(cells.len())
    }

    fn visit_leaf(&mut self, cell: &AtomicU64, level: Level, leaf: u64, start: u64) -> Visit {
        let change = match &self.action {
            Action::Zap(_) => {
                let Some(old) = self.exchange_framed(cell, level, ABSENT) else { return Visit::Full };
                Some((old, ABSENT))
            }
            Action::WriteProtect => {
                rewrite(cell, leaf, |leaf| match F::permissions(leaf).contains(Permissions::WRITE) {
                    true => F::protected(leaf, level),
                    false => leaf,
                })
            }
            Action::Protect(permissions) => {
                rewrite(cell, leaf, |leaf| repermitted::<F>(leaf, level, *permissions))
            }
            Action::Clean(_) => rewrite(cell, leaf, cleaned::<F>),
            Action::Split(_) | Action::Collapse { .. } | Action::Thaw(_) => None,
        };
        let Some((old, new)) = change else { return Visit::Passed(1) };
        let page = page::<F>(start, level);
        if needs_flush::<F>(old, new, level) || matches!(self.action, Action::Protect(_)) {
            self.gather.leaves(page.start, level.size(), level);
        }
        if let Action::Clean(sink) = &mut self.action {
            sink.dirty(page);
        }
        Visit::Passed(1)
    }

    /// Removes leaves and marks, with a range for each run of leaves.
    ///
    /// A plain store removes a leaf: at most, a fault is adding rights to it at this moment, or the
    /// processor is making it dirty; both are removed with it, within the same range. An absent
    /// entry is not stored to, since a fault may be filling it. A mark is swapped, since a fault
    /// may be overwriting it, and that leaf must get into a range.
    fn zap_leaves(&mut self, cells: &[AtomicU64], start: u64) {
        let mut run_start = 0;
        for (index, cell) in cells.iter().enumerate() {
            let entry = cell.load(Relaxed);
            // The swap pairs with a fault's exchange of the entry (`descend`).
            if F::is_present(entry) {
                overwrite(cell, ABSENT);
            } else if entry == ABSENT || !F::is_present(cell.swap(ABSENT, AcqRel)) {
                self.zapped(start, run_start, index);
                run_start = index + 1;
            }
        }
        self.zapped(start, run_start, cells.len());
    }

    /// Records leaves `from` to `to`, counted from `start`.
    fn zapped(&mut self, start: u64, from: usize, to: usize) {
        if from < to {
            let first = start + ((from as u64) << Level::Page4K.shift());
            let len = ((to - from) as u64) << Level::Page4K.shift();
            self.gather.leaves(span::address_of::<F>(first), len, Level::Page4K);
        }
    }
}

/// The input addresses of a page.
fn page<F: Format>(start: u64, level: Level) -> Range<u64> {
    let address = span::address_of::<F>(start);
    address..address.wrapping_add(level.size())
}

/// The leaf without its dirty bit.
pub(crate) fn cleaned<F: Format>(leaf: u64) -> u64 {
    if F::is_dirty(leaf) { F::cleaned(leaf) } else { leaf }
}

/// Replaces a leaf by the result of `new`, and returns both; `None` if the two are equal.
///
/// By compare-exchange, because the processor may make the leaf dirty, and a fault may add rights
/// to it. Neither is undone while there is an editor, so there are few iterations.
pub(crate) fn rewrite(cell: &AtomicU64, leaf: u64, new: impl Fn(u64) -> u64) -> Option<(u64, u64)> {
    let mut old = leaf;
    loop {
        let value = new(old);
        if value == old {
            return None;
        }
        // Pairs with a fault's exchange of the entry (`meet`), and with the loads of all walkers.
        match cell.compare_exchange(old, value, AcqRel, Acquire) {
            Ok(_) => return Some((old, value)),
            Err(other) => old = other,
        }
    }
}
