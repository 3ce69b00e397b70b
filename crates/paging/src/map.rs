//! Operations that need exclusive access to the page table: mapping ranges, and changes in one go.

use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::format::Entry;
use crate::span::{self, Span, pieces};
use crate::table::check_output;
use crate::{Editor, Format, Gather, Level, MapError, PageTable, Permissions, PhysAddr, TableMemory, Tables};

/// The memory that a range is mapped to.
#[derive(Clone, Copy)]
struct Backing {
    /// Address minus the offset of the input address: input offset plus this is the output address.
    shift: u64,
    permissions: Permissions,
    largest: Level,
}

impl Backing {
    fn pa(self, offset: u64) -> PhysAddr {
        PhysAddr(offset.wrapping_add(self.shift))
    }
}

impl<F: Format, M: TableMemory> PageTable<F, M> {
    /// Maps `range` to the memory starting at `pa`, with the largest pages that fit, up to `level`.
    ///
    /// No flush is needed, since absent entries are not cached.
    ///
    /// # Errors
    ///
    /// [`MapError::Unaligned`], [`MapError::OutOfRange`], [`MapError::Permissions`] and
    /// [`MapError::AlreadyMapped`]; nothing has changed then. [`MapError::OutOfTables`]; a first
    /// part of the range is mapped then.
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
            Entry::Leaf(_) => Err(MapError::AlreadyMapped { address }),
            _ => Ok(()),
        })?;
        let shift = pa.0.wrapping_sub(span.start);
        let target = Backing { shift, permissions, largest: level.min(F::LARGEST) };
        let result = self.map_in(self.root, F::ROOT, span, target);
        self.memory.publish();
        result
    }

    /// Changes the permissions of the mappings in `range`, splitting pages that reach beyond it.
    ///
    /// # Errors
    ///
    /// [`MapError::NotMapped`] if part of the range is not mapped, and as for [`map`](Self::map).
    /// No translation has changed then.
    pub fn protect(&mut self, range: Range<u64>, permissions: Permissions) -> Result<Gather<M>, MapError> {
        let span = span::exact::<F>(&range)?;
        if !F::admits(permissions) {
            return Err(MapError::Permissions);
        }
        self.check(&span, |entry, address| match entry {
            Entry::Leaf(_) => Ok(()),
            _ => Err(MapError::NotMapped { address }),
        })?;
        Ok(self.exclusively().protect(range, permissions)?.finish())
    }

    /// [`Editor::unmap`] in one go.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn unmap(&mut self, range: Range<u64>) -> Result<Gather<M>, MapError> {
        Ok(self.exclusively().unmap(range)?.finish())
    }

    /// [`Editor::zap`] in one go.
    pub fn zap(&mut self, range: Range<u64>, tables: Tables) -> Gather<M> {
        self.exclusively().zap(range, tables).finish()
    }

    /// Takes the page table down: every table is in the gather, including the root.
    pub fn dismantle(mut self) -> Gather<M> {
        let mut gather = self.zap(0..u64::MAX, Tables::Free);
        // All its entries are absent now, or frozen.
        gather.hold(self.root);
        gather
    }

    /// The editor, whether it is free or was forgotten.
    fn exclusively(&mut self) -> Editor<'_, F, M> {
        Editor { table: self }
    }

    /// Tests every leaf and absence in a span; `address` is the first in the span.
    fn check(&self, span: &Span, test: impl Fn(Entry, u64) -> Result<(), MapError>) -> Result<(), MapError> {
        let mut result = Ok(());
        self.visit(self.root, F::ROOT, span.clone(), &mut |start, level, entry| {
            let address = span::address_of::<F>(start.max(span.start));
            result = test(Entry::decode::<F>(entry, level), address);
            result.is_ok()
        });
        result
    }

    /// Maps a span in which nothing is mapped. Plain stores are enough: with exclusive access
    /// nothing else writes absent entries, and processors write only present ones.
    fn map_in(&self, table: PhysAddr, level: Level, span: Span, target: Backing) -> Result<(), MapError> {
        let Some(below) = level.below() else {
            let first = level.index(span.start);
            let count = ((span.end - span.start) >> level.shift()) as usize;
            let mut offset = span.start;
            for cell in &self.entries(table)[first..first + count] {
                cell.store(F::leaf(target.pa(offset), level, target.permissions), Relaxed);
                offset += level.size();
            }
            return Ok(());
        };
        for piece in pieces(span, level) {
            let cell = self.cell(table, level, piece.span.start);
            // Pairs with the store below, and with `descend`.
            let entry = Entry::decode::<F>(cell.load(Acquire), level);
            let pa = target.pa(piece.span.start);
            let fits = piece.whole && level <= target.largest && pa.is_aligned(level);
            let next = match entry {
                Entry::Leaf(_) => {
                    return Err(MapError::AlreadyMapped { address: span::address_of::<F>(piece.span.start) });
                }
                Entry::Absent | Entry::Frozen if fits => {
                    cell.store(F::leaf(pa, level, target.permissions), Relaxed);
                    continue;
                }
                Entry::Table(next) => next,
                Entry::Absent | Entry::Frozen => {
                    let next = self.memory.allocate().ok_or(MapError::OutOfTables)?;
                    self.memory.publish();
                    // Release: a walk that finds the table finds it zeroed.
                    // It pairs with the loads of all walkers.
                    cell.store(F::table(next, level), Release);
                    next
                }
            };
            self.map_in(next, below, piece.span, target)?;
        }
        Ok(())
    }
}
