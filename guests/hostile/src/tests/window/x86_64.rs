//! AMD64: APM volume 2, section 5.4 "Long-mode page translation".

use crate::tests::prelude::*;
use x86_64::VirtAddr;
use x86_64::instructions::tlb;

/// APM volume 2, section 7.3.1: a flush after the change is enough.
pub(in crate::tests) const CHANGES_AT_ONCE: bool = true;

/// Present, writable, user.
const RIGHTS: u64 = 7;

unsafe extern "C" {
    static boot_pml4: [AtomicU64; 512];
}

pub(super) fn root() -> &'static [AtomicU64; 512] {
    // SAFETY: the table lives as long as the program and is changed by atomic stores only.
    unsafe { &boot_pml4 }
}

pub(super) fn table_entry(table: &Page) -> u64 {
    table.address() | RIGHTS
}

pub(super) const fn page_entry(page: u64) -> u64 {
    page | RIGHTS
}

/// Stores to tables are seen in program order.
pub(super) const fn complete() {}

pub(in crate::tests) fn flush_here(address: u64) {
    tlb::flush(VirtAddr::new_truncate(address));
}
