//! Mapping and unmapping 512 MiB by pages of 4 KiB, with this crate and with two others, doing the
//! same work: tables from the same pool, zeroed when they are taken; one root for each round; no
//! TLB to flush. Divide by 131072 for the time of one page.
//!
//! The others keep their tables when they unmap, so this crate does, too; the time to free them,
//! including the receipt, is measured separately.

use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const LEN: u64 = 512 << 20;
const PAGE: u64 = 4096;
/// Input and output addresses.
const START: u64 = 1 << 30;
const TARGET: u64 = 2 << 30;
/// 256 tables of the last level, one of each level above, and some spare.
const TABLES: usize = 300;

#[repr(C, align(4096))]
struct Pool([[u64; 512]; TABLES]);

static mut POOL: Pool = Pool([[0; 512]; TABLES]);
static USED: AtomicUsize = AtomicUsize::new(0);

/// A table without a user, with arbitrary contents. Its address stands for a physical one.
fn take() -> Option<usize> {
    let index = USED.fetch_add(1, Relaxed);
    (index < TABLES).then(|| (&raw mut POOL).addr() + index * PAGE as usize)
}

/// All tables are unused again.
fn reset() {
    USED.store(0, Relaxed);
}

fn at<T>(table: usize) -> *mut T {
    (&raw mut POOL).with_addr(table).cast()
}

mod quell {
    use quell_paging::{
        Amd64Guest, Entries, Level, NeverWalked, PageTable, Permissions, PhysAddr, TableMemory, Tables,
    };

    use super::*;

    #[derive(Clone)]
    pub(super) struct Memory;

    // SAFETY: the pool allocates each table once per round, and it is zeroed here.
    unsafe impl TableMemory for Memory {
        fn allocate(&self) -> Option<PhysAddr> {
            let table = take()?;
            // SAFETY: the table is in the pool, and has no other user.
            unsafe { ptr::write_bytes(at::<[u64; 512]>(table), 0, 1) };
            Some(PhysAddr(table as u64))
        }
        unsafe fn free(&self, _: PhysAddr) {}
        unsafe fn entries(&self, table: PhysAddr) -> &Entries {
            // SAFETY: the table is in the pool, which stays.
            unsafe { &*at::<Entries>(table.0 as usize) }
        }
    }

    pub(super) type Table = PageTable<Amd64Guest, Memory>;

    pub(super) fn new() -> Table {
        PageTable::new(Memory).unwrap()
    }

    pub(super) fn map(table: &mut Table) {
        table.map(START..START + LEN, PhysAddr(TARGET), Permissions::RW, Level::Page4K).unwrap();
    }

    pub(super) fn unmap(table: &mut Table) {
        black_box(table.zap(START..START + LEN, Tables::Keep).visited_count());
    }

    pub(super) fn free(table: &mut Table) {
        let gather = table.zap(START..START + LEN, Tables::Free);
        // SAFETY: no processor walks the table.
        let receipt = unsafe { NeverWalked::new() };
        assert_eq!(gather.release(&receipt).unwrap().table_count, 256);
    }
}

mod x86_64_crate {
    use x86_64::structures::paging::{
        FrameAllocator, Mapper, OffsetPageTable, Page, PageTable, PageTableFlags as Flags, PhysFrame,
        Size4KiB,
    };
    use x86_64::{PhysAddr, VirtAddr};

    use super::*;

    struct Frames;

    // SAFETY: the pool allocates each table once per round.
    unsafe impl FrameAllocator<Size4KiB> for Frames {
        fn allocate_frame(&mut self) -> Option<PhysFrame> {
            Some(PhysFrame::containing_address(PhysAddr::new(take()? as u64)))
        }
    }

    pub(super) type Table = OffsetPageTable<'static>;

    pub(super) fn new() -> Table {
        let root = at::<PageTable>(take().unwrap());
        // SAFETY: the table is in the pool and has no other user; addresses are the physical ones.
        unsafe {
            ptr::write_bytes(root, 0, 1);
            OffsetPageTable::new(&mut *root, VirtAddr::zero())
        }
    }

