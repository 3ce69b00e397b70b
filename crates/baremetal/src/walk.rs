//! Page tables of four levels to which a program adds its own entries.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::arch::tables;
use crate::pages::Page;

/// Bits of an entry: it is present, and what it points to.
const PRESENT: u64 = 1;
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;

/// The index of an address in a table at a level: 0 is that of pages.
pub const fn index(address: u64, level: u32) -> usize {
    (address >> (12 + 9 * level) & 511) as usize
}

/// The entry for `address` at a level below `root`. Tables that are missing on the way are made of
/// pages from `new`, which are empty.
pub fn entry(
    root: &'static Page,
    address: u64,
    level: u32,
    new: impl Fn() -> &'static Page,
) -> &'static AtomicU64 {
    let top = &root.words()[index(address, 3)];
    (level..3).rev().fold(top, |entry, level| &table(entry, &new).words()[index(address, level)])
}

/// The table that an entry points to; `new` if there is none.
pub fn table(entry: &AtomicU64, new: impl Fn() -> &'static Page) -> &'static Page {
    // Pairs with the store below.
    let value = entry.load(Ordering::Acquire);
    if value & PRESENT != 0 {
        // SAFETY: an entry is from here, or from start-up code; tables live as long as the program.
        return unsafe { &*((value & ADDRESS) as *const Page) };
    }
    let table = new();
    // Pairs with the load above.
    entry.store(tables::entry_of(table), Ordering::Release);
    tables::complete();
    table
}
