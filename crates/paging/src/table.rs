//! The page table: reading it, and installing translations in it on faults.

use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

use crate::format::Entry;
use crate::gather::Stamp;
use crate::memory::Entries;
use crate::span::{self, Span, pieces};
use crate::{Format, Level, Permissions, PhysAddr, TableMemory};

/// Why a change of a page table was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// An address or length is not a multiple of the page size, or input and output address lie
    /// differently within the page.
    Unaligned,
    /// An address that the format cannot express, or a range that runs over the edge or through the
    /// non-canonical hole.
    OutOfRange,
    /// Permissions that the format cannot express or whose policy forbids, as W with X in
    /// [`Amd64Host`](crate::Amd64Host).
    Permissions,
    /// There is a mapping already.
    AlreadyMapped {
        /// The first input address that has one.
        address: u64,
    },
    /// There is no mapping to change.
    NotMapped {
        /// The first input address that lacks one.
        address: u64,
    },
    /// No memory for a table.
    OutOfTables,
    /// An entry changed under the walk; trying again is right.
    Raced,
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unaligned => f.write_str("not aligned to a page"),
            Self::OutOfRange => f.write_str("outside of what the format can address"),
            Self::Permissions => f.write_str("permissions that the format does not admit"),
            Self::AlreadyMapped { address } => write!(f, "{address:#x} is mapped already"),
            Self::NotMapped { address } => write!(f, "{address:#x} is not mapped"),
            Self::OutOfTables => f.write_str("no memory for a page table"),
            Self::Raced => f.write_str("the entry changed meanwhile"),
        }
    }
}

impl core::error::Error for MapError {}

/// A translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Where the address that was asked for leads to, not the start of its page.
    pub pa: PhysAddr,
    /// Size of the page.
    pub level: Level,
    /// What the leaf allows.
    pub permissions: Permissions,
}

/// How an installation ended; either way the address has a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// A leaf of this level was written.
    New(Level),
    /// There was a leaf, perhaps another CPU's that took the same fault, and it was left alone. If it
    /// does not allow the access, the access is an error.
    Present(Mapping),
}

/// Page tables of format `F` in memory `M`.
///
/// Shared, it can be read, and faults can [install](Self::install) absent translations from many CPUs
/// at once. Everything else takes it exclusively. So a hypervisor keeps it in a reader-writer lock:
/// faults share it, a zap excludes them. That, with the slots pinned from the lookup to the end of the
/// installation, is why no fault can bring back what a zap removed.
///
/// Every entry is written by compare-exchange or swap, because processors set accessed and dirty bits
/// meanwhile. Publication pairs as follows; the processor's walk is outside the language's memory model:
/// AMD64 walks observe stores in program order, so an entry is never seen before the table it points to.
///
/// | CPU 1 ([`install`](Self::install)) | CPU 2 ([`install`](Self::install), [`query`](Self::query)) |
/// |---|---|
/// | a: zero a new table | c: load the entry (Acquire) |
/// | b: compare-exchange the entry to it (Release) | d: read the table |
///
/// If c reads from b, then a is before d.
///
/// Dropping a page table leaks its tables, because a processor may walk them; [`dismantle`](Self::dismantle)
/// is the way to get them back.
pub struct PageTable<F: Format, M: TableMemory> {
    pub(crate) memory: M,
    pub(crate) root: PhysAddr,
    pub(crate) sequence: u64,
    format: PhantomData<fn() -> F>,
}

impl<F: Format, M: TableMemory> PageTable<F, M> {
    /// An empty page table.
    ///
    /// # Errors
    ///
    /// [`MapError::OutOfTables`] if there is no memory for the root.
    pub fn new(memory: M) -> Result<Self, MapError> {
        let root = memory.allocate().ok_or(MapError::OutOfTables)?;
        Ok(Self { memory, root, sequence: 0, format: PhantomData })
    }

    /// Address of the root table, for CR3, nCR3 or the like.
    pub fn root(&self) -> PhysAddr {
        self.root
    }

    /// The latest change that needs a flush. Sample it before a flush is issued, and keep it with the
    /// flush's receipt.
    pub fn stamp(&self) -> Stamp {
        Stamp { root: self.root, sequence: self.sequence }
    }

    /// Where `address` leads, or `None` if nowhere.
    pub fn query(&self, address: u64) -> Option<Mapping> {
        let offset = span::offset::<F>(address)?;
        let (mut table, mut level) = (self.root, F::ROOT);
        loop {
            match self.decode(self.cell(table, level, offset), level) {
                Entry::Absent => return None,
                Entry::Leaf(page, permissions) => return Some(mapping(page, level, permissions, offset)),
                Entry::Table(next) => (table, level) = (next, level.below()?),
            }
        }
    }

