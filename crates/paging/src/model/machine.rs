//! The environment of the walker: small tables, and processors that walk them and store through the
//! translations they find.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use crate::format::{Entry, is_frozen};
use crate::sync::AtomicU64;
use crate::{
    Amd64Nested, Entries, FlushReceipt, Format, Gather, Invalidation, Level, PageTable, Permissions,
    PhysAddr, Stamp, TableMemory,
};

/// AMD64's entries in a tree of `LEVELS` levels, 2 or 3, of tables with two entries each.
pub(super) struct Tiny<const LEVELS: u32>;

impl<const LEVELS: u32> Tiny<LEVELS> {
    /// The span of an entry of the root.
    pub(super) fn entry_len() -> u64 {
        Self::ROOT.size()
    }
}

impl<const LEVELS: u32> Format for Tiny<LEVELS> {
    const INPUT_BITS: u32 = 12 + LEVELS;
    const ROOT: Level = if LEVELS == 2 { Level::Page2M } else { Level::Page1G };
    const LARGEST: Level = Level::Page2M;

    crate::format_like! { Amd64Nested:
        SIGN_EXTENDED OUTPUT_BITS REPLACES_IN_PLACE SETTLED
        admits is_present is_leaf leaf table address permissions is_dirty protected dirtied cleaned
    }
}

pub(super) type Table<const LEVELS: u32> = PageTable<Tiny<LEVELS>, Memory>;

const CAPACITY: usize = 5;

/// Tables that are never reused, so that the allocator orders nothing.
#[derive(Clone)]
pub(super) struct Memory(Arc<Tables>);

struct Tables {
    all: Vec<Entries>,
    taken: AtomicUsize,
    used: AtomicUsize,
    /// Tables that were freed, except those that were never used.
    freed: AtomicUsize,
}

impl Memory {
    pub(super) fn new() -> Self {
        let all = (0..CAPACITY).map(|_| core::array::from_fn(|_| AtomicU64::new(0))).collect();
        let [taken, used, freed] = [const { AtomicUsize::new(0) }; 3];
        Self(Arc::new(Tables { all, taken, used, freed }))
    }

    /// Number of tables that were taken and not returned unused.
    pub(super) fn used_count(&self) -> usize {
        self.0.used.load(Relaxed)
    }
}

// SAFETY: each table is allocated once.
unsafe impl TableMemory for Memory {
    fn allocate(&self) -> Option<PhysAddr> {
        self.0.used.fetch_add(1, Relaxed);
        let index = self.0.taken.fetch_add(1, Relaxed);
        Some(PhysAddr((index as u64 + 1) << 12))
    }
    unsafe fn free(&self, table: PhysAddr) {
        self.0.used.fetch_sub(1, Relaxed);
        let bit = 1 << (table.0 >> 12);
        assert!(self.0.freed.fetch_or(bit, Relaxed) & bit == 0, "a table is freed twice");
    }
    unsafe fn clear(&self, table: PhysAddr) {
        // SAFETY: as the caller promises. Loom does not order a store after an exchange that it
        // overwrites.
        unsafe { self.entries(table) }.iter().for_each(|entry| {
            entry.swap(0, Relaxed);
        });
    }
    unsafe fn entries(&self, table: PhysAddr) -> &Entries {
        let is_free = self.0.freed.load(Relaxed) >> (table.0 >> 12) & 1 != 0;
        assert!(!is_free, "a walk is in a table that is free");
        &self.0.all[(table.0 >> 12) as usize - 1]
    }
}

/// A processor's walk: the last entry, and its value.
pub(super) fn walk<const N: u32>(table: &Table<N>, address: u64) -> (&AtomicU64, u64) {
    walk_by(table, address, |cell| cell.load(Acquire))
}

/// The final value of an entry. Loom lets a load find a value that an exchange has replaced, if the
/// exchange and the latest store are not ordered otherwise; a read-modify-write finds the latest.
fn latest(cell: &AtomicU64) -> u64 {
    cell.fetch_or(0, AcqRel)
}

