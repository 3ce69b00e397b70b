//! Where tables come from.

use core::sync::atomic::Ordering::Relaxed;

use crate::sync::AtomicU64;
use crate::{ENTRY_COUNT, FlushRange, PhysAddr};

/// Stores in one turn of the loop that zeroes a table: atomic stores are not merged by the
/// compiler.
const STORES_UNROLLED: usize = 16;

/// A table as software sees it. Hardware reads it, and sets bits in it, at any time.
pub type Entries = [AtomicU64; ENTRY_COUNT];

/// An allocator of tables that knows how to reach them, and how to speak to the processors that
/// walk them. A handle: clones stand for the same memory.
///
/// # Safety
///
/// [`allocate`](Self::allocate) returns a table that nobody else uses: 4 KiB, aligned to that, all
/// zero, at a physical address below 2^52, and it stays so until [`free`](Self::free). Clones share
/// all of this: a table of one is a table of the other. [`publish`](Self::publish) and
/// [`break_before_make`](Self::break_before_make) do what they say where the architecture needs it.
pub unsafe trait TableMemory: Clone {
    /// A zeroed table, or `None` when memory is short. Called with the page table shared, so from
    /// any CPU.
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

    /// Makes the stores to entries so far visible to the walks of all processors, before what
    /// follows. On Arm: DSB ISHST. Nothing on AMD64, whose walks see stores in program order.
    fn publish(&self) {}

    /// Zeroes a table that nobody else reaches any more, before it is freed. A caller that has an
    /// instruction that zeroes a cache line can do it with fewer stores.
    ///
    /// # Safety
    ///
    /// As for [`free`](Self::free).
    unsafe fn clear(&self, table: PhysAddr) {
        // SAFETY: the caller's promise covers it.
        let entries = unsafe { self.entries(table) };
        let (chunks, rest) = entries.as_chunks::<STORES_UNROLLED>();
        for chunk in chunks {
            for entry in chunk {
                entry.store(0, Relaxed);
            }
        }
        for entry in rest {
            entry.store(0, Relaxed);
        }
    }

    /// Whether the processors let a leaf become a table of leaves that lead to the same memory, and
    /// such a table a leaf, in one store that is followed by a flush, although their format [does
    /// not say so](crate::Format::REPLACES_IN_PLACE) in general: FEAT_BBM level 2, on processors
    /// that raise no conflict abort (DDI 0487, D8.17.1). What is replaced gets into the gather's
    /// [ranges](crate::FlushRange), at the size that it had.
    fn resizes_in_place(&self) -> bool {
        false
    }

    /// Invalidates one entry that is being replaced, on all processors, and returns when that has
    /// completed. Called for formats that do not [replace in
    /// place](crate::Format::REPLACES_IN_PLACE), while the entry is invalid and after that was
    /// published; faults on it do not get through meanwhile.
    ///
    /// `range` is what the entry covers, so its length names the entry's level. If it was a leaf,
    /// [`tables`](FlushRange::tables) is false, `level` is its level, and one invalidation with
    /// that as the hint does. If it pointed to a table, `tables` is true, and what is below goes as
    /// well: all that is in the range, at any level, and without a hint.
    fn break_before_make(&self, range: FlushRange) {
        let _ = range;
    }
}
