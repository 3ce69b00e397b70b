//! The heap, and the location of the image. Everything is mapped one to one.

use alloc::alloc::{alloc_zeroed, dealloc};
use baremetal::pages::PAGE;
use core::alloc::{GlobalAlloc, Layout};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use paging::{Entries, Format, Gather, MapError, NeverWalked, PageTable, Permissions, PhysAddr, TableMemory};
use spin::Mutex;
use talc::TalcLock;
use talc::source::Manual;

use super::blocks::{BLOCK_SIZE, GUARD_PAGES};
use crate::free_memory::FreeMemory;
use crate::red_zones::{Damage, RedZones};

/// Minimum heap of the hypervisor: its own page tables, VMCBs, device state. Neither guest memory
/// nor nested page tables are allocated from it.
const HEAP_MIN: u64 = 32 << 20;
/// Bytes of RAM for which the heap grows by one byte: a dirty log has two bits for each page of 4
/// KiB, which is an eighth of it of all memory at most. The rest is for more guests.
const RAM_PER_HEAP: u64 = 512;
/// Maximum heap: on some machines it must be below 4 GiB.
const HEAP_MAX: u64 = 1 << 30;

#[global_allocator]
static HEAP: Counted =
    Counted { heap: Heap::new(TalcLock::new(Manual)), size: AtomicU64::new(0), used: AtomicU64::new(0) };

type Heap = RedZones<TalcLock<Mutex<()>, Manual>>;

/// The heap, with the number of bytes that are allocated from it.
struct Counted {
    heap: Heap,
    size: AtomicU64,
    used: AtomicU64,
}

// SAFETY: all of it is the heap's; counting has no effect on it.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the heap's conditions.
        let start = unsafe { self.heap.alloc(layout) };
        if !start.is_null() {
            self.used.fetch_add(layout.size() as u64, Ordering::Relaxed);
        }
        start
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        self.used.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { self.heap.dealloc(start, layout) };
    }
}

/// What somebody wrote past a block, which is noticed in images under test only.
pub(crate) fn damage() -> Option<Damage> {
    HEAP.heap.damage()
}

pub(crate) fn used() -> u64 {
    HEAP.used.load(Ordering::Relaxed)
}

/// Bytes that are free, in pieces.
pub(crate) fn left() -> u64 {
    HEAP.size.load(Ordering::Relaxed).saturating_sub(used())
}

unsafe extern "C" {
    static __image_start: u8;
    static __image_end: u8;
    static __text_start: u8;
    static __text_end: u8;
    static __rodata_start: u8;
    static __rodata_end: u8;
    static __data_start: u8;
    static __data_end: u8;
}

/// Range between two symbols of the linker script.
macro_rules! section {
    ($start:ident, $end:ident) => {{ (&raw const $start).addr() as u64..(&raw const $end).addr() as u64 }};
}

pub(crate) fn text() -> Range<u64> {
    section!(__text_start, __text_end)
}

pub(crate) fn rodata() -> Range<u64> {
    section!(__rodata_start, __rodata_end)
}

/// The image's own range, to be reserved.
pub(crate) fn image() -> Range<u64> {
    section!(__image_start, __image_end)
}

/// Gives the allocator its heap, below `reach`, where the boot page tables map memory.
pub(crate) fn init_heap(free: &mut FreeMemory, reach: u64) -> Result<(), &'static str> {
    let size = (HEAP_MIN + free.total() / RAM_PER_HEAP).min(HEAP_MAX) & !(PAGE - 1);
    let base = free.take(size, PAGE, reach).ok_or("no room for the heap")?;
    // SAFETY: the range was taken from free RAM, is mapped, and has no other user.
    unsafe { HEAP.heap.heap().lock().claim(base as *mut u8, size as usize) };
    HEAP.size.store(size, Ordering::Relaxed);
    Ok(())
}

const TABLE_LAYOUT: Layout = match Layout::from_size_align(PAGE as usize, PAGE as usize) {
    Ok(layout) => layout,
    Err(_) => panic!("a page is a valid layout"),
};

/// Stacks, for backtraces: the blocks of the CPUs.
static STACKS: (AtomicU64, AtomicU64) = (AtomicU64::new(0), AtomicU64::new(0));

/// Registers the range of the CPUs' blocks.
pub(crate) fn set_stacks(range: Range<u64>) {
    STACKS.0.store(range.start, Ordering::Relaxed);
    STACKS.1.store(range.end, Ordering::Relaxed);
}

/// Whether two words at `address` are in a stack: a CPU's block or the boot stack in the image.
pub(crate) fn is_stack(address: u64) -> bool {
    let Some(end) = address.checked_add(16) else { return false };
    let blocks = STACKS.0.load(Ordering::Relaxed)..STACKS.1.load(Ordering::Relaxed);
    [blocks, section!(__data_start, __data_end)]
        .iter()
        .any(|stack| address >= stack.start && end <= stack.end)
}

/// The hypervisor's own page tables, from the heap, mapped one to one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeapTables;

// SAFETY: tables are allocated zeroed and page-aligned from the heap, whose memory is mapped one to
// one forever, so an address is a valid pointer until the table is freed; freeing is up to the
// caller's promise.
unsafe impl TableMemory for HeapTables {
    fn allocate(&self) -> Option<PhysAddr> {
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(TABLE_LAYOUT) };
        (!start.is_null()).then(|| PhysAddr(start.addr() as u64))
    }

    unsafe fn free(&self, table: PhysAddr) {
        // SAFETY: the caller vouches for origin and disuse; the layout is the one it was allocated
        // with.
        unsafe { dealloc(table.0 as *mut u8, TABLE_LAYOUT) };
    }

    unsafe fn entries(&self, table: PhysAddr) -> &Entries {
        // SAFETY: the caller vouches for the table; all bit patterns are valid entries.
        unsafe { &*(table.0 as *const Entries) }
    }
}

/// Sets the access rights of each part of the image in tables that map all memory, and unmaps the
/// guard pages of the stacks in `blocks`.
pub(crate) fn protect<F: Format>(
    tables: &mut PageTable<F, HeapTables>,
    blocks: Range<u64>,
) -> Result<(), MapError> {
    settle(tables.protect(text(), Permissions::RX)?)?;
    settle(tables.protect(rodata(), Permissions::R)?)?;
    for block in (blocks.start..blocks.end).step_by(BLOCK_SIZE as usize) {
        for guard in GUARD_PAGES {
            settle(tables.unmap(block + guard..block + guard + PAGE)?)?;
        }
    }
    Ok(())
}

/// Frees the gathered tables of a change of the hypervisor's own tables while they are built.
pub(crate) fn settle(gather: Gather<HeapTables>) -> Result<(), MapError> {
    // SAFETY: no processor has been given these tables yet, so no translations from them are
    // cached.
    let never_walked = unsafe { NeverWalked::new() };
    gather.release(&never_walked).map(drop).map_err(|_| MapError::Raced)
}