    /// Maps the page around `address` to the one around `pa`, the largest possible up to `level`.
    ///
    /// The page is smaller where a table is in the way: then the piece around `address` is mapped. Any
    /// number of CPUs may do this at once, for the same address too; one of them writes the leaf.
    ///
    /// # Errors
    ///
    /// [`MapError::Unaligned`] if the two addresses lie differently within a page of `level`;
    /// [`MapError::OutOfRange`], [`MapError::Permissions`], [`MapError::OutOfTables`], and
    /// [`MapError::Raced`], upon which the guest may just fault again.
    pub fn install(
        &self,
        address: u64,
        pa: PhysAddr,
        level: Level,
        permissions: Permissions,
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
        let mut spare = Spare { memory: &self.memory, table: None };
        let (mut table, mut at) = (self.root, F::ROOT);
        loop {
            let cell = self.cell(table, at, offset);
            let mut entry = cell.load(Acquire);
            if !F::is_present(entry) {
                let is_leaf = at <= largest;
                let new = if is_leaf {
                    F::leaf(pa.align_down(at), at, permissions)
                } else {
                    F::table(spare.allocate()?)
                };
                entry = match cell.compare_exchange(entry, new, AcqRel, Acquire) {
                    Ok(_) if is_leaf => return Ok(Installed::New(at)),
                    Ok(_) => {
                        spare.published();
                        new
                    }
                    Err(other) => other,
                };
            }
            match Entry::decode::<F>(entry, at) {
                Entry::Absent => return Err(MapError::Raced),
                Entry::Leaf(page, permissions) => {
                    return Ok(Installed::Present(mapping(page, at, permissions, offset)));
                }
                Entry::Table(next) => (table, at) = (next, at.below().ok_or(MapError::Raced)?),
            }
        }
    }

    /// Calls `visit` with the input addresses and the mapping of each leaf in `range`, in order; the
    /// mapping's address is that of the page's start.
    ///
    /// For audits, such as that nothing is both writable and executable.
    pub fn for_each(&self, range: Range<u64>, mut visit: impl FnMut(Range<u64>, Mapping)) {
        for span in span::widened::<F>(&range) {
            self.visit(self.root, F::ROOT, span, &mut |entry_start, level, entry| {
                if let Entry::Leaf(pa, permissions) = entry {
                    let start = span::address_of::<F>(entry_start);
                    visit(start..start.wrapping_add(level.size()), Mapping { pa, level, permissions });
                }
                true
            });
        }
    }

    /// Visits leaves and absences in a span, with their starts, until `visit` returns false. Returns
    /// whether it went through.
    pub(crate) fn visit(
        &self,
        table: PhysAddr,
        level: Level,
        span: Span,
        visit: &mut impl FnMut(u64, Level, Entry) -> bool,
    ) -> bool {
        pieces(span, level).all(|piece| {
            match (self.decode(self.cell(table, level, piece.span.start), level), level.below()) {
                (Entry::Table(next), Some(below)) => self.visit(next, below, piece.span, visit),
                (entry, _) => visit(piece.entry_start, level, entry),
            }
        })
    }

    pub(crate) fn entries(&self, table: PhysAddr) -> &Entries {
        // SAFETY: callers pass the root or a table that an entry of the tree points to. All of these came
        // from this memory, and are freed only by way of a gather, for which the tree is taken
        // exclusively; so not while `self` is borrowed.
        unsafe { self.memory.entries(table) }
    }

    /// The entry of `table` that covers `offset`.
    pub(crate) fn cell(&self, table: PhysAddr, level: Level, offset: u64) -> &AtomicU64 {
        &self.entries(table)[level.index(offset)]
    }

    /// Acquire: what the entry points to is read next.
    pub(crate) fn decode(&self, cell: &AtomicU64, level: Level) -> Entry {
        Entry::decode::<F>(cell.load(Acquire), level)
    }
}

impl<F: Format, M: TableMemory> fmt::Debug for PageTable<F, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageTable").field("root", &self.root).finish_non_exhaustive()
    }
}

/// Checks that `len` bytes from `pa` can be expressed in an entry.
pub(crate) fn check_output<F: Format>(pa: PhysAddr, len: u64) -> Result<(), MapError> {
    let last = pa.checked_add(len.saturating_sub(1)).ok_or(MapError::OutOfRange)?;
    if last.0 >> F::OUTPUT_BITS != 0 { Err(MapError::OutOfRange) } else { Ok(()) }
}

fn mapping(page: PhysAddr, level: Level, permissions: Permissions, offset: u64) -> Mapping {
    Mapping { pa: PhysAddr(page.0 | offset & level.offset_mask()), level, permissions }
}

/// A table that may be needed. If another CPU's got into the tree first, it serves the next level, and
/// what is left at the end goes back; no processor has seen it.
struct Spare<'a, M: TableMemory> {
    memory: &'a M,
    table: Option<PhysAddr>,
}

impl<M: TableMemory> Spare<'_, M> {
    fn allocate(&mut self) -> Result<PhysAddr, MapError> {
        if self.table.is_none() {
            self.table = self.memory.allocate();
        }
        self.table.ok_or(MapError::OutOfTables)
    }

    /// The table is part of the tree now.
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
