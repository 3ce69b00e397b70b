//! Table memory that notices leaks, double frees, and tables that come back dirty.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Entries, PhysAddr, TableMemory};

/// Where the first table seems to be.
const BASE: u64 = 0x10_0000;

pub(super) struct Arena {
    tables: Vec<Entries>,
    in_use: Mutex<Vec<bool>>,
}

impl Arena {
    pub(super) fn new(capacity: usize) -> Self {
        let tables = (0..capacity).map(|_| [const { AtomicU64::new(0) }; 512]).collect();
        Self { tables, in_use: Mutex::new(vec![false; capacity]) }
    }

    pub(super) fn used_count(&self) -> usize {
        self.in_use.lock().unwrap().iter().filter(|&&used| used).count()
    }

    fn index(table: PhysAddr) -> usize {
        assert_eq!(table.0 % 4096, 0, "{table:?} is not a table");
        ((table.0 - BASE) / 4096) as usize
    }
}

// SAFETY: a table is handed out only while it is not in use, and zero, which `free` sees to.
unsafe impl TableMemory for &Arena {
    fn allocate(&self) -> Option<PhysAddr> {
        let mut in_use = self.in_use.lock().unwrap();
        let index = in_use.iter().position(|&used| !used)?;
        in_use[index] = true;
        Some(PhysAddr(BASE + index as u64 * 4096))
    }

    unsafe fn free(&self, table: PhysAddr) {
        let index = Arena::index(table);
        let is_zero = self.tables[index].iter().all(|entry| entry.load(Ordering::Relaxed) == 0);
        assert!(is_zero, "{table:?} is freed with entries in it");
        let was_used = std::mem::replace(&mut self.in_use.lock().unwrap()[index], false);
        assert!(was_used, "{table:?} is freed twice");
    }

    unsafe fn entries(&self, table: PhysAddr) -> &Entries {
        let index = Arena::index(table);
        assert!(self.in_use.lock().unwrap()[index], "{table:?} is used after it was freed");
        &self.tables[index]
    }
}
