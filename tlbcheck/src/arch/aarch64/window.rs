//! Page tables whose entries the checks exchange, at any address except those of the image.
//!
//! DDI 0487 M.b, D8.3.1 (descriptor formats), D8.4 (permissions), D8.5 (access flag, dirty state).

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use baremetal::aarch64::tables::ROOT;
pub(super) use baremetal::aarch64::tables::entry_of as table_entry;
use baremetal::pages::Page;
use baremetal::walk;
use spin::Once;

use super::tlbi;
use crate::arch::window::take_one;

/// Bits of an entry.
const VALID: u64 = 1 << 0;
const TABLE_OR_PAGE: u64 = 1 << 1;
/// AP[2]: no stores.
pub(super) const READ_ONLY: u64 = 1 << 7;
const INNER_SHAREABLE: u64 = 3 << 8;
pub(super) const ACCESSED: u64 = 1 << 10;
pub(super) const NOT_GLOBAL: u64 = 1 << 11;
/// The dirty bit modifier: with it the processor makes a read-only entry writable at a store.
pub(super) const DIRTY_MODIFIER: u64 = 1 << 51;
/// PXN and UXN.
const NEVER_EXECUTE: u64 = 3 << 53;

/// TCR_EL1.HA and HD: the processor sets access flags, and manages the dirty state.
pub(super) const SETS_ACCESSED: u64 = 1 << 39;
pub(super) const SETS_DIRTY: u64 = 1 << 40;

/// An entry that maps the page at `address`, with all rights except execution, for one ASID.
pub(super) const fn page_entry(address: u64) -> u64 {
    address | VALID | TABLE_OR_PAGE | INNER_SHAREABLE | ACCESSED | NOT_GLOBAL | NEVER_EXECUTE
}

/// The same, executable and read-only.
pub(super) const fn code_entry(address: u64) -> u64 {
    page_entry(address) & !NEVER_EXECUTE | READ_ONLY
}

pub(super) const fn block_entry(address: u64) -> u64 {
    page_entry(address) & !TABLE_OR_PAGE
}

#[derive(Clone, Copy)]
pub(super) struct TestSpace {
    root: &'static Page,
    asid: u16,
}

impl TestSpace {
    /// A new space, which maps only what the image needs.
    pub(super) fn new(asid: u16) -> Self {
        let root = take_one();
        root.words()[0].store(ROOT.words()[0].load(Ordering::Relaxed), Ordering::Relaxed);
        Self { root, asid }
    }

    pub(super) const fn under(self, asid: u16) -> Self {
        Self { root: self.root, asid }
    }

    /// The space that most rows use; its ASID is 1.
    pub(super) fn shared() -> Self {
        static SPACE: Once<TestSpace> = Once::new();
        *SPACE.call_once(|| Self::new(1))
    }

    pub(super) const fn asid(self) -> u16 {
        self.asid
    }

    /// The value of TTBR0_EL1.
    pub(super) fn register(self) -> u64 {
        self.root.address() | u64::from(self.asid) << 48
    }

    /// The entry for `address` at a level, from 1 to 3; creates missing tables on the way.
    pub(super) fn entry(self, address: u64, level: u32) -> &'static AtomicU64 {
        walk::entry(self.root, address, 3 - level, take_one)
    }

    pub(super) fn leaf(self, address: u64) -> &'static AtomicU64 {
        self.entry(address, 3)
    }
}

/// Stores an entry over an invalid one, for all processors: TLBs do not cache invalid entries.
pub(super) fn write(entry: &AtomicU64, value: u64) {
    entry.store(value, Ordering::Release);
    tlbi::order(tlbi::Scope::Inner);
    tlbi::synchronise();
}

/// Stores an entry; the caller must still invalidate the old one.
pub(super) fn replace(entry: &AtomicU64, value: u64) {
    entry.store(value, Ordering::Release);
}

/// Stores an entry, and drops all translations of all processors.
pub(super) fn settle(entry: &AtomicU64, value: u64) {
    replace(entry, value);
    tlbi::settle();
}

/// Sets TTBR0_EL1 of the calling processor to a [`TestSpace::register`].
pub(super) fn enter(register: u64) {
    // SAFETY: all spaces have the same mappings for everything that the program uses.
    unsafe { asm!("msr ttbr0_el1, {}", "isb", in(reg) register, options(nostack, preserves_flags)) };
}

pub(super) fn leave() {
    enter(ROOT.address());
}

/// Sets or clears bits of the processor's TCR_EL1; its translations have the previous ones.
pub(super) fn set_control(bits: u64, on: bool) {
    let (set, clear) = if on { (bits, 0) } else { (0, bits) };
    // SAFETY: the bits passed only select who sets flags of entries.
    unsafe {
        asm!(
            "mrs {x}, tcr_el1", "orr {x}, {x}, {set}", "bic {x}, {x}, {clear}", "msr tcr_el1, {x}", "isb",
            "tlbi vmalle1", "dsb nsh", "isb",
            x = out(reg) _, set = in(reg) set, clear = in(reg) clear, options(nostack, preserves_flags),
        );
    }
}
