//! A window of virtual addresses whose pages can be exchanged.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use baremetal::pages::Arena;
pub(crate) use baremetal::pages::{PAGE, Page};
use baremetal::walk;
use baremetal::x86_64::tables;
use x86_64::VirtAddr;
use x86_64::instructions::tlb;
use x86_64::registers::control::{Cr3, Cr4, Cr4Flags};

/// Start of the window: the first address of the second PML4 entry.
pub(crate) const WINDOW: u64 = 1 << 39;

/// Bits of an entry (APM volume 2, section 5.4): present, writable, user.
pub(crate) const RIGHTS: u64 = 7;
pub(crate) const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
pub(crate) const ACCESSED: u64 = 1 << 5;
pub(crate) const DIRTY: u64 = 1 << 6;
pub(crate) const GLOBAL: u64 = 1 << 8;
pub(crate) const NO_EXECUTE: u64 = 1 << 63;

/// The window's table, and those above it.
static TABLE: Page = Page::new();
static ABOVE: Arena<2> = Arena::new();
/// The root of another address space, with the same mappings.
static OTHER_ROOT: Page = Page::new();
/// The root of one with the same mappings, in which only the window is accessible to ring 3.
static KERNEL_ROOT: Page = Page::new();

/// Links the window into the page tables; its pages are absent.
pub(crate) fn open_window() {
    let new = || &ABOVE.take(1, 1).expect("there are two")[0];
    walk::table(walk::entry(tables::root(), WINDOW, 1, new), || &TABLE);
    let [first, second] = [0, 1].map(|entry| tables::root().words()[entry].load(Ordering::Relaxed));
    for (root, first) in [(&OTHER_ROOT, first), (&KERNEL_ROOT, first & !USER)] {
        root.words()[0].store(first, Ordering::Release);
        root.words()[1].store(second, Ordering::Release);
    }
}

/// The address of the processor's page tables, which identifies its address space.
pub(crate) fn space() -> u64 {
    Cr3::read().0.start_address().as_u64()
}

/// The identifier of an address space with the same mappings as the initial one.
pub(crate) fn other_space() -> u64 {
    OTHER_ROOT.address()
}

/// The identifier of an address space in which ring 3 has only the window.
pub(crate) fn kernel_space() -> u64 {
    KERNEL_ROOT.address()
}

/// Switches to an address space: one of [`space`], [`other_space`] and [`kernel_space`].
pub(crate) fn enter_space(space: u64) {
    // SAFETY: all spaces have the same mappings for everything that the program uses.
    unsafe { asm!("mov cr3, {}", in(reg) space, options(nostack, preserves_flags)) };
}

/// Enables or disables the effect of [`GLOBAL`].
pub(crate) fn set_global_pages(on: bool) {
    // SAFETY: the mappings do not change.
    unsafe { Cr4::update(|flags| flags.set(Cr4Flags::PAGE_GLOBAL, on)) };
}

pub(crate) fn entry(index: usize) -> &'static AtomicU64 {
    &TABLE.words()[index]
}

/// Maps a page at page `index` of the window, or none, and flushes the local TLB.
pub(crate) fn map(index: usize, page: Option<&'static Page>) {
    entry(index).store(page.map_or(0, |page| page.address() | RIGHTS), Ordering::SeqCst);
    tlb::flush(VirtAddr::new(WINDOW + index as u64 * PAGE));
}
