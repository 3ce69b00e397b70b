//! Physical memory: the regions that are free, the heap, tables from it. Everything is mapped one to one.

use alloc::alloc::{alloc_zeroed, dealloc};
use core::alloc::Layout;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use paging::{Entries, PhysAddr, TableMemory};
use spin::Mutex;
use talc::TalcLock;
use talc::source::Manual;

/// Least heap of the hypervisor: page tables, VMCBs, device state. Guest memory does not come from here.
const HEAP_MIN: u64 = 32 << 20;
/// For so many bytes of RAM there is one more of heap, so that nested tables can map all of it in pages of 4 KiB, twice over.
const RAM_PER_HEAP: u64 = 256;
/// Most heap: on some machines it has to lie below 4 GiB.
const HEAP_MAX: u64 = 1 << 30;
const PAGE: u64 = 4096;
/// Most regions of RAM that are kept track of.
const MAX_REGIONS: usize = 64;

#[global_allocator]
static HEAP: TalcLock<Mutex<()>, Manual> = TalcLock::new(Manual);

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

/// The image's code.
pub(crate) fn text() -> Range<u64> {
    section!(__text_start, __text_end)
}

/// The image's constants.
pub(crate) fn rodata() -> Range<u64> {
    section!(__rodata_start, __rodata_end)
}

/// RAM that is not used for anything yet.
#[derive(Default)]
pub(crate) struct FreeMemory {
    regions: ArrayVec<Range<u64>, MAX_REGIONS>,
}

impl FreeMemory {
    /// Adds RAM, shrunk to whole pages. The first MiB is left out: firmware and start-up code are there.
    pub(crate) fn add(&mut self, range: Range<u64>) {
        let start = range.start.max(1 << 20).next_multiple_of(PAGE);
        let end = range.end & !(PAGE - 1);
        if start >= end {
            return;
        }
        // What it touches becomes one with it.
        let mut whole = start..end;
        self.regions.retain(|region| {
            let touches = region.end == whole.start || region.start == whole.end;
            if touches {
                whole = region.start.min(whole.start)..region.end.max(whole.end);
            }
            !touches
        });
        if self.regions.try_push(whole).is_err() {
            log::warn!("more than {MAX_REGIONS} regions of RAM; {start:#x}..{end:#x} stays unused");
        }
    }

    /// Takes a range out that is in use already.
    pub(crate) fn reserve(&mut self, used: Range<u64>) {
        let used = used.start & !(PAGE - 1)..used.end.next_multiple_of(PAGE);
        let mut rest = ArrayVec::<_, MAX_REGIONS>::new();
        for region in &self.regions {
            let below = region.start..region.end.min(used.start);
            let above = region.start.max(used.end)..region.end;
            for part in [below, above] {
                if part.start < part.end && rest.try_push(part.clone()).is_err() {
                    log::warn!("memory is too fragmented; {part:x?} stays unused");
                }
            }
        }
        self.regions = rest;
    }

    /// Takes `size` bytes, aligned to `align` (a power of two), ending at or below `limit`; from the
    /// highest place that fits, so that low memory lasts for what needs it.
    pub(crate) fn take(&mut self, size: u64, align: u64, limit: u64) -> Option<u64> {
        let place = |region: &Range<u64>| {
            let start = region.end.min(limit).checked_sub(size)? & !(align - 1);
            (start >= region.start).then_some(start)
        };
        let start = self.regions.iter().filter_map(place).max()?;
        self.reserve(start..start + size);
        Some(start)
    }

    /// Bytes in the largest region.
    pub(crate) fn largest(&self) -> u64 {
        self.regions.iter().map(|region| region.end - region.start).max().unwrap_or(0)
    }

    /// Bytes in all regions.
    pub(crate) fn total(&self) -> u64 {
        self.regions.iter().map(|region| region.end - region.start).sum()
    }
}

/// The image's own range, to be reserved.
pub(crate) fn image() -> Range<u64> {
    section!(__image_start, __image_end)
}

/// Gives the allocator its heap, below `reach`, as far as the boot page tables map memory.
pub(crate) fn init_heap(free: &mut FreeMemory, reach: u64) -> Result<(), &'static str> {
    let size = (HEAP_MIN + free.total() / RAM_PER_HEAP).min(HEAP_MAX) & !(PAGE - 1);
    let base = free.take(size, PAGE, reach).ok_or("no room for the heap")?;
    // SAFETY: the range was taken from free RAM, is mapped, and is given to nobody else.
    unsafe { HEAP.lock().claim(base as *mut u8, size as usize) };
    Ok(())
}

const TABLE_LAYOUT: Layout = match Layout::from_size_align(PAGE as usize, PAGE as usize) {
    Ok(layout) => layout,
    Err(_) => panic!("a page is a valid layout"),
};

/// Stacks, for backtraces: the blocks of the CPUs.
static STACKS: (AtomicU64, AtomicU64) = (AtomicU64::new(0), AtomicU64::new(0));

/// Remembers where the CPUs' blocks are.
pub(crate) fn set_stacks(range: Range<u64>) {
    STACKS.0.store(range.start, Ordering::Relaxed);
    STACKS.1.store(range.end, Ordering::Relaxed);
}

/// Whether two words at `address` lie in a stack: a CPU's block or the boot stack in the image.
pub(crate) fn is_stack(address: u64) -> bool {
    let Some(end) = address.checked_add(16) else { return false };
    let blocks = STACKS.0.load(Ordering::Relaxed)..STACKS.1.load(Ordering::Relaxed);
    [blocks, section!(__data_start, __data_end)]
        .iter()
        .any(|stack| address >= stack.start && end <= stack.end)
}

/// Page tables from the heap, mapped one to one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeapTables;

// SAFETY: tables come zeroed and page-aligned from the heap, whose memory is mapped one to one for ever, so an
// address is a valid pointer until the table is freed; freeing is up to the caller's promise.
unsafe impl TableMemory for HeapTables {
    fn allocate(&self) -> Option<PhysAddr> {
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(TABLE_LAYOUT) };
        (!start.is_null()).then(|| PhysAddr(start.addr() as u64))
    }

    unsafe fn free(&self, table: PhysAddr) {
        // SAFETY: the caller vouches for origin and disuse; the layout is the one it was allocated with.
        unsafe { dealloc(table.0 as *mut u8, TABLE_LAYOUT) };
    }

    unsafe fn entries(&self, table: PhysAddr) -> &Entries {
        // SAFETY: the caller vouches for the table; all bit patterns are valid entries.
        unsafe { &*(table.0 as *const Entries) }
    }
}
