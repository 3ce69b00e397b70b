//! Where tables come from.

use crate::sync::AtomicU64;
use crate::{ENTRY_COUNT, FlushRange, PhysAddr};

/// A table as software sees it. Hardware reads it, and sets bits in it, at any time.
pub type Entries = [AtomicU64; ENTRY_COUNT];

/// An allocator of tables that knows how to reach them, and how to speak to the processors that walk
/// them. A handle: clones stand for the same memory.
///
/// # Safety
///
/// [`allocate`](Self::allocate) returns a table that nobody else uses: 4 KiB, aligned to that, all
/// zero, at a physical address below 2^52, and it stays so until [`free`](Self::free). Clones share
/// all of this: a table of one is a table of the other. [`publish`](Self::publish) and
/// [`break_before_make`](Self::break_before_make) do what they say where the architecture needs it.
pub unsafe trait TableMemory: Clone {
    /// A zeroed table, or `None` when memory is short. Called with the page table shared, so from any
    /// CPU.
    fn allocate(&self) -> Option<PhysAddr>;

    /// Takes back a table, which is all zero again.
    ///
    /// # Safety
    ///
    /// `table` came from [`allocate`](Self::allocate) of this memory, has not been freed since, and
    /// neither software nor any processor's walk will touch it again.
    unsafe fn free(&self, table: PhysAddr);

    /// The entries of a table.
    ///
    /// # Safety
    ///
    /// `table` came from [`allocate`](Self::allocate) of this memory and is not freed while the
    /// reference lives.
    unsafe fn entries(&self, table: PhysAddr) -> &Entries;

    /// Makes the stores to entries so far visible to the walks of all processors, before what follows.
    /// On Arm: DSB ISHST. Nothing on AMD64, whose walks see stores in program order.
    fn publish(&self) {}

    /// Invalidates `range` on all processors, upper-level entries too, and returns when that has
    /// completed. Called for formats that do not [replace in
    /// place](crate::Format::REPLACES_IN_PLACE), while the entry above the range is invalid and after it
    /// was published; faults on it do not get through meanwhile.
    fn break_before_make(&self, range: FlushRange) {
        let _ = range;
    }
}
