//! Faults: installing translations, and marking addresses that have none, in parallel.

use core::sync::atomic::Ordering::{AcqRel, Acquire};

use crate::format::{Entry, repermitted};
use crate::span;
use crate::sync::AtomicU64;
use crate::table::{check_output, mapping};
use crate::{Format, Level, MapError, Mapping, PageTable, Permissions, PhysAddr, TableMemory};

/// How an installation ended; either way the address has a translation.
///
/// Exhaustive: the caller counts and acts by each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// A leaf of this level was written.
    New(Level),
    /// There was a leaf of this level for the same page, and the missing rights were added.
    Upgraded(Level),
    /// There was a leaf, perhaps another CPU's for the same fault, and it was left unchanged. If it
    /// does not allow the access, the access is an error, or the leaf must be split or replaced
    /// first.
    Present(Mapping),
}

/// A translation to install.
#[derive(Clone, Copy)]
struct Request {
    offset: u64,
    pa: PhysAddr,
    largest: Level,
    permissions: Permissions,
}

impl<F: Format, M: TableMemory> PageTable<F, M> {
    /// Maps the page around `address` to the one around `pa`, the largest possible up to `level`.
    ///
    /// The page is smaller where a table is in the way: then the piece around `address` is mapped.
    /// A mark is overwritten. If there is already a leaf to the same place that is no larger than
    /// `level` and allows less, the requested rights are added to it; no flush is needed. Any
    /// number of CPUs may do all this at once, also for the same address; one of them writes the
    /// leaf.
    ///
    /// # Errors
    ///
    /// [`MapError::Unaligned`] if the two addresses have different offsets within a page of
    /// `level`; [`MapError::OutOfRange`], [`MapError::Permissions`], [`MapError::OutOfTables`], and
    /// [`MapError::Raced`], upon which the guest may simply fault again.
    pub fn install(
        &self,
        address: u64,
        pa: PhysAddr,
        level: Level,
        permissions: Permissions,
    ) -> Result<Installed, MapError> {
        self.install_at(address, pa, level, permissions, false)
    }

    /// The same, but where a table is in the way nothing is installed: for users that must know
    /// before there are pages smaller than `level`, which must be a level at which the format has
    /// leaves.
    ///
    /// # Errors
    ///
    /// [`MapError::TooSmall`] if a table is in the way; and as for [`install`](Self::install).
    pub fn install_whole(
        &self,
        address: u64,
        pa: PhysAddr,
        level: Level,
        permissions: Permissions,
    ) -> Result<Installed, MapError> {
        self.install_at(address, pa, level, permissions, true)
    }

    fn install_at(
        &self,
        address: u64,
        pa: PhysAddr,
        level: Level,
        permissions: Permissions,
        whole: bool,
    ) -> Result<Installed, MapError> {
        let largest = level.min(F::LARGEST);
        let offset = span::offset::<F>(address).ok_or(MapError::OutOfRange)?;
        check_output::<F>(pa, 0)?;
        if !F::admits(permissions) {
            return Err(MapError::Permissions);
        }
        if (offset ^ pa.0) & largest.offset_mask() != 0 {
            return Err(MapError::Unaligned);
        }
        let request = Request { offset, pa, largest, permissions };
        let leaf = |at| F::leaf(pa.align_down(at), at, permissions);
        let (cell, at, entry) = match self.descend(offset, largest, whole, leaf)? {
            Found::Written(at) => return Ok(Installed::New(at)),
            Found::Leaf(cell, at, entry) => (cell, at, entry),
        };
        self.meet(cell, at, entry, request)
    }

    /// Marks the page of `address` as having nothing to install, with a number to recognise the
    /// mark. Returns whether the mark is there now; if not, the address has a translation.
    ///
    /// A mark is absent to the processor. The page gets the tables it needs; so where the guest
    /// chooses the address, the caller must bound the number of tables.
    ///
    /// # Errors
    ///
    /// [`MapError::OutOfRange`] for an address or a payload that cannot be expressed;
    /// [`MapError::OutOfTables`]; [`MapError::Raced`].
    pub fn mark(&self, address: u64, payload: u64) -> Result<bool, MapError> {
        let offset = span::offset::<F>(address).ok_or(MapError::OutOfRange)?;
        if payload > F::MARK_MAX {
            return Err(MapError::OutOfRange);
        }
        let found = self.descend(offset, Level::Page4K, false, |_| F::mark(payload))?;
        Ok(matches!(found, Found::Written(_)))
    }

