//! Nested page tables: pages of a pool, mapped one to one.

use core::fmt;
use core::ops::Range;

use alloc::boxed::Box;
use alloc::vec::Vec;
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
    memory: Mutex<Memory>,
}

/// Where the pages of a pool are.
#[derive(Debug)]
struct Memory {
    pieces: Vec<Range<u64>>,
    /// Bytes of guest memory for which there are enough tables.
    covered: u64,
}

impl NestedTables {
    /// Takes `count` pages, or as many as the tables for `memory` bytes and for `devices` bytes of
    /// registers need, and `others`; also returns their number.
    pub fn take(
        free: &mut FreeMemory,
        memory: u64,
        devices: u64,
        count: Option<u32>,
        others: u32,
    ) -> Option<(Self, u32)> {
        let count = count.unwrap_or_else(|| PagePool::needed(memory + devices)).saturating_add(others);
        let pool = Pool {
            pages: Mutex::default(),
            memory: Mutex::new(Memory { pieces: Vec::new(), covered: memory }),
        };
        let tables = Self(Box::leak(Box::new(pool)));
        if tables.grow(free, count).is_none() {
            // SAFETY: no table has been taken from the pool, and this is its only copy.
            unsafe { tables.give_back(free) };
            return None;
        }
        Some((tables, count))
    }

    /// Sees to it that there are tables for this many bytes of guest memory; `None` if there is not
    /// enough memory for them.
    pub fn cover(self, free: &mut FreeMemory, memory: u64) -> Option<()> {
        let more = memory.saturating_sub(self.0.memory.lock().covered);
        if more == 0 {
            return Some(());
        }
        self.grow(free, PagePool::needed_inside(more))?;
        self.0.memory.lock().covered = memory;
        Some(())
    }

    /// Pages that are in no table, and all.
    #[cfg(test)]
    pub(crate) fn pages(self) -> (u32, u32) {
        let pages = self.0.pages.lock();
        (pages.free_count(), pages.count())
    }

    fn grow(self, free: &mut FreeMemory, count: u32) -> Option<()> {
        let size = u64::from(count) * PAGE;
        let start = free.take(size, PAGE, u64::MAX)?;
        self.0.pages.lock().add(start, count);
        self.0.memory.lock().pieces.push(start..start + size);
        Some(())
    }

    /// Frees the pool, with all tables that are left in it.
    ///
    /// # Safety
    ///
    /// No processor walks a table of it any more, and no copy of this is used afterwards.
    pub unsafe fn give_back(self, free: &mut FreeMemory) {
        self.0.memory.lock().pieces.drain(..).for_each(|piece| free.add(piece));
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
