//! Virtual addresses whose pages are exchanged while the program runs.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as own;
#[cfg(target_arch = "x86_64")]
use x86_64 as own;

/// Where it begins: the first address of the second entry of the root.
const START: u64 = 1 << 39;
pub(super) const PAGES: u64 = 512;

static TABLE: Page = Page::new();
/// The tables above it.
static ABOVE: Arena<2> = Arena::new();

/// Links it into the page tables; its pages are absent.
pub(super) fn open() {
    let new = || &ABOVE.take(1, 1).expect("there are two")[0];
    walk::table(walk::entry(tables::root(), START, 1, new), || &TABLE);
}

pub(super) const fn address(index: u64) -> u64 {
    START + index % PAGES * PAGE
}

fn entry(index: u64) -> &'static AtomicU64 {
    &TABLE.words()[(index % PAGES) as usize]
}

/// Maps the page at `page`. No processor may have an old translation, unless [`CHANGES_AT_ONCE`].
pub(super) fn map(index: u64, page: u64) {
    entry(index).store(own::page_entry(page), Ordering::SeqCst);
    tables::complete();
}

/// Removes a page. Translations of it stay until they are flushed.
pub(super) fn unmap(index: u64) {
    entry(index).store(0, Ordering::SeqCst);
    tables::complete();
}

use crate::tests::prelude::*;
use baremetal::arch::tables;
use baremetal::pages::Arena;
use baremetal::walk;
/// Whether a mapping may be replaced by another one without being removed first.
pub(super) use own::CHANGES_AT_ONCE;
/// Drops the calling processor's translations of the page at this address.
pub(super) use own::flush_here;
