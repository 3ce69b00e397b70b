//! The tables that the processors start with: everything one to one, in blocks of 1 GiB.
//!
//! DDI 0487 M.b, D8.3.1 "VMSAv8-64 descriptor formats" and D8.6 "Memory region attributes"; TCR_EL1
//! and MAIR_EL1 are set in `boot.rs`.

use core::arch::asm;
use core::sync::atomic::Ordering;

use crate::pages::{Page, Ram};

const VALID: u64 = 1 << 0;
const TABLE: u64 = 1 << 1;
/// AttrIndx 1.
const DEVICE: u64 = 1 << 2;
const INNER_SHAREABLE: u64 = 3 << 8;
const ACCESSED: u64 = 1 << 10;
/// PXN and UXN.
const NEVER_EXECUTE: u64 = 3 << 53;

const GIB: u64 = 1 << 30;
/// Addresses that the tables map: 512 GiB.
pub const MAPPED: u64 = 512 * GIB;

/// The table of level 0; its first entry is in use, the others are free for the image.
pub static ROOT: Page = Page::new();
static BLOCKS: Page = Page::new();

/// The root of the tables.
pub fn root() -> &'static Page {
    &ROOT
}

/// The entry that points to a table.
pub fn entry_of(table: &Page) -> u64 {
    table.address() | VALID | TABLE
}

/// A walk sees earlier stores to tables.
pub fn complete() {
    // SAFETY: barriers change nothing.
    unsafe { asm!("dsb ishst", "isb", options(nostack, preserves_flags)) };
}

fn block(address: u64, is_memory: bool) -> u64 {
    let kind = if is_memory { INNER_SHAREABLE } else { DEVICE | NEVER_EXECUTE };
    address | VALID | ACCESSED | kind
}

/// Maps everything: the GiB of the image and that of the device tree as memory, the rest as
/// devices. The MMU is off, so this uses only plain loads and stores.
#[doc(hidden)]
pub extern "C" fn map_first(image: u64, device_tree: u64) {
    for (index, entry) in (0..).zip(BLOCKS.words()) {
        let is_memory = index == image / GIB || index == device_tree / GIB;
        entry.store(block(index * GIB, is_memory), Ordering::Relaxed);
    }
    ROOT.words()[0].store(entry_of(&BLOCKS), Ordering::Relaxed);
}

/// Maps RAM as memory, by whole GiB.
pub(super) fn map_ram(ram: &[Ram]) {
    for range in ram.iter().filter(|range| range.start < MAPPED) {
        for index in range.start / GIB..=(range.end - 1).min(MAPPED - 1) / GIB {
            let (entry, wanted) = (&BLOCKS.words()[index as usize], block(index * GIB, true));
            if entry.load(Ordering::Relaxed) == wanted {
                continue;
            }
            // D8.17.1: a change of the memory type requires an invalid entry in between.
            entry.store(0, Ordering::Relaxed);
            flush();
            entry.store(wanted, Ordering::Relaxed);
            flush();
        }
    }
}

fn flush() {
    // SAFETY: it drops translations, which are reloaded from the tables.
    unsafe { asm!("dsb ishst", "tlbi vmalle1is", "dsb ish", "isb", options(nostack, preserves_flags)) };
}
