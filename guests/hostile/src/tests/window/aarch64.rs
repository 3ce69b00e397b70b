//! Arm64: DDI 0487 M.b, D8.3.1 "VMSAv8-64 descriptor formats".

use crate::tests::prelude::*;

/// DDI 0487 M.b, D8.17.1: an entry must be invalid, and flushed, in between.
pub(in crate::tests) const CHANGES_AT_ONCE: bool = false;

/// Valid, a table or a page.
const PRESENT: u64 = 3;
/// Inner shareable, accessed, never executed.
const RIGHTS: u64 = 3 << 8 | 1 << 10 | 3 << 53;

pub(super) const fn page_entry(page: u64) -> u64 {
    page | PRESENT | RIGHTS
}

pub(in crate::tests) fn flush_here(address: u64) {
    // SAFETY: it drops translations, which are reloaded from the tables.
    unsafe {
        asm!("dsb nshst", "tlbi vaae1, {}", "dsb nsh", "isb", in(reg) address >> 12, options(nostack, preserves_flags));
    }
}
