//! The memory of the tables by which an SMMU translates for a guest's devices
//! ([`stay::iommu::mirror`]).

use alloc::sync::Arc;
use alloc::vec::Vec;
use paging::{Entries, PhysAddr, TableMemory};
use spin::Mutex;

use crate::pages::Pages;
use crate::vm::dma::Tickets;

/// The tables.
pub type Mirror = stay::iommu::mirror::Mirror<Memory, Tickets>;

/// Pages from the heap, which live as long as the tables.
#[derive(Clone)]
pub struct Memory {
    pages: Arc<Mutex<Vec<Pages>>>,
    publish: fn(),
}

impl Memory {
    /// `publish` makes stores visible to the SMMU's walks.
    pub fn new(publish: fn()) -> Self {
        Self { pages: Arc::default(), publish }
    }
}

// SAFETY: each table is a page of its own, zeroed, mapped one to one, and freed with the last
// clone: with the tables.
unsafe impl TableMemory for Memory {
    fn allocate(&self) -> Option<PhysAddr> {
        let page = Pages::try_one()?;
        let table = PhysAddr(page.start());
        self.pages.lock().push(page);
        Some(table)
    }

    /// It is kept: see the type.
    unsafe fn free(&self, _: PhysAddr) {}

    unsafe fn entries(&self, table: PhysAddr) -> &Entries {
        // SAFETY: the caller says that it is one of the pages, which has room for the entries, and
        // is accessed by them only.
        unsafe { &*(table.0 as *const Entries) }
    }

    fn publish(&self) {
        (self.publish)();
    }
}
