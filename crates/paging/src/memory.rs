//! The memory for tables.

use core::sync::atomic::Ordering::Relaxed;

use crate::sync::AtomicU64;
use crate::{ENTRY_COUNT, FlushRange, PhysAddr};

/// Stores per iteration of the loop that zeroes a table: the compiler does not merge atomic stores.
const STORES_UNROLLED: usize = 16;

/// A table as software sees it. Hardware may read it, and set bits in it, at any time.
pub type Entries = [AtomicU64; ENTRY_COUNT];

/// An allocator of tables that can access them and notify the processors that walk them. A handle:
/// clones stand for the same memory.
///
/// # Safety
///
/// [`allocate`](Self::allocate) returns a table that has no other user: 4 KiB, aligned to that, all
/// zero, at a physical address below 2^52, and it stays so until [`free`](Self::free). Clones share
/// all of this: a table of one is a table of the other. [`publish`](Self::publish) and
/// [`break_before_make`](Self::break_before_make) do what their documentation says where the
/// architecture needs it.
pub unsafe trait TableMemory: Clone {
    /// A zeroed table, or `None` when memory is short. Called with shared access to the page table,
    /// so from any CPU.
    fn allocate(&self) -> Option<PhysAddr>;

    /// Returns a table, which is all zero again.
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

    /// Makes the stores to entries so far visible to the walks of all processors, before any later
    /// step. On Arm: DSB ISHST. Nothing on AMD64, whose walks see stores in program order.
    fn publish(&self) {}

    /// Zeroes a table that nothing else can reach any more, before it is freed. An implementation
    /// with an instruction that zeroes a cache line can do it with fewer stores.
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
    /// such a table a leaf, in one store followed by a flush, although their format [does not in
    /// general](crate::Format::REPLACES_IN_PLACE): FEAT_BBM level 2, on processors that raise no
    /// conflict abort (DDI 0487, D8.17.1). The replaced entry is added to the gather's
    /// [ranges](crate::FlushRange), at its former size.
    fn resizes_in_place(&self) -> bool {
        false
    }

    /// Invalidates one entry that is being replaced, on all processors, and returns when that has
    /// completed. Called for formats that do not [replace in
    /// place](crate::Format::REPLACES_IN_PLACE), while the entry is invalid and after that was
    /// published; faults on it cannot proceed meanwhile.
    ///
    /// `range` is the extent of the entry, so its length gives the entry's level. If it was a leaf,
    /// [`tables`](FlushRange::tables) is false, `level` is its level, and one invalidation with
    /// that as the hint is enough. If it pointed to a table, `tables` is true, and everything in
    /// the range must be invalidated, at any level and without a hint.
    fn break_before_make(&self, range: FlushRange) {
        let _ = range;
    }
}
