//! A vCPU that fills and uses a shadow, while the slot of its page is removed.
//!
//! The guest's guest runs by the shadow's leaf if it has one. The page is freed when the job is
//! done: nobody may use it then. Slots, shadow and the vCPU's word are the real ones.

use core::ops::ControlFlow;
use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::Ordering::Relaxed;
use paging::guest::Translation;
use paging::{Amd64Nested, Entries, Format, Level, PhysAddr, Progress, TableMemory, format_like};
use quell_coherence::interleave::on_a_thread;
use quell_coherence::{CpuId, Hardware, Ledger, NoDevices, Owner, Target, Targets, Walkers};
use quell_coherence::{explored, flush_space, mutants};

use super::relax;
use crate::space::{Filled, GuestSpace, Shadow, Steps};
use crate::support::{receipt, slot};
use crate::{Gpa, Memslots, Resolution, SlotId};

/// AMD64's entries in two levels of tables with two entries each.
struct Tiny;

impl Format for Tiny {
    const INPUT_BITS: u32 = 14;
    const ROOT: Level = Level::Page2M;
    const LARGEST: Level = Level::Page2M;

    format_like! { Amd64Nested:
        SIGN_EXTENDED OUTPUT_BITS REPLACES_IN_PLACE SETTLED
        admits is_present is_leaf leaf table address permissions is_dirty protected dirtied cleaned
    }
}

/// Tables that are leaked, so that the allocator orders nothing.
#[derive(Clone)]
struct Tables;

// SAFETY: each table is allocated once, and never reused.
unsafe impl TableMemory for Tables {
    fn allocate(&self) -> Option<PhysAddr> {
        #[repr(align(4096))]
        struct Table(Entries);
        let table: &'static Table =
            Box::leak(Box::new(Table(core::array::from_fn(|_| loom::sync::atomic::AtomicU64::new(0)))));
        Some(PhysAddr(core::ptr::from_ref(table).expose_provenance() as u64))
    }
    unsafe fn free(&self, _: PhysAddr) {}
    unsafe fn entries(&self, table: PhysAddr) -> &Entries {
        // SAFETY: it is leaked.
        unsafe { &*core::ptr::with_exposed_provenance(table.0 as usize) }
    }
}

struct ModelState {
    space: GuestSpace<Tiny, Tables>,
    target: Target,
    is_freed: AtomicBool,
}

// SAFETY: the only vCPU walks in sections and between entry and exit.
unsafe impl Walkers for ModelState {
    type Stamp = paging::Stamp;
    type Devices<'a> = NoDevices;

    fn stamp(&self) -> paging::Stamp {
        self.space.stamp()
    }

    fn count(&self) -> usize {
        1
    }
}

impl Targets for ModelState {
    fn target(&self, index: usize) -> Option<&Target> {
        (index == 0).then_some(&self.target)
    }
}

impl Hardware for ModelState {
    fn kick(&self, _: CpuId) {}

    fn relax(&self, _: u64) -> ControlFlow<()> {
        relax();
        ControlFlow::Continue(())
    }
}

/// The only slot: a page.
const PAGE: Gpa = Gpa(0);

impl ModelState {
    fn new() -> Self {
        let mut slots = Memslots::new(48);
        // SAFETY: nothing accesses the memory.
        unsafe { slots.add(slot(1, 0, 1, 0)) }.unwrap();
        let space = GuestSpace::new(slots, Tables, Level::Page4K).unwrap();
        Self { space, target: Target::new(), is_freed: AtomicBool::new(false) }
    }

    /// Removes the slot, and frees its page.
    fn remove(&self) {
        let mut job = self.space.remove(SlotId(1)).unwrap();
        loop {
            match job.step(u32::MAX, |_| self.is_freed.store(true, Relaxed)) {
                Progress::Done => return,
                Progress::Flush => {
                    // The engine's receipt says as much as any.
                    let flushed = flush_space(self, &NoDevices, &mut Ledger::<1>::new(), self);
                    assert!(flushed.is_ok() && job.flushed(&receipt()));
                }
                _ => _ = relax(),
            }
        }
    }
}

/// The vCPU, and what the guest says of a page of its guest: that it is the page of the slot.
struct Vcpu<'a> {
    owner: Owner<'a>,
    shadow: Shadow<Tiny, Tables>,
    is_void: bool,
}

