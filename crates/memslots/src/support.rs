//! Helpers shared by the tests and the models.

use paging::{Amd64Nested, Entries, NeverWalked, PageTable, PhysAddr, Stamp, TableMemory};

use crate::{Gpa, Slot, SlotFlags, SlotId};

pub(crate) const PAGE: u64 = 4096;

/// A slot of pages, named by a number.
pub(crate) fn slot(id: u16, gpa_page: u64, page_count: u64, host: u64) -> Slot {
    Slot {
        id: SlotId(id),
        gpa: Gpa(gpa_page * PAGE),
        size: page_count * PAGE,
        host: PhysAddr(host),
        flags: SlotFlags::empty(),
    }
}

/// Memory for one table, the root.
#[derive(Clone)]
struct OneTable;

// SAFETY: each page table that a test makes has a root only, which is never read.
unsafe impl TableMemory for OneTable {
    fn allocate(&self) -> Option<PhysAddr> {
        Some(PhysAddr(PAGE))
    }
    unsafe fn free(&self, _: PhysAddr) {}
    unsafe fn entries(&self, _: PhysAddr) -> &Entries {
        unreachable!("the table is never walked")
    }
}

/// Some stamp.
pub(crate) fn stamp() -> Stamp {
    PageTable::<Amd64Nested, _>::new(OneTable).unwrap().stamp()
}

/// A receipt for slots without translations.
pub(crate) fn receipt() -> NeverWalked {
    // SAFETY: there is no table, so no processor walks it.
    unsafe { NeverWalked::new() }
}
