//! A window of virtual addresses whose pages can be exchanged.

use core::sync::atomic::{AtomicU64, Ordering};

use x86_64::VirtAddr;
use x86_64::instructions::tlb;

/// Where the window begins: the first address of the second PML4 entry.
pub(crate) const WINDOW: u64 = 1 << 39;
/// Bytes in a page.
pub(crate) const PAGE: u64 = 4096;

/// Present, writable, for ring 3 too.
const RIGHTS: u64 = 7;

#[repr(C, align(4096))]
struct Table([AtomicU64; 512]);

impl Table {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 512])
    }

    fn entry(&self) -> u64 {
        (&raw const *self).addr() as u64 | RIGHTS
    }
}

/// A page of memory; it is at the same address for the processor and for the hypervisor.
#[repr(C, align(4096))]
pub(crate) struct Page([AtomicU64; 512]);

impl Page {
    /// An empty page.
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 512])
    }

    /// Its address.
    pub(crate) fn address(&self) -> u64 {
        (&raw const *self).addr() as u64
    }

    /// Its words.
    pub(crate) fn words(&self) -> &[AtomicU64; 512] {
        &self.0
    }

    /// Copies `words` to its beginning.
    pub(crate) fn write(&self, words: &[u64]) {
        self.write_at(0, words);
    }

    /// Copies `words` to where its word `first` is; what goes beyond its end is left out.
    pub(crate) fn write_at(&self, first: usize, words: &[u64]) {
        for (slot, word) in self.0.iter().skip(first).zip(words) {
            slot.store(*word, Ordering::Relaxed);
        }
    }
}

unsafe extern "C" {
    static boot_pml4: [AtomicU64; 512];
}

static PDPT: Table = Table::new();
static DIRECTORY: Table = Table::new();
static TABLE: Table = Table::new();

/// Links the window into the page tables; its pages are absent.
pub(crate) fn open_window() {
    DIRECTORY.0[0].store(TABLE.entry(), Ordering::Relaxed);
    PDPT.0[0].store(DIRECTORY.entry(), Ordering::Relaxed);
    // SAFETY: the table lives as long as the program and is changed by atomic stores only.
    unsafe { boot_pml4[1].store(PDPT.entry(), Ordering::Release) };
}

/// The address of the processor's page tables, which is the name of its address space.
pub(crate) fn space() -> u64 {
    x86_64::registers::control::Cr3::read().0.start_address().as_u64()
}

/// Puts a page at page `index` of the window, or none, and flushes no TLB.
pub(crate) fn exchange(index: usize, page: Option<&'static Page>) {
    TABLE.0[index].store(page.map_or(0, |page| page.address() | RIGHTS), Ordering::SeqCst);
}

/// Puts a page there and flushes the own TLB.
pub(crate) fn map(index: usize, page: Option<&'static Page>) {
    exchange(index, page);
    tlb::flush(VirtAddr::new(WINDOW + index as u64 * PAGE));
}
