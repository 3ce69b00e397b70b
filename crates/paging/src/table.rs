//! The page table, and reading it.

use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use core::sync::atomic::Ordering::Acquire;

use crate::format::Entry;
use crate::span::{self, Span, pieces};
use crate::sync::{AtomicBool, AtomicU64};
use crate::{Entries, Format, Level, Permissions, PhysAddr, Stamp, TableMemory};

/// Why a change of a page table was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MapError {
    /// An address or length is not a multiple of the page size, or input and output address have
    /// different offsets within the page.
    Unaligned,
    /// An address that the format cannot express, a range that crosses the end of the address space
    /// or the non-canonical hole, or a mark's payload that is too large.
    OutOfRange,
    /// Permissions that the format cannot express or whose policy forbids them, such as W with X in
    /// [`Amd64Host`](crate::Amd64Host).
    Permissions,
    /// A mapping exists already.
    AlreadyMapped {
        /// The first mapped input address.
        address: u64,
    },
    /// There is no mapping to change.
    NotMapped {
        /// The first input address without a mapping.
        address: u64,
    },
    /// A table is in the way, so only a smaller page could be mapped.
    TooSmall,
    /// No memory for a table.
    OutOfTables,
    /// An entry changed during the walk; retry.
    Raced,
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unaligned => f.write_str("not aligned to a page"),
            Self::OutOfRange => f.write_str("outside of what the format can express"),
            Self::Permissions => f.write_str("permissions that the format does not admit"),
            Self::AlreadyMapped { address } => write!(f, "{address:#x} is mapped already"),
            Self::NotMapped { address } => write!(f, "{address:#x} is not mapped"),
            Self::TooSmall => f.write_str("only a smaller page could be mapped"),
            Self::OutOfTables => f.write_str("no memory for a page table"),
            Self::Raced => f.write_str("the entry changed meanwhile"),
        }
    }
}

impl core::error::Error for MapError {}

/// A translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The target of the address itself, not of the start of its page.
    pub pa: PhysAddr,
    /// Size of the page.
    pub level: Level,
    /// The permissions of the leaf.
    pub permissions: Permissions,
    /// Whether there may have been a store through the leaf; see [`Permissions::TRACKED`].
    pub is_dirty: bool,
}

/// The contents of an entry at an address.
///
/// Exhaustive: an entry is one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// A translation.
    Mapped(Mapping),
    /// A [mark](PageTable::mark) with this payload.
    Marked(u64),
    /// Nothing.
    Absent,
}