    fn pages() -> impl Iterator<Item = Page> {
        (START..START + LEN).step_by(4096).map(|address| Page::containing_address(VirtAddr::new(address)))
    }

    pub(super) fn map(table: &mut Table) {
        let mut frame = TARGET;
        for page in pages() {
            let to = PhysFrame::<Size4KiB>::containing_address(PhysAddr::new(frame));
            let flags = Flags::PRESENT | Flags::WRITABLE | Flags::NO_EXECUTE;
            // SAFETY: no processor walks the table.
            unsafe { table.map_to(page, to, flags, &mut Frames) }.unwrap().ignore();
            frame += PAGE;
        }
    }

    pub(super) fn unmap(table: &mut Table) {
        for page in pages() {
            let (frame, flush) = table.unmap(page).unwrap();
            flush.ignore();
            black_box(frame);
        }
    }
}

mod multiarch {
    use memory_addr::{PhysAddr, VirtAddr};
    use page_table_entry::x86_64::X64PTE;
    use page_table_multiarch::{MappingFlags, PageTable64, PagingHandler, PagingMetaData};

    use super::*;

    pub(super) struct Frames;

    impl PagingHandler for Frames {
        fn alloc_frames(_: usize, _: usize) -> Option<PhysAddr> {
            take().map(PhysAddr::from)
        }
        fn dealloc_frames(_: PhysAddr, _: usize) {}
        fn phys_to_virt(paddr: PhysAddr) -> VirtAddr {
            at::<u8>(paddr.as_usize()).expose_provenance().into()
        }
    }

    /// Its own metadata operations flush the TLB, which only a kernel can do.
    pub(super) struct NoTlb;

    impl PagingMetaData for NoTlb {
        const LEVELS: usize = 4;
        const PA_MAX_BITS: usize = 52;
        const VA_MAX_BITS: usize = 48;
        type VirtAddr = VirtAddr;
        fn flush_tlb(_: Option<VirtAddr>) {}
    }

    pub(super) type Table = PageTable64<NoTlb, X64PTE, Frames>;

    pub(super) fn new() -> Table {
        PageTable64::try_new().unwrap()
    }

    pub(super) fn map(table: &mut Table) {
        let to = |address: VirtAddr| PhysAddr::from(address.as_usize() + (TARGET - START) as usize);
        let flags = MappingFlags::READ | MappingFlags::WRITE;
        let start = VirtAddr::from(START as usize);
        table.cursor().map_region(start, to, LEN as usize, flags, false).unwrap();
    }

    pub(super) fn unmap(table: &mut Table) {
        table.cursor().unmap_region(VirtAddr::from(START as usize), LEN as usize).unwrap();
    }
}

/// Measures one of two operations that alternate.
fn rounds<T>(count: u64, new: fn() -> T, map: fn(&mut T), unmap: fn(&mut T), timed_map: bool) -> Duration {
    let mut total = Duration::ZERO;
    for _ in 0..count {
        reset();
        let mut table = new();
        let start = Instant::now();
        map(&mut table);
        let mapped = Instant::now();
        unmap(&mut table);
        total += if timed_map { mapped - start } else { mapped.elapsed() };
    }
    total
}

fn peers(c: &mut Criterion) {
    for (name, timed_map) in [("map-512M-4K", true), ("unmap-512M-4K", false)] {
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Elements(LEN / PAGE)).sample_size(30);
        group.bench_function("quell", |b| {
            b.iter_custom(|count| rounds(count, quell::new, quell::map, quell::unmap, timed_map))
        });
        group.bench_function("x86_64", |b| {
            b.iter_custom(|count| {
                rounds(count, x86_64_crate::new, x86_64_crate::map, x86_64_crate::unmap, timed_map)
            })
        });
        group.bench_function("page_table_multiarch", |b| {
            b.iter_custom(|count| rounds(count, multiarch::new, multiarch::map, multiarch::unmap, timed_map))
        });
        group.finish();
    }
    c.bench_function("unmap-512M-4K-and-free", |b| {
        b.iter_custom(|count| rounds(count, quell::new, quell::map, quell::free, false))
    });
}

criterion_group!(benches, peers);
criterion_main!(benches);
