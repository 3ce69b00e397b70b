//! Changes that take the page table exclusively: mapping ranges, changing and removing them.

use core::ops::Range;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use crate::format::Entry;
use crate::span::{self, Span, pieces};
use crate::table::check_output;
use crate::{ENTRY_COUNT, Format, Gather, Level, MapError, PageTable, Permissions, PhysAddr, TableMemory};

/// Number of changes so far, of all tables: a table that gets another's former root must not get its
/// stamps again, or an old receipt would free new tables.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// What a zap does with tables that only cover zapped addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tables {
    /// Cut them off and hold them in the gather.
    Free,
    /// Keep them in place, empty: cheaper if the range is soon in use again, and nothing is held.
    Keep,
}

impl<F: Format, M: TableMemory> PageTable<F, M> {
    /// Maps `range` to the memory from `pa` on, with the largest pages that fit, up to `level`.
    ///
    /// No flush is needed, since absent entries are not cached.
    ///
    /// # Errors
    ///
    /// [`MapError::Unaligned`], [`MapError::OutOfRange`], [`MapError::Permissions`] and
    /// [`MapError::AlreadyMapped`], upon which nothing has changed; [`MapError::OutOfTables`], upon
    /// which a first part of the range is mapped.
    pub fn map(
        &mut self,
        range: Range<u64>,
        pa: PhysAddr,
        permissions: Permissions,
        level: Level,
    ) -> Result<(), MapError> {
        let span = span::exact::<F>(&range)?;
        check_output::<F>(pa, span.end - span.start)?;
        if !pa.is_aligned(Level::Page4K) {
            return Err(MapError::Unaligned);
        }
        if !F::admits(permissions) {
            return Err(MapError::Permissions);
        }
        self.check(&span, |entry, address| match entry {
            Entry::Leaf(..) => Err(MapError::AlreadyMapped { address }),
            _ => Ok(()),
        })?;
        self.map_in(self.root, F::ROOT, span, pa, permissions, level.min(F::LARGEST))
    }

    /// Changes what the mappings in `range` allow, splitting pages that reach beyond it.
    ///
    /// # Errors
    ///
    /// [`MapError::NotMapped`] if part of the range is not mapped, and as for [`map`](Self::map). No
    /// translation has changed then.
    pub fn protect(&mut self, range: Range<u64>, permissions: Permissions) -> Result<Gather<M>, MapError> {
        let span = span::exact::<F>(&range)?;
        if !F::admits(permissions) {
            return Err(MapError::Permissions);
        }
        self.check(&span, |entry, address| match entry {
            Entry::Absent => Err(MapError::NotMapped { address }),
            _ => Ok(()),
        })?;
        self.split_at_ends(&span)?;
        let mut gather = self.begin();
        self.protect_in(self.root, F::ROOT, span, permissions, &mut gather);
        Ok(gather)
    }

    /// Removes the mappings in exactly `range`, splitting pages that reach beyond it: how a guard page
    /// is punched. Addresses without a mapping are passed over.
    ///
    /// # Errors
    ///
    /// As for [`map`](Self::map). No translation has changed then.
    pub fn unmap(&mut self, range: Range<u64>) -> Result<Gather<M>, MapError> {
        let span = span::exact::<F>(&range)?;
        self.split_at_ends(&span)?;
        let mut gather = self.begin();
        self.zap_in(self.root, F::ROOT, span, Tables::Free, &mut gather);
        Ok(gather)
    }

    /// Removes the mappings in at least `range`: a page that reaches beyond it goes as a whole, so that
    /// no memory is needed and nothing can fail. For nested tables, where a fault brings back what is
    /// still wanted.
    pub fn zap(&mut self, range: Range<u64>, tables: Tables) -> Gather<M> {
        let mut gather = self.begin();
        for span in span::widened::<F>(&range) {
            self.zap_in(self.root, F::ROOT, span, tables, &mut gather);
        }
        gather
    }

    /// Takes the page table down: every table is in the gather, the root too.
    pub fn dismantle(mut self) -> Gather<M> {
        let mut gather = self.zap(0..u64::MAX, Tables::Free);
        gather.hold(self.root);
        gather
    }

    /// Starts a change that needs a flush.
    fn begin(&mut self) -> Gather<M> {
        // Exclusive access orders the changes of one table. One a nanosecond would take 584 years to wrap.
        self.sequence = CHANGES.fetch_add(1, Relaxed).wrapping_add(1);
        Gather::new(self.memory.clone(), self.stamp())
    }

    /// Tests every leaf and absence in a span; `address` is the first in the span.
    fn check(&self, span: &Span, test: impl Fn(Entry, u64) -> Result<(), MapError>) -> Result<(), MapError> {
        let mut result = Ok(());
        self.visit(self.root, F::ROOT, span.clone(), &mut |entry_start, _, entry| {
            result = test(entry, span::address_of::<F>(entry_start.max(span.start)));
            result.is_ok()
        });
        result
    }

