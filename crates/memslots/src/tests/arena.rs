//! Tables from the heap, and operations of tests on a guest's memory.

use crate::space::{Fault, GuestSpace, Job, LogWay, Steps};
use crate::{DirtyLog, Retired, Slot, SlotFlags, SlotId};
use paging::{
    Amd64Nested, ENTRY_COUNT, Entries, FlushReceipt, Format, Gpa, Level, PhysAddr, Progress, Stamp,
    TableMemory,
};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::vec;
use std::vec::Vec;

pub(super) const PAGE: u64 = 4096;
pub(super) const MIB: u64 = 1 << 20;
/// Bit of a leaf that the processor sets on a store.
pub(super) const DIRTY: u64 = 1 << 6;
pub(super) const PRESENT: u64 = 1;
pub(super) const LARGE: u64 = 1 << 7;
pub(super) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Tables from the heap, with made-up addresses. A freed one may not be touched again.
pub(super) struct Arena {
    tables: Mutex<BTreeMap<u64, &'static Entries>>,
    next: AtomicU64,
    pub(super) limit: AtomicU64,
}

impl Arena {
    pub(super) fn new() -> &'static Self {
        let arena =
            Self { tables: Mutex::default(), next: AtomicU64::new(1), limit: AtomicU64::new(u64::MAX) };
        Box::leak(Box::new(arena))
    }

    pub(super) fn count(&self) -> usize {
        self.tables.lock().unwrap().len()
    }
}

// SAFETY: each table has an address of its own, and lives forever.
unsafe impl TableMemory for &Arena {
    fn allocate(&self) -> Option<PhysAddr> {
        self.limit.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).ok()?;
        let address = self.next.fetch_add(1, Relaxed) << 12;
        let table = Box::leak(Box::new([const { AtomicU64::new(0) }; ENTRY_COUNT]));
        self.tables.lock().unwrap().insert(address, table);
        Some(PhysAddr(address))
    }

    unsafe fn free(&self, table: PhysAddr) {
        self.tables.lock().unwrap().remove(&table.0).expect("a table is freed once");
    }

    unsafe fn entries(&self, table: PhysAddr) -> &Entries {
        self.tables.lock().unwrap().get(&table.0).expect("the table is not freed")
    }
}

pub(super) type TestMemory = GuestSpace<Amd64Nested, &'static Arena>;

/// A flush that was issued at that stamp and has completed.
pub(super) struct Flushed(pub(super) Stamp);

// SAFETY: no processor and no other thread has the tables of these tests.
unsafe impl FlushReceipt for Flushed {
    fn covers(&self, stamp: Stamp) -> bool {
        self.0.covers(stamp)
    }
}

pub(super) fn slot(id: u16, gpa: u64, size: u64) -> Slot {
    // 2 MiB pages fit: both addresses are aligned alike.
    Slot {
        id: SlotId(id),
        gpa: Gpa(gpa),
        size,
        host: PhysAddr(0x10_0000_0000 + gpa),
        flags: SlotFlags::empty(),
    }
}

pub(super) fn space(slots: &[Slot], largest: Level) -> (TestMemory, &'static Arena) {
    space_of(slots, largest)
}

/// A space with tables of any format.
pub(super) fn space_of<F: Format>(
    slots: &[Slot],
    largest: Level,
) -> (GuestSpace<F, &'static Arena>, &'static Arena) {
    // SAFETY: nothing in these tests accesses the memory.
    let memslots = unsafe { super::with(46, slots) };
    let arena = Arena::new();
    (GuestSpace::new(memslots, arena, largest).unwrap(), arena)
}

/// Begins the log of slot 0, which has this many pages.
pub(super) fn start_log<'s, F: Format>(
    space: &'s GuestSpace<F, &'static Arena>,
    pages: u64,
    way: LogWay,
) -> Job<'s, F, &'static Arena> {
    let words: &'static [_] = Vec::leak((0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect());
    // SAFETY: the words live forever.
    unsafe { space.start_log(SlotId(0), DirtyLog::new(words), way) }.unwrap()
}

/// Steps the job to its end; returns what it retired.
pub(super) fn run<F: Format>(space: &GuestSpace<F, &'static Arena>, job: impl Steps) -> Vec<Retired> {
    run_by(space, job, 3)
}

/// The same in steps of so many entries.
pub(super) fn run_by<F: Format>(
    space: &GuestSpace<F, &'static Arena>,
    mut job: impl Steps,
    entries_max: u32,
) -> Vec<Retired> {
    let mut retired = Vec::new();
    loop {
        match job.step(entries_max, |what| retired.push(what)) {
            Progress::More => {}
            Progress::Flush => assert!(job.flushed(&Flushed(space.stamp()))),
            Progress::Done => return retired,
            Progress::Waiting => panic!("nobody holds the old slots"),
            Progress::OutOfTables => unreachable!("a job zaps what it cannot split"),
        }
    }
}

pub(super) fn fetch<F: Format>(space: &GuestSpace<F, &'static Arena>, id: u16, words: usize) -> Vec<u64> {
    let mut bits = vec![0; words];
    run(space, space.fetch_log(SlotId(id), &mut bits).unwrap());
    bits
}

pub(super) fn touch<F: Format>(space: &GuestSpace<F, &'static Arena>, range: core::ops::Range<u64>) {
    for gpa in range.step_by(PAGE as usize) {
        assert!(matches!(space.fault(Gpa(gpa), true), Fault::Installed(_) | Fault::Upgraded | Fault::Retry));
    }
}

pub(super) fn leaf_count<F: Format>(
    space: &GuestSpace<F, &'static Arena>,
    range: core::ops::Range<u64>,
) -> usize {
    let mut count = 0;
    space.tables().for_each(range, |_, _| count += 1);
    count
}

/// The processor stores to `gpa`: its walk sets the dirty bit, and lists the page, which is marked
/// at once if lists are. Faults as often as necessary.
pub(super) fn store(space: &TestMemory, arena: &'static Arena, gpa: u64) {
    loop {
        let mut table = space.root().0;
        let mut level = Level::Page512G;
        let entry = loop {
            // SAFETY: reached from the root.
            let entries = unsafe { <&Arena as TableMemory>::entries(&arena, PhysAddr(table)) };
            let entry = &entries[level.index(gpa)];
            let value = entry.load(Relaxed);
            if value & PRESENT == 0 {
                break None;
            }
            match level.below() {
                Some(below) if value & LARGE == 0 => (table, level) = (value & ADDRESS, below),
                _ => break Some(entry),
            }
        };
        if let Some(entry) = entry
            && entry.load(Relaxed) & 2 != 0
        {
            if entry.fetch_or(DIRTY, Relaxed) & DIRTY == 0 && space.has_lists() {
                space.slots().memory().mark_dirty(gpa..gpa + 1);
            }
            return;
        }
        space.fault(Gpa(gpa), true);
    }
}
