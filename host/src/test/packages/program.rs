//! A user of all five packages, built outside of the tree: a guest's kernel flushes a page by
//! hypercall, from memory that its hypervisor finds in slots and maps by a nested page table.

use quell_coherence::TargetSet;
use quell_coherence::shootdown::*;
use quell_memslots::{Gpa, Memslots, Slot, SlotFlags, SlotId};
use quell_paging::{Amd64Nested, Entries, Level, PageTable, Permissions, PhysAddr, TableMemory};
use quell_pvflush::{ByHypercall, VpIndex};
use quell_tlfs::{Call, CallRegisters, InputError, InputPage, InputSource, PAGE_WORDS, Profile, XMM_WORDS};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

static TABLES: [Entries; 4] = [const { [const { AtomicU64::new(0) }; 512] }; 4];
static USED: AtomicUsize = AtomicUsize::new(0);

#[derive(Clone)]
struct Static;

// SAFETY: the number only grows, so each table is allocated once, zeroed as built.
unsafe impl TableMemory for Static {
    fn allocate(&self) -> Option<PhysAddr> {
        let index = USED.fetch_add(1, Ordering::Relaxed);
        (index < TABLES.len()).then(|| PhysAddr((index as u64 + 1) << 12))
    }
    unsafe fn free(&self, _table: PhysAddr) {}
    unsafe fn entries(&self, table: PhysAddr) -> &Entries {
        &TABLES[(table.0 >> 12) as usize - 1]
    }
}

struct Guest(Memslots);

impl InputSource for Guest {
    fn read(&self, gpa: u64, into: &mut [u8]) -> Result<(), InputError> {
        self.0.memory().read(Gpa(gpa), into).map_err(|_| InputError::NotMemory)
    }
    fn xmm_words(&self) -> [u64; XMM_WORDS] {
        [0; XMM_WORDS]
    }
}

#[derive(Default)]
struct CountingTlb(u64);

impl Tlb for CountingTlb {
    fn load(&mut self, _root: u64, _tag: Tag, _keep: bool) {}
    fn load_none(&mut self) {}
    fn flush_everything(&mut self) {}
    fn flush_range(&mut self, range: PageRange, _tables: bool) {
        self.0 += range.last() - range.first + 1;
    }
    fn relax(&mut self, _turns: u64) -> std::ops::ControlFlow<()> {
        std::ops::ControlFlow::Break(())
    }
}

#[repr(align(4096))]
struct Ram([u8; 4096]);

static SLOTS: [CpuSlot; 2] = [const { CpuSlot::new() }; 2];

fn main() {
    let ram = Box::leak(Box::new(Ram([0; 4096])));
    let host = PhysAddr(ram.0.as_mut_ptr().expose_provenance() as u64);
    let slot = Slot { id: SlotId(1), gpa: Gpa(0x1000), size: 4096, host, flags: SlotFlags::empty() };
    let mut guest = Guest(Memslots::new(40));
    // SAFETY: the memory is leaked, and has no other user.
    unsafe { guest.0.add(slot) }.expect("the slot overlaps nothing");
    let nested = PageTable::<Amd64Nested, _>::new(Static).expect("there is memory for the root");
    nested.install(0x1000, PhysAddr(0x5000), Level::Page4K, Permissions::RWX).expect("and for tables");
    assert_eq!(nested.query(0x1234).map(|found| found.pa), Some(PhysAddr(0x5234)));

    let (mut page, mut served) = ([0; PAGE_WORDS], None);
    let interrupts = ByInterrupt(|_: &TargetSet<1>| panic!("the hypercall reaches everybody"));
    let indices = [VpIndex(7), VpIndex(3)];
    let mut remote = ByHypercall::new(&mut page, &indices, Default::default(), interrupts, |call, page| {
        let bytes: Vec<u8> = page.iter().flat_map(|word| word.to_le_bytes()).collect();
        guest.0.memory().write(Gpa(0x1000), &bytes).expect("there is memory");
        let registers = CallRegisters { control: call.control.into(), input: 0x1000, output: 0 };
        let mut copy = InputPage::new();
        let call = quell_tlfs::decode(registers, &guest, &mut copy, &Profile::default());
        let Ok(Call::Flush(call)) = call else { panic!("what one end encodes the other decodes") };
        served = Some([0, 3, 7].map(|vp| call.targets.contains(vp)));
        call.completed()
    });
    let spaces = Spaces::new();
    let space: AddressSpace<1> = spaces.create(0x1000);
    let cpus = Cpus::new(&SLOTS, &[]);
    let mut own: LocalCpu<'_, &AddressSpace<1>, 1, 1> = cpus.claim(0).expect("each CPU once");
    let mut other: LocalCpu<'_, &AddressSpace<1>, 1, 1> = cpus.claim(1).expect("each CPU once");
    let mut tlb = CountingTlb::default();
    own.switch_to(&space, &mut tlb);
    other.switch_to(&space, &mut CountingTlb::default());
    let mut ranges = [PageRange::default(); 4];
    let mut batch = space.batch(&mut ranges, ());
    batch.add(PageRange::small(0x7000_0000, 1));
    let done = own.flush(batch, Concurrent, &mut remote, &mut tlb).expect("nobody is waited for");
    assert_eq!((done.receipt.outcome().direct, tlb.0), (1, 4096));
    drop(remote);
    assert_eq!(served, Some([false, true, false]));
    println!("all five packages work together");
}
