//! Proof that a flush has completed, from the page tables' point of view.

use crate::PhysAddr;

/// Identifies one change of one page table. Later changes of the same table have later stamps, and
/// no stamp is used twice, even if another table later gets the same root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub(crate) root: PhysAddr,
    pub(crate) sequence: u64,
}

impl Stamp {
    /// The table's root.
    pub const fn root(self) -> PhysAddr {
        self.root
    }

    /// Number of the change: 0 before the first. It grows, but not by one.
    pub const fn sequence(self) -> u64 {
        self.sequence
    }

    /// Whether a flush that was issued when the table's stamp was `self` covers the change
    /// `earlier`.
    pub fn covers(self, earlier: Self) -> bool {
        self.root == earlier.root && self.sequence >= earlier.sequence
    }
}

/// Proof that a flush has completed. Only such a proof frees tables and frames.
///
/// With the feature `coherence` that flush engine's receipt implements this, and nothing else is
/// needed. A user of another engine implements this for a type that holds the engine's receipt
/// together with the table's [stamp](crate::PageTable::stamp), **sampled before the flush was
/// issued**.
///
/// # Safety
///
/// When `covers(stamp)` is true, then for the change `stamp` and all before it
///
/// * no processor holds or will use a translation that was removed, or an upper-level entry of a
///   table that was cut off, and all effects of accesses through them are visible;
/// * no call of a method of the [`PageTable`](crate::PageTable) that takes it shared and began
///   before the flush was issued is still in progress, except for changes: such a walk is a walk
///   cache, too. An engine that waits for translations by software, as it must for emulated
///   accesses, ensures that if nested faults are handled in such a section.
pub unsafe trait FlushReceipt {
    /// Whether the flush was issued after the change `stamp`, and has completed on every processor.
    fn covers(&self, stamp: Stamp) -> bool;
}

// SAFETY: the engine makes its receipt when the last of the walkers has been waited for, and takes
// the stamp before it sends a request to the first. For each walker it guarantees that no earlier
// translation is used any more and that no section is still open in which software walks on its
// behalf. Implementing `quell_coherence::Walkers` promises that there are no other walkers.
#[cfg(feature = "coherence")]
unsafe impl FlushReceipt for quell_coherence::SpaceReceipt<Stamp> {
    fn covers(&self, stamp: Stamp) -> bool {
        self.stamp().covers(stamp)
    }
}

/// The receipt for a table that no processor has walked yet.
#[derive(Debug)]
pub struct NeverWalked(());

impl NeverWalked {
    /// A receipt without a flush.
    ///
    /// # Safety
    ///
    /// No processor has been given the root of any table that this receipt is used for, and no
    /// other software walks them at the time of use.
    pub unsafe fn new() -> Self {
        Self(())
    }
}

// SAFETY: a processor that never had the root holds none of the table's translations, and the
// creator of the receipt vouches for software.
unsafe impl FlushReceipt for NeverWalked {
    fn covers(&self, _: Stamp) -> bool {
        true
    }
}