    fn map_in(
        &self,
        table: PhysAddr,
        level: Level,
        span: Span,
        pa: PhysAddr,
        permissions: Permissions,
        largest: Level,
    ) -> Result<(), MapError> {
        let start = span.start;
        for piece in pieces(span, level) {
            let cell = self.cell(table, level, piece.span.start);
            let pa = PhysAddr(pa.0 + (piece.span.start - start));
            if piece.whole
                && level <= largest
                && pa.is_aligned(level)
                && self.decode(cell, level) == Entry::Absent
            {
                cell.store(F::leaf(pa, level, permissions), Release);
                continue;
            }
            let next = match self.decode(cell, level) {
                Entry::Table(next) => next,
                Entry::Leaf(..) => {
                    return Err(MapError::AlreadyMapped { address: span::address_of::<F>(piece.span.start) });
                }
                Entry::Absent => {
                    let next = self.memory.allocate().ok_or(MapError::OutOfTables)?;
                    cell.store(F::table(next), Release);
                    next
                }
            };
            let below = level.below().ok_or(MapError::Unaligned)?;
            self.map_in(next, below, piece.span, pa, permissions, largest)?;
        }
        Ok(())
    }

    fn protect_in(
        &self,
        table: PhysAddr,
        level: Level,
        span: Span,
        permissions: Permissions,
        gather: &mut Gather<M>,
    ) {
        for piece in pieces(span, level) {
            gather.visit();
            let cell = self.cell(table, level, piece.span.start);
            match (self.decode(cell, level), level.below()) {
                (Entry::Table(next), Some(below)) => {
                    self.protect_in(next, below, piece.span, permissions, gather);
                }
                (Entry::Leaf(pa, _), _) => {
                    let old = cell.swap(F::leaf(pa, level, permissions), AcqRel);
                    // The processor may have set these just before the swap; they must not get lost.
                    cell.fetch_or(old & F::HARDWARE_SET, Relaxed);
                    gather.leaf(span::address_of::<F>(piece.entry_start), level);
                }
                (Entry::Absent | Entry::Table(_), _) => {}
            }
        }
    }

    fn zap_in(&self, table: PhysAddr, level: Level, span: Span, tables: Tables, gather: &mut Gather<M>) {
        for piece in pieces(span, level) {
            gather.visit();
            let cell = self.cell(table, level, piece.span.start);
            match (self.decode(cell, level), level.below()) {
                (Entry::Table(next), Some(below)) => {
                    let is_cut = piece.whole && tables == Tables::Free;
                    if is_cut {
                        // Before its entries are cleared, so that no new walk enters a table on its way out.
                        cell.swap(0, AcqRel);
                    }
                    self.zap_in(next, below, piece.span, tables, gather);
                    if is_cut {
                        gather.hold(next);
                    }
                }
                (Entry::Leaf(..), _) => {
                    cell.swap(0, AcqRel);
                    gather.leaf(span::address_of::<F>(piece.entry_start), level);
                }
                (Entry::Absent | Entry::Table(_), _) => {}
            }
        }
    }

    fn split_at_ends(&self, span: &Span) -> Result<(), MapError> {
        self.split_at(span.start)?;
        self.split_at(span.end)
    }

    /// Splits leaves until `boundary` lies between two of them. No translation changes, only the size of
    /// the pages it is made of.
    fn split_at(&self, boundary: u64) -> Result<(), MapError> {
        let (mut table, mut level) = (self.root, F::ROOT);
        while boundary & level.offset_mask() != 0 {
            let Some(below) = level.below() else { break };
            let cell = self.cell(table, level, boundary);
            (table, level) = match self.decode(cell, level) {
                Entry::Absent => break,
                Entry::Table(next) => (next, below),
                Entry::Leaf(pa, permissions) => (self.split(cell, pa, below, permissions)?, below),
            };
        }
        Ok(())
    }

    /// Replaces a leaf by a table of smaller leaves, and returns the table.
    ///
    /// The one place where an entry in use changes its kind. AMD64 allows that in one step: a processor
    /// that holds the large page uses the same translation, until a flush of any address in the page
    /// takes it out. A format that demands break-before-make has its hook here.
    fn split(
        &self,
        cell: &AtomicU64,
        pa: PhysAddr,
        below: Level,
        permissions: Permissions,
    ) -> Result<PhysAddr, MapError> {
        let table = self.memory.allocate().ok_or(MapError::OutOfTables)?;
        let entries = self.entries(table);
        let seen = cell.load(Relaxed) & F::HARDWARE_SET;
        for index in 0..ENTRY_COUNT {
            let piece = PhysAddr(pa.0 + index as u64 * below.size());
            entries[index].store(F::leaf(piece, below, permissions) | seen, Relaxed);
        }
        let old = cell.swap(F::table(table), AcqRel);
        let set_meanwhile = old & F::HARDWARE_SET & !seen;
        if set_meanwhile != 0 {
            for entry in entries {
                entry.fetch_or(set_meanwhile, Relaxed);
            }
        }
        Ok(table)
    }
}