/// Page tables of format `F` in memory `M`.
///
/// All methods that take it shared may be called on any number of CPUs at once: reading, installing
/// translations on faults, marking, and one [`Editor`](crate::Editor) that changes and removes
/// them. There is no lock; the [crate's documentation](crate#concurrency) explains how they are
/// kept apart. Methods that take it exclusively are for set-up and for users with their own lock.
///
/// Dropping a page table leaks its tables, because a processor may walk them;
/// [`dismantle`](Self::dismantle) recovers them.
pub struct PageTable<F: Format, M: TableMemory> {
    pub(crate) memory: M,
    pub(crate) root: PhysAddr,
    /// Sequence number of the latest change that has left something to flush.
    pub(crate) sequence: AtomicU64,
    /// Whether there is an editor.
    pub(crate) is_edited: AtomicBool,
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
        let (sequence, is_edited) = (AtomicU64::new(0), AtomicBool::new(false));
        Ok(Self { memory, root, sequence, is_edited, format: PhantomData })
    }

    /// The allocator of its tables.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Address of the root table, for CR3, nCR3 or the like.
    pub fn root(&self) -> PhysAddr {
        self.root
    }

    /// The latest change that needs a flush. Sample it before a flush is issued, and keep it with
    /// the flush's receipt.
    ///
    /// Acquire, and pairs with the release in which a [`Gather`](crate::Gather) gets its stamp:
    /// entries removed by changes up to this one are absent for any later step.
    pub fn stamp(&self) -> Stamp {
        Stamp { root: self.root, sequence: self.sequence.load(Acquire) }
    }

    /// The translation of `address`, or `None` if it has none.
    pub fn query(&self, address: u64) -> Option<Mapping> {
        match self.look(address) {
            Look::Mapped(mapping) => Some(mapping),
            Look::Marked(_) | Look::Absent => None,
        }
    }

    /// The contents of the entry at `address`.
    pub fn look(&self, address: u64) -> Look {
        let Some(offset) = span::offset::<F>(address) else { return Look::Absent };
        let (mut table, mut level) = (self.root, F::ROOT);
        loop {
            // Acquire: the entry's target is read next.
            // It pairs with the exchange or store that linked the table (`descend`, `split_leaf`).
            let entry = self.cell(table, level, offset).load(Acquire);
            match (Entry::decode::<F>(entry, level), level.below()) {
                (Entry::Leaf(_), _) => return Look::Mapped(mapping::<F>(entry, level, offset)),
                (Entry::Table(next), Some(below)) => (table, level) = (next, below),
                _ => return F::marked(entry).map_or(Look::Absent, Look::Marked),
            }
        }
    }

    /// Whether there is a table of `level` for `address`, so that [`mark`](Self::mark) needs no new
    /// one.
    pub fn has_table(&self, address: u64, level: Level) -> bool {
        let Some(offset) = span::offset::<F>(address) else { return false };
        let (mut table, mut at) = (self.root, F::ROOT);
        while at > level {
            // Pairs with the exchange or store that linked the table (`descend`, `split_leaf`).
            let entry = self.cell(table, at, offset).load(Acquire);
            match (Entry::decode::<F>(entry, at), at.below()) {
                (Entry::Table(next), Some(below)) => (table, at) = (next, below),
                _ => return false,
            }
        }
        true
    }

    /// Calls `visit` with the input addresses and the mapping of each leaf in `range`, in order;
    /// the mapping's address is that of the page's start.
    ///
    /// For audits, such as that nothing is both writable and executable. For entries that change
    /// meanwhile it finds the old or the new state.
    pub fn for_each(&self, range: Range<u64>, mut visit: impl FnMut(Range<u64>, Mapping)) {
        for span in span::widened::<F>(&range) {
            self.visit(self.root, F::ROOT, span, &mut |start, level, entry| {
                if let Entry::Leaf(_) = Entry::decode::<F>(entry, level) {
                    let address = span::address_of::<F>(start);
                    visit(address..address.wrapping_add(level.size()), mapping::<F>(entry, level, start));
                }
                true
            });
        }
    }

    /// Visits the entries in a span that do not point to tables, with the starts of their extents,
    /// until `visit` returns false. Returns whether it visited all.
    pub(crate) fn visit(
        &self,
        table: PhysAddr,
        level: Level,
        span: Span,
        visit: &mut impl FnMut(u64, Level, u64) -> bool,
    ) -> bool {
        pieces(span, level).all(|piece| {
            // Pairs with the exchange or store that linked the table (`descend`, `split_leaf`).
            let entry = self.cell(table, level, piece.span.start).load(Acquire);
            match (Entry::decode::<F>(entry, level), level.below()) {
                (Entry::Table(next), Some(below)) => self.visit(next, below, piece.span, visit),
                _ => visit(piece.entry_start, level, entry),
            }
        })
    }

    pub(crate) fn entries(&self, table: PhysAddr) -> &Entries {
        // SAFETY: callers pass the root, or a table that an entry of the tree points to or pointed
        // to when the caller's walk read it. All of these came from this memory. They are freed
        // only by a gather, for a receipt, and a receipt guarantees that walks in progress have
        // ended. The editor's own walk uses only tables that no gather has yet.
        unsafe { self.memory.entries(table) }
    }

    /// The entry of `table` that covers `offset`.
    pub(crate) fn cell(&self, table: PhysAddr, level: Level, offset: u64) -> &AtomicU64 {
        &self.entries(table)[level.index(offset)]
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

/// The translation of `offset` by a leaf of `level`.
pub(crate) fn mapping<F: Format>(leaf: u64, level: Level, offset: u64) -> Mapping {
    Mapping {
        pa: PhysAddr(F::address(leaf, level).0 | offset & level.offset_mask()),
        level,
        permissions: F::permissions(leaf),
        is_dirty: F::is_dirty(leaf),
    }
}