    /// Walks to the entry of `offset`, creating tables down to `largest`, and writes the value that
    /// `new` returns for its level if nothing is mapped there.
    ///
    /// Each level is passed once, with at most one exchange on it, so the time is bounded whatever
    /// the other CPUs do. Release, and the barrier before it: the table is zero before it can be
    /// found.
    fn descend(
        &self,
        offset: u64,
        largest: Level,
        whole: bool,
        new: impl Fn(Level) -> u64,
    ) -> Result<Found<'_>, MapError> {
        let mut spare = Spare { memory: &self.memory, table: None };
        let (mut table, mut at) = (self.root, F::ROOT);
        loop {
            let cell = self.cell(table, at, offset);
            // Pairs with the exchange below, and with the editor's stores that link a table
            // (`split_leaf`).
            let mut entry = cell.load(Acquire);
            if Entry::decode::<F>(entry, at) == Entry::Absent {
                let is_last = at <= largest;
                let value = if is_last { new(at) } else { F::table(spare.allocate()?, at) };
                // Pairs with the loads of all walkers, the one above among them.
                entry = match cell.compare_exchange(entry, value, AcqRel, Acquire) {
                    Ok(_) if is_last => {
                        self.memory.publish();
                        return Ok(Found::Written(at));
                    }
                    Ok(_) => {
                        spare.published();
                        value
                    }
                    Err(other) => other,
                };
            }
            match (Entry::decode::<F>(entry, at), at.below()) {
                (Entry::Leaf(_), _) => return Ok(Found::Leaf(cell, at, entry)),
                (Entry::Table(_), _) if whole && at <= largest => return Err(MapError::TooSmall),
                (Entry::Table(next), Some(below)) => (table, at) = (next, below),
                _ => return Err(MapError::Raced),
            }
        }
    }

    /// The walk ended at a leaf: adds the missing rights if it is the leaf that would have been
    /// written.
    fn meet(&self, cell: &AtomicU64, at: Level, entry: u64, request: Request) -> Result<Installed, MapError> {
        let Request { offset, pa, largest, permissions } = request;
        let there = mapping::<F>(entry, at, offset);
        let missing = permissions - there.permissions - Permissions::TRACKED;
        let wanted = there.permissions | permissions;
        if missing.is_empty()
            || !Permissions::GROWING.contains(missing)
            || there.pa != pa
            || at > largest
            || !F::admits(wanted)
        {
            return Ok(Installed::Present(there));
        }
        // By exchange: the processor may make the leaf dirty, and an editor may remove it.
        // Pairs with the editor's exchanges of a leaf (`rewrite`, `exchange_framed`).
        match cell.compare_exchange(entry, repermitted::<F>(entry, at, wanted), AcqRel, Acquire) {
            Ok(_) => {
                self.memory.publish();
                Ok(Installed::Upgraded(at))
            }
            Err(other) if matches!(Entry::decode::<F>(other, at), Entry::Leaf(_)) => {
                let there = mapping::<F>(other, at, offset);
                let suffices = (permissions - there.permissions - Permissions::TRACKED).is_empty();
                if suffices { Ok(Installed::Present(there)) } else { Err(MapError::Raced) }
            }
            Err(_) => Err(MapError::Raced),
        }
    }
}

/// How a walk to an entry ended.
enum Found<'a> {
    /// It was written, at this level.
    Written(Level),
    /// It is a leaf.
    Leaf(&'a AtomicU64, Level, u64),
}

/// A table that may be needed. If another CPU's table got into the tree first, this one serves the
/// next level; if unused at the end it is returned. No processor has seen it.
struct Spare<'a, M: TableMemory> {
    memory: &'a M,
    table: Option<PhysAddr>,
}

impl<M: TableMemory> Spare<'_, M> {
    fn allocate(&mut self) -> Result<PhysAddr, MapError> {
        if self.table.is_none() {
            self.table = self.memory.allocate();
            self.memory.publish();
        }
        self.table.ok_or(MapError::OutOfTables)
    }

    /// The table is now part of the tree.
    fn published(&mut self) {
        self.table = None;
    }
}

impl<M: TableMemory> Drop for Spare<'_, M> {
    fn drop(&mut self) {
        if let Some(table) = self.table {
            // SAFETY: allocated from this memory, never entered in the tree, still all zero.
            unsafe { self.memory.free(table) };
        }
    }
}
