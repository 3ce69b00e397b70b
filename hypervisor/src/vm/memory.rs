//! Nested page tables: pages of a pool, mapped one to one.

use core::fmt;
use core::ops::Range;

use alloc::boxed::Box;
use paging::{Entries, PhysAddr, TableMemory};
use spin::Mutex;

pub use crate::free_memory::FreeMemory;
use crate::page_pool::PagePool;

/// Size of a table in bytes.
pub const PAGE: u64 = 4096;

/// An allocator of nested page tables from the pool of one guest.
#[derive(Clone, Copy)]
pub struct NestedTables(&'static Pool);

#[derive(Debug)]
struct Pool {
    pages: Mutex<PagePool>,
    /// All of its memory.
    memory: Range<u64>,
}

impl NestedTables {
    /// Takes `count` pages, or as many as the tables for `memory` bytes need; also returns their
    /// number.
    pub fn take(free: &mut FreeMemory, memory: u64, count: Option<u32>) -> Option<(Self, u32)> {
        let count = count.unwrap_or_else(|| PagePool::needed(memory));
        let start = free.take(u64::from(count) * PAGE, PAGE, u64::MAX)?;
        let memory = start..start + u64::from(count) * PAGE;
        let pool = Pool { pages: Mutex::new(PagePool::new(start, count)), memory };
        Some((Self(Box::leak(Box::new(pool))), count))
    }

    /// Frees the pool, with all tables that are left in it.
    ///
    /// # Safety
    ///
    /// No processor walks a table of it any more, and no copy of this is used afterwards.
    pub unsafe fn give_back(self, free: &mut FreeMemory) {
        free.add(self.0.memory.clone());
        // SAFETY: made by `Box::leak` in `take`; the caller vouches for its disuse.
        drop(unsafe { Box::from_raw(core::ptr::from_ref(self.0).cast_mut()) });
    }
}

impl fmt::Debug for NestedTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NestedTables")
    }
}

// SAFETY: tables are pages of the pool, which are mapped one to one forever, so an address is a
// valid pointer until the table is freed; freeing is up to the caller's promise. They are zeroed
// before any other code can reach them.
unsafe impl TableMemory for NestedTables {
    fn allocate(&self) -> Option<PhysAddr> {
        let table = self.0.pages.lock().take()?;
        // SAFETY: the page is free RAM, mapped, and was just taken for this.
        unsafe { core::ptr::write_bytes(table as *mut u8, 0, PAGE as usize) };
        Some(PhysAddr(table))
    }

    unsafe fn free(&self, table: PhysAddr) {
        self.0.pages.lock().give(table.0);
    }

    unsafe fn entries(&self, table: PhysAddr) -> &Entries {
        // SAFETY: the caller vouches for the table; all bit patterns are valid entries.
        unsafe { &*(table.0 as *const Entries) }
    }
}
