//! The translations that a change of an address space needs flushed, and the memory that it frees.

use core::marker::PhantomData;
use core::mem::ManuallyDrop;

use crate::shootdown::range::PageRange;
use crate::shootdown::space::AddressSpace;

/// Whether a batch frees page tables.
pub trait Kind: sealed::Kind {}

/// The kind of a batch that frees pages, or nothing, but no page table.
///
/// Exhaustive: it has no values, only a name.
#[derive(Debug)]
pub enum Pages {}

/// The kind of a batch that may free page tables: each CPU that walks the space has to flush before
/// they are freed.
///
/// Exhaustive: it has no values, only a name.
#[derive(Debug)]
pub enum Tables {}

impl Kind for Pages {}
impl Kind for Tables {}

pub(super) mod sealed {
    /// The property that distinguishes the kinds.
    pub trait Kind {
        /// Page tables are freed.
        const TABLES: bool;
    }

    impl Kind for super::Pages {
        const TABLES: bool = false;
    }

    impl Kind for super::Tables {
        const TABLES: bool = true;
    }
}

/// Where a batch keeps items until they may be freed: the caller's list. `()` keeps nothing.
pub trait Cargo<T> {
    /// Keeps `item`.
    ///
    /// # Errors
    /// Returns the item if there is no room. Flush the batch then, and open another one.
    fn put(&mut self, item: T) -> Result<(), T>;
}

/// One change of an address space: opened before the first entry changes, ended by its flush.
///
/// From [`AddressSpace::batch`] on, the space counts as being changed: another batch that meets
/// entries changed by this one cannot know which of them need a flush, so it flushes everything.
/// Open the batch first, add each range after its entries were changed, and flush it soon.
///
/// The items that it holds are returned with the receipt and in no other way:
///
/// ```compile_fail,E0616
/// fn steal<C>(batch: quell_coherence::shootdown::Batch<'_, quell_coherence::shootdown::Pages, C, 1>) {
///     let _ = batch.cargo;
/// }
/// ```
///
/// A batch that is dropped without a flush leaks its items, and its space counts as being changed
/// forever.
///
/// A batch of [`Tables`] cannot become one of [`Pages`] again, and a batch of pages holds no
/// tables:
///
/// ```compile_fail,E0308
/// use quell_coherence::shootdown::{Batch, Pages, Tables};
/// fn forget(batch: Batch<'_, Tables, (), 1>) -> Batch<'_, Pages, (), 1> {
///     batch
/// }
/// ```
///
/// ```compile_fail,E0599
/// use quell_coherence::shootdown::{Batch, Cargo, Pages};
/// fn hold<C: Cargo<u64>>(batch: &mut Batch<'_, Pages, C, 1>, table: u64) {
///     let _ = batch.hold_table(table);
/// }
/// ```
#[must_use = "what was changed has not been flushed"]
#[derive(Debug)]
pub struct Batch<'a, K, C, const BANKS: usize> {
    pub(super) space: &'a AddressSpace<BANKS>,
    ranges: &'a mut [PageRange],
    len: usize,
    /// The ranges do not cover all changes.
    everything: bool,
    /// The batch holds an item.
    loaded: bool,
    /// Never dropped here: it is returned with a receipt, or leaked.
    cargo: ManuallyDrop<C>,
    kind: PhantomData<K>,
}

impl<'a, C, const BANKS: usize> Batch<'a, Pages, C, BANKS> {
    /// The caller has counted the batch as open.
    pub(super) fn new(space: &'a AddressSpace<BANKS>, ranges: &'a mut [PageRange], cargo: C) -> Self {
        Self {
            space,
            ranges,
            len: 0,
            everything: false,
            loaded: false,
            cargo: ManuallyDrop::new(cargo),
            kind: PhantomData,
        }
    }

    /// The same batch, extended to page tables. Call this before the first table is unlinked.
    pub fn freeing_tables(self) -> Batch<'a, Tables, C, BANKS> {
        let Self { space, ranges, len, everything, loaded, cargo, kind: _ } = self;
        Batch { space, ranges, len, everything, loaded, cargo, kind: PhantomData }
    }
}

impl<C, const BANKS: usize> Batch<'_, Tables, C, BANKS> {
    /// Keeps a page table that was unlinked. Its addresses are in a range, or will be.
    ///
    /// # Errors
    /// As [`Cargo::put`].
    pub fn hold_table<T>(&mut self, table: T) -> Result<(), T>
    where
        C: Cargo<T>,
    {
        self.hold(table)
    }
}

impl<K: Kind, C, const BANKS: usize> Batch<'_, K, C, BANKS> {
    /// Records that translations of these pages were changed. If the list has no room for the
    /// range, the batch flushes everything.
    pub fn add(&mut self, range: PageRange) {
        let range = range.normal();
        if range.pages == 0 {
            return;
        }
        let last = self.len.checked_sub(1).and_then(|last| self.ranges.get_mut(last));
        if let Some(last) = last
            && let Some(joined) = last.joined(range)
        {
            *last = joined;
        } else if let Some(free) = self.ranges.get_mut(self.len) {
            *free = range;
            self.len += 1;
        } else {
            self.everything = true;
        }
    }

    /// Records that any translation of the space may have been changed.
    pub fn add_everything(&mut self) {
        self.everything = true;
    }

    /// Keeps a page, or any other item that may be freed when the flush is over.
    ///
    /// # Errors
    /// As [`Cargo::put`].
    pub fn hold<T>(&mut self, item: T) -> Result<(), T>
    where
        C: Cargo<T>,
    {
        self.loaded = true;
        self.cargo.put(item)
    }

    /// The space being changed.
    pub fn space(&self) -> &AddressSpace<BANKS> {
        self.space
    }

    /// Nothing was changed or unlinked.
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0 && !self.everything && !self.loaded && !K::TABLES
    }

    /// The ranges to flush; `None` stands for everything.
    pub(super) fn scope(&self) -> Option<&[PageRange]> {
        // A batch that holds items but has no ranges flushes everything.
        if self.everything || self.len == 0 { None } else { self.ranges.get(..self.len) }
    }

    /// The flush is over.
    pub(super) fn into_cargo(self) -> C {
        ManuallyDrop::into_inner(self.cargo)
    }
}
