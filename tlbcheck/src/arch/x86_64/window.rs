//! Page tables whose leaves the checks exchange, at any address except those of the image.
//!
//! Two address spaces: the initial one of all processors, and another one with the same mappings
//! except for those of [`split_leaves`]. AMD64 APM volume 2 (24593, rev. 3.42), section 5.3.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use baremetal::pages::{PAGE, Page};
use baremetal::walk;
use baremetal::x86_64::tables::root;
use spin::Once;
use x86_64::registers::control::{Cr4, Cr4Flags};

use crate::arch::window::{LARGE_WINDOW, WINDOW, take, take_one};

/// Bits of an entry (APM volume 2, section 5.4): present, writable, user.
pub(super) const RIGHTS: u64 = 7;
pub(super) const ACCESSED: u64 = 1 << 5;
pub(super) const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
pub(super) const GLOBAL: u64 = 1 << 8;

/// Number of small pages in a large one.
const PIECES: usize = 512;

/// Addresses that are never mapped: the other elements of lists.
pub(super) const FILLER: u64 = WINDOW + (1 << 34);
/// Where the other space has its own pages.
pub(super) const SPLIT_WINDOW: u64 = 2 << 39;

/// Memory for two large pages that alternate: the pieces of the first, then those of the second.
pub(super) fn large_pages() -> &'static [Page] {
    static PAGES: Once<&[Page]> = Once::new();
    PAGES.call_once(|| take(2 * PIECES, PIECES))
}

/// Maps the large page of this round at [`LARGE_WINDOW`], with the round's number in each piece.
pub(super) fn replace_large(round: u64) {
    let half = &large_pages()[round as usize % 2 * PIECES..][..PIECES];
    half.iter().for_each(|piece| piece.write(&[round]));
    large_leaf(LARGE_WINDOW).store(half[0].address() | RIGHTS | LARGE, Ordering::SeqCst);
}

static OTHER_ROOT: Page = Page::new();

pub(super) fn open() {
    for (copy, entry) in OTHER_ROOT.words().iter().zip(root().words()) {
        copy.store(entry.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The entry for the page of 4 KiB at `address`, in both spaces.
pub(super) fn leaf(address: u64) -> &'static AtomicU64 {
    let leaf = walk::entry(root(), address, 0, take_one);
    share(address);
    leaf
}

/// The entry for the page of 2 MiB at `address`, in both spaces.
pub(super) fn large_leaf(address: u64) -> &'static AtomicU64 {
    let leaf = walk::entry(root(), address, 1, take_one);
    share(address);
    leaf
}

fn share(address: u64) {
    let index = walk::index(address, 3);
    OTHER_ROOT.words()[index].store(root().words()[index].load(Ordering::Relaxed), Ordering::Release);
}

/// The entries for the page at `address` in both spaces; from [`SPLIT_WINDOW`] on.
pub(super) fn split_leaves(address: u64) -> [&'static AtomicU64; 2] {
    [root(), &OTHER_ROOT].map(|root| walk::entry(root, address, 0, take_one))
}

/// A space like the initial one, but with `page` at an address below 2 MiB.
pub(super) fn space_with(address: u64, page: &'static Page) -> u64 {
    let copies = take(4, 1);
    let pointers = walk::table(&root().words()[0], take_one);
    let originals = [root(), pointers, walk::table(&pointers.words()[0], take_one)];
    for ((copy, next), original) in copies.iter().zip(&copies[1..]).zip(originals) {
        for (word, entry) in copy.words().iter().zip(original.words()) {
            word.store(entry.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        copy.words()[0].store(next.address() | RIGHTS, Ordering::Relaxed);
    }
    for (number, word) in (0..).zip(copies[3].words()) {
        word.store((number * PAGE) | RIGHTS, Ordering::Relaxed);
    }
    copies[3].words()[walk::index(address, 0)].store(page.address() | RIGHTS, Ordering::Release);
    copies[0].address()
}

/// The identifier of the initial space, and of the other.
pub(super) fn space() -> u64 {
    root().address()
}

pub(super) fn other_space() -> u64 {
    OTHER_ROOT.address()
}

/// MOV to CR3: a space's address, with or without PCID bits.
pub(super) fn enter_space(space: u64) {
    // SAFETY: both spaces have the same mappings for everything that the program uses.
    unsafe { asm!("mov cr3, {}", in(reg) space, options(nostack, preserves_flags)) };
}

pub(super) fn set_cr4(flag: Cr4Flags, on: bool) {
    // SAFETY: the flags passed affect TLB contents, and not the mappings.
    unsafe { Cr4::update(|flags| flags.set(flag, on)) };
}

pub(super) fn invlpg(address: u64) {
    // SAFETY: it drops translations, which are reloaded from the tables.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// Reads the word at `address`, where a page must be mapped.
#[inline(always)]
pub(super) fn read(address: u64) -> u64 {
    // SAFETY: the caller's window has a page there; any contents are a valid word.
    unsafe { (address as *const u64).read_volatile() }
}

/// Calls the function at `address`, where the caller has mapped one that returns a number.
pub(super) fn call(address: u64) -> u32 {
    // SAFETY: the caller's window has such a function there.
    let function: extern "C" fn() -> u32 = unsafe { core::mem::transmute(address) };
    function()
}