const THEIRS: Translation =
    Translation { gpa: PAGE, page_size: 4096, is_writable: true, is_executable: true, is_dirty: true };

impl Vcpu<'_> {
    fn empty_void(&mut self) {
        if core::mem::take(&mut self.is_void) {
            // SAFETY: no processor has it.
            unsafe { self.shadow.empty() };
        }
    }

    fn has_leaf(&self) -> bool {
        let mut has = false;
        self.shadow.for_each(|_, _, _| has = true);
        has
    }
}

/// The operations that scenarios use. Provided methods are the real ones.
trait Protocol: 'static {
    /// Takes the pending request.
    fn take(vcpu: &mut Vcpu<'_>) {
        if let Some(work) = vcpu.owner.take_flush() {
            vcpu.is_void |= work.is_nested();
            work.complete();
        }
    }

    /// A nested page fault.
    fn fill(vcpu: &mut Vcpu<'_>, machine: &ModelState) {
        loop {
            if let Ok(section) = vcpu.owner.begin_uncounted_translation() {
                if core::mem::take(&mut vcpu.is_void) {
                    // SAFETY: no processor has it.
                    unsafe { vcpu.shadow.empty() };
                }
                let filled = vcpu.shadow.fill(&machine.space, 0, &THEIRS, true, 9);
                section.end();
                assert!(matches!(filled, Filled::Leaf | Filled::NoMemory));
                return;
            }
            Self::take(vcpu);
        }
    }

    /// A stay in the guest's guest, which uses the page if it can.
    fn run(vcpu: &mut Vcpu<'_>, machine: &ModelState) {
        loop {
            vcpu.empty_void();
            let has_leaf = vcpu.has_leaf();
            if let Ok(in_guest) = vcpu.owner.try_enter(CpuId(0)) {
                assert!(!has_leaf || !machine.is_freed.load(Relaxed), "the page is used after it was freed");
                in_guest.leave();
                return;
            }
            Self::take(vcpu);
        }
    }
}

struct Real;

impl Protocol for Real {}

fn removing<P: Protocol>() {
    let machine = Arc::new(ModelState::new());
    let vcpu = on_a_thread(&machine, |machine| {
        let shadow = Shadow::new(&machine.space).unwrap();
        let mut vcpu = Vcpu { owner: machine.target.owner().expect("free"), shadow, is_void: false };
        P::fill(&mut vcpu, machine);
        P::run(&mut vcpu, machine);
        P::run(&mut vcpu, machine);
    });
    machine.remove();
    vcpu.join().unwrap();
}

explored! {
    n16_a_fill_beside_a_removal_leaves_no_leaf: Some(3) => removing::<Real>;
}

/// A fill without a section, whose pin ends before the leaf is stored.
fn fill_late(vcpu: &mut Vcpu<'_>, machine: &ModelState) {
    vcpu.empty_void();
    let is_there = matches!(machine.space.slots().memory().resolve(PAGE), Resolution::Ram { .. });
    if is_there {
        vcpu.shadow.store(0);
    }
}

mutants! {
    /// N16: what was looked up before the flush is stored after it.
    StoredLate fails n16_leaf_stored_without_a_section_and_a_pin:
    removing::<StoredLate>, "used after it was freed", {
        fn fill(vcpu: &mut Vcpu<'_>, machine: &ModelState) {
            fill_late(vcpu, machine);
        }
    }

    /// N14: a flush of nested translations is taken for one of the guest's.
    NotEmptied fails n14_shadow_kept_over_a_nested_flush:
    removing::<NotEmptied>, "used after it was freed", {
        fn take(vcpu: &mut Vcpu<'_>) {
            if let Some(work) = vcpu.owner.take_flush() {
                work.complete();
            }
        }
    }

    /// N14: the shadow is emptied after the entry that was due.
    EmptiedLate fails n14_shadow_emptied_after_the_entry:
    removing::<EmptiedLate>, "used after it was freed", {
        fn run(vcpu: &mut Vcpu<'_>, machine: &ModelState) {
            loop {
                let has_leaf = vcpu.has_leaf();
                let entered = vcpu.owner.try_enter(CpuId(0)).map(|in_guest| {
                    let is_freed = machine.is_freed.load(Relaxed);
                    assert!(!has_leaf || !is_freed, "the page is used after it was freed");
                    in_guest.leave();
                });
                if entered.is_ok() {
                    return vcpu.empty_void();
                }
                Self::take(vcpu);
            }
        }
    }
}
