//! AMD64: APM volume 2, section 5.4 "Long-mode page translation".

use x86_64::VirtAddr;
use x86_64::instructions::tlb;

/// APM volume 2, section 7.3.1: a flush after the change is enough.
pub(in crate::tests) const CHANGES_AT_ONCE: bool = true;

/// Present, writable, user.
const RIGHTS: u64 = 7;

pub(super) const fn page_entry(page: u64) -> u64 {
    page | RIGHTS
}

pub(in crate::tests) fn flush_here(address: u64) {
    tlb::flush(VirtAddr::new_truncate(address));
}
