//! The hypervisor's own page tables.
//!
//! Everything is mapped one to one. Text is executable, read-only data readable, all other memory
//! writable; nothing is both writable and executable. Page 0 and the guard pages of the stacks are
//! not mapped.

use baremetal::pages::PAGE;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use paging::{Amd64Host, Level, MapError, PageTable, Permissions, PhysAddr};
use x86_64::registers::control::{Cr3, Cr3Flags, Cr4, Cr4Flags};

use crate::arch::Local;
use crate::image::heap::{HeapTables, protect, settle};
use crate::x86::cpuid;
use crate::x86::processor::Processor;

/// Root of the tables that all CPUs use.
static ROOT: AtomicU64 = AtomicU64::new(0);

/// Builds the hypervisor's own tables.
///
/// `ram` is all RAM, `devices` whole pages of registers, `blocks` the CPUs' blocks, whose guard
/// pages stay unmapped.
pub(crate) fn build_tables(
    ram: &[Range<u64>],
    devices: &[Range<u64>],
    blocks: Range<u64>,
) -> Result<(), MapError> {
    let mut tables = PageTable::<Amd64Host, _>::new(HeapTables)?;
    let largest = if cpuid::host_has_1g_pages::<Local>() { Level::Page1G } else { Level::Page2M };
    for range in ram {
        let start = range.start.next_multiple_of(PAGE);
        let end = range.end & !(PAGE - 1);
        tables.map(start..end, PhysAddr(start), Permissions::RW, largest)?;
    }
    for range in devices {
        let permissions = Permissions::RW | Permissions::DEVICE;
        tables.map(range.clone(), PhysAddr(range.start), permissions, Level::Page2M)?;
    }
    settle(tables.unmap(0..PAGE)?)?;
    protect(&mut tables, blocks)?;
    // Pairs with `activate_tables`.
    ROOT.store(tables.root().0, Ordering::Release);
    // The handle is dropped, the tables stay: only a gather's release frees them.
    Ok(())
}

/// Switches the calling CPU to the hypervisor's own tables.
///
/// # Safety
///
/// [`build_tables`] has completed; the tables map everything that the CPU uses.
pub(crate) unsafe fn activate_tables() {
    let root = x86_64::structures::paging::PhysFrame::containing_address(x86_64::PhysAddr::new(
        // Pairs with `build_tables`.
        ROOT.load(Ordering::Acquire),
    ));
    // SAFETY: the caller vouches for the tables. Writing CR3 drops every translation of the boot
    // tables except global ones, and they have none.
    unsafe { Cr3::write(root, Cr3Flags::empty()) };
    // SAFETY: the tables have neither user pages nor a translation that differs between roots.
    unsafe { Cr4::update(|cr4| cr4.insert(protections())) };
}

/// The bits of CR4 that concern translation, with the value that most guests choose: global leaves,
/// and no access to user pages, of which the tables have none.
///
/// QEMU flushes its TLB once more at each VMRUN and each #VMEXIT if one of these bits differs
/// between host and guest (`docs/qemu.md`); a processor does not.
fn protections() -> Cr4Flags {
    Cr4Flags::from_bits_retain(cpuid::protections(Local::cpuid(7, 0).ebx))
}