/// The contents at `address` when all threads have ended.
pub(super) fn last<const N: u32>(table: &Table<N>, address: u64) -> u64 {
    walk_by(table, address, latest).1
}

fn walk_by<const N: u32>(
    table: &Table<N>,
    address: u64,
    read: impl Fn(&AtomicU64) -> u64,
) -> (&AtomicU64, u64) {
    let (mut at, mut level) = (table.root(), Tiny::<N>::ROOT);
    loop {
        let cell = table.cell(at, level, address);
        let entry = read(cell);
        match (Entry::decode::<Tiny<N>>(entry, level), level.below()) {
            (Entry::Table(next), Some(below)) => (at, level) = (next, below),
            _ => return (cell, entry),
        }
    }
}

/// The leaf that a processor may hold for `address`, if any.
pub(super) fn cached<const N: u32>(table: &Table<N>, address: u64) -> Option<u64> {
    let (_, entry) = walk(table, address);
    Amd64Nested::is_present(entry).then_some(entry)
}

/// A processor's store. Returns whether it succeeded.
pub(super) fn store<const N: u32>(table: &Table<N>, address: u64) -> bool {
    // Each iteration after the first finds a change by an editor or a fault; there is one of each.
    for _ in 0..3 {
        let (cell, entry) = walk(table, address);
        let allows =
            Amd64Nested::is_present(entry) && Amd64Nested::permissions(entry).contains(Permissions::WRITE);
        if !allows {
            return false;
        }
        let dirty = Amd64Nested::dirtied(entry);
        if dirty == entry || cell.compare_exchange(entry, dirty, AcqRel, Acquire).is_ok() {
            return true;
        }
    }
    false
}

/// Checks that a leaf that a processor cached is still right, or will be flushed.
pub(super) fn check_cached<const N: u32>(
    table: &Table<N>,
    gather: &Gather<Memory>,
    address: u64,
    held: Option<u64>,
) {
    let Some(held) = held else { return };
    let is_flushed = match gather.invalidation() {
        Invalidation::Nothing => false,
        Invalidation::Everything => true,
        Invalidation::Ranges(ranges) => {
            ranges.iter().any(|range| (range.start..range.start + range.len).contains(&address))
        }
    };
    let now = last(table, address);
    let is_right = Amd64Nested::is_present(now)
        && Amd64Nested::permissions(now).contains(Amd64Nested::permissions(held))
        && (Amd64Nested::is_dirty(now) || !Amd64Nested::is_dirty(held));
    assert!(is_flushed || is_right, "a stale translation is not flushed");
}

/// Checks that nothing was put into a table after it was emptied.
pub(super) fn check_frozen<const N: u32>(table: &Table<N>, cut: PhysAddr) {
    let is_frozen = table.entries(cut).iter().all(|entry| is_frozen(latest(entry)));
    assert!(is_frozen, "a table that was cut off is filled");
}

/// Takes the tree down; every table must be in it or in the gather. The threads have ended.
pub(super) fn check_tables<const N: u32>(table: Table<N>, memory: &Memory, gather: Gather<Memory>) {
    let used_count = memory.used_count();
    let receipt = IssuedAt(table.stamp());
    let held_count = gather.release(&receipt).expect("nobody walks").table_count;
    let receipt = IssuedAt(Stamp { root: table.root(), sequence: u64::MAX });
    let rest_count = table.dismantle().release(&receipt).expect("nobody walks").table_count;
    assert_eq!(held_count + rest_count, used_count, "a table was lost");
}

/// A receipt for a flush that was issued at a stamp.
pub(super) struct IssuedAt(pub(super) Stamp);

// SAFETY: the model's processors are threads that have ended when it is used.
unsafe impl FlushReceipt for IssuedAt {
    fn covers(&self, stamp: Stamp) -> bool {
        self.0.covers(stamp)
    }
}
