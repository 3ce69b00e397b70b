//! The hypervisor's own page tables: stage 1 of EL2.
//!
//! Everything is mapped one to one. Text is executable, read-only data readable, all other memory
//! writable; nothing is both writable and executable. The guard pages of the stacks are not mapped.

use baremetal::pages::PAGE;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use paging::{Level, MapError, PageTable, Permissions, PhysAddr};

use crate::arm64::el2_stage1::El2Stage1;
use crate::image::heap::{HeapTables, protect};

const MIB2: u64 = 2 << 20;

/// Root of the tables that all CPUs use.
static ROOT: AtomicU64 = AtomicU64::new(0);

/// Builds the hypervisor's own tables.
///
/// `ram` is all RAM, `devices` ranges of registers, `blocks` the CPUs' blocks, whose guard pages
/// stay unmapped.
pub(crate) fn build_tables(
    ram: &[Range<u64>],
    devices: &[Range<u64>],
    blocks: Range<u64>,
) -> Result<(), MapError> {
    let mut tables = PageTable::<El2Stage1, _>::new(HeapTables)?;
    for range in ram {
        let range = range.start.next_multiple_of(PAGE)..range.end & !(PAGE - 1);
        let start = PhysAddr(range.start);
        tables.map(range, start, Permissions::RW, Level::Page1G)?;
    }
    for range in devices {
        let range = range.start & !(PAGE - 1)..range.end.next_multiple_of(PAGE);
        let start = PhysAddr(range.start);
        let largest = if range.start % MIB2 == 0 { Level::Page2M } else { Level::Page4K };
        tables.map(range, start, Permissions::RW | Permissions::DEVICE, largest)?;
    }
    protect(&mut tables, blocks)?;
    // Pairs with `activate_tables`.
    ROOT.store(tables.root().0, Ordering::Release);
    // The handle is dropped, the tables stay: only a gather's release frees them.
    Ok(())
}

/// Switches the calling CPU to the hypervisor's own tables.
///
/// The boot tables map the same addresses by larger blocks. A TLB must never be able to hold both
/// (break-before-make, Arm ARM DDI 0487, D8.16 "TLB maintenance"), so translation is off while the
/// old entries are dropped and the root changes.
///
/// # Safety
///
/// [`build_tables`] has completed; the tables map everything that the CPU uses. This code runs at
/// its physical address.
pub(crate) unsafe fn activate_tables() {
    // The root pairs with `build_tables`.
    let root = ROOT.load(Ordering::Acquire);
    // SAFETY: the tables are complete, and visible to walks after the first barrier. Code runs at
    // its physical address, so it continues while translation is off; nothing is loaded or stored
    // until it is on again, so no access bypasses the caches.
    unsafe {
        core::arch::asm!(
            "dsb ishst",
            "mrs {on}, sctlr_el2",
            "bic {off}, {on}, #1", // M
            "msr sctlr_el2, {off}",
            "isb",
            "tlbi alle2",
            "dsb nsh",
            "msr ttbr0_el2, {root}",
            "isb",
            "msr sctlr_el2, {on}",
            "isb",
            on = out(reg) _,
            off = out(reg) _,
            root = in(reg) root,
            options(nostack, preserves_flags),
        );
    }
}
