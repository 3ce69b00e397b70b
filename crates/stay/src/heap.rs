//! Tables for tests.

use core::sync::atomic::AtomicU64;
use paging::{ENTRY_COUNT, Entries, PhysAddr, TableMemory};
use std::boxed::Box;

/// A table on the heap, for ever.
#[repr(align(4096))]
struct Table([AtomicU64; ENTRY_COUNT]);

#[derive(Clone, Debug)]
pub(crate) struct Heap;

#[expect(unsafe_code, reason = "tables of a test, by which nothing translates")]
// SAFETY: each table is a page of its own, zeroed, and never freed.
unsafe impl TableMemory for Heap {
    fn allocate(&self) -> Option<PhysAddr> {
        let table = Box::leak(Box::new(Table(core::array::from_fn(|_| AtomicU64::new(0)))));
        Some(PhysAddr(core::ptr::from_ref(table).expose_provenance() as u64))
    }

    unsafe fn free(&self, _: PhysAddr) {}

    unsafe fn entries(&self, table: PhysAddr) -> &Entries {
        // SAFETY: the caller says that it is one of the tables.
        unsafe { &(*core::ptr::with_exposed_provenance::<Table>(table.0 as usize)).0 }
    }
}
