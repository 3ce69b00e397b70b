//! Table memory that detects leaks, double frees, use after free, and tables that are not zero when
//! freed.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::observer::Observer;
use crate::{Entries, FlushRange, PhysAddr, TableMemory};

/// The pretended address of the first table.
const BASE: u64 = 0x10_0000;

pub(super) struct Arena {
    tables: Vec<Entries>,
    in_use: Vec<AtomicBool>,
    /// Watches the operations on the tables, if set.
    observer: Mutex<Option<Observer>>,
    is_observed: AtomicBool,
    /// A feature of its processors.
    pub(super) resizes_in_place: AtomicBool,
}

impl Arena {
    pub(super) fn new(capacity: usize) -> Self {
        let tables = (0..capacity).map(|_| [const { AtomicU64::new(0) }; 512]).collect();
        let in_use = (0..capacity).map(|_| AtomicBool::new(false)).collect();
        let (is_observed, resizes_in_place) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { tables, in_use, observer: Mutex::new(None), is_observed, resizes_in_place }
    }

    pub(super) fn used_count(&self) -> usize {
        self.in_use.iter().filter(|used| used.load(Relaxed)).count()
    }

    /// The tables in use, with their entries.
    pub(super) fn used(&self) -> impl Iterator<Item = (PhysAddr, &Entries)> {
        let used = |index: &usize| self.in_use[*index].load(Relaxed);
        (0..self.tables.len()).filter(used).map(|index| (Self::address(index), &self.tables[index]))
    }

    fn address(index: usize) -> PhysAddr {
        PhysAddr(BASE + index as u64 * 4096)
    }

    fn index(table: PhysAddr) -> usize {
        assert_eq!(table.0 % 4096, 0, "{table:?} is not a table");
        ((table.0 - BASE) / 4096) as usize
    }

    /// Makes an observer watch a tree from now on.
    pub(super) fn watch(&self, observer: Observer) {
        *self.observer.lock().unwrap() = Some(observer);
        self.is_observed.store(true, Relaxed);
    }

    /// Queries or notifies the observer, if there is one.
    pub(super) fn observe<R>(&self, observe: impl FnOnce(&mut Observer) -> R) -> Option<R> {
        // Racing threads should not contend for the lock.
        let is_observed = self.is_observed.load(Relaxed);
        is_observed.then(|| self.observer.lock().unwrap().as_mut().map(observe)).flatten()
    }
}

// SAFETY: a table is allocated only while it is not in use, and zero, which `free` ensures.
unsafe impl TableMemory for &Arena {
    fn allocate(&self) -> Option<PhysAddr> {
        let take = |used: &AtomicBool| !used.load(Relaxed) && !used.swap(true, Relaxed);
        let index = self.in_use.iter().position(take)?;
        Some(Arena::address(index))
    }

    unsafe fn free(&self, table: PhysAddr) {
        let index = Arena::index(table);
        let is_zero = self.tables[index].iter().all(|entry| entry.load(Relaxed) == 0);
        assert!(is_zero, "{table:?} is freed with entries in it");
        let was_used = self.in_use[index].swap(false, Relaxed);
        assert!(was_used, "{table:?} is freed twice");
    }

    unsafe fn entries(&self, table: PhysAddr) -> &Entries {
        let index = Arena::index(table);
        assert!(self.in_use[index].load(Relaxed), "{table:?} is used after it was freed");
        &self.tables[index]
    }

    fn resizes_in_place(&self) -> bool {
        self.resizes_in_place.load(Relaxed)
    }

    fn publish(&self) {
        let _ = self.observe(|observer| observer.on_publish(self));
    }

    fn break_before_make(&self, range: FlushRange) {
        let _ = self.observe(|observer| observer.on_break(self, range));
    }
}
