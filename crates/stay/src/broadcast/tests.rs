//! What a processor does as it enters and leaves an address space, in order.

use core::cell::{Cell, RefCell};
use core::ops::{ControlFlow, Range};
use std::vec::Vec;

use coherence::tlbi::{Errata, Features, Granule, Limits};
use coherence::{Scope, Target, TargetSet, flush};

use super::*;

/// A processor that notes what it does, in order.
struct Noting<'t>(&'t Target, Cell<u64>, RefCell<Vec<&'static str>>);

macro_rules! noted {
    ($($name:ident($($kind:ty)?))*) => {
        $(fn $name(&self $(, _: $kind)?) {
            self.2.borrow_mut().push(stringify!($name));
        })*
    };
}

impl Mistakes for Noting<'_> {}

impl Stage2Tlb for Noting<'_> {
    noted! {
        order_stores() complete() complete_local() complete_caches() context_sync() page(u64) range(u64)
        combined() everything() all_vms() local_combined() local_all_vms() instruction_cache()
        local_instruction_cache() clean(Range<u64>) restore_stage1_walks(u64)
    }

    fn vttbr(&self) -> u64 {
        self.1.get()
    }

    fn set_vttbr(&self, value: u64) {
        self.1.set(value);
    }

    fn forbid_stage1_walks(&self) -> u64 {
        0
    }
}

impl Processor for Noting<'_> {
    fn id(&self) -> CpuId {
        CpuId(0)
    }

    fn fill_lists(&mut self) {
        self.2.get_mut().push("fill");
    }

    fn run(&mut self) {
        self.2.get_mut().push(if self.0.is_in_guest() { "run" } else { "run unseen" });
    }

    fn take_lists_back(&mut self) {
        self.2.get_mut().push(if self.0.is_in_guest() { "take too early" } else { "take" });
    }
}

struct Alone;

impl Hardware for Alone {
    fn kick(&self, _: CpuId) {}

    fn relax(&self, _: u64) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}

const SETUP: Setup = Setup {
    granule: Granule::Size4K,
    features: Features::from_id(0, 0, 0),
    errata: Errata { repeat_tlbi: false, speculative_at: false },
    limits: Limits { pages_max: 1, ranges_max: 1 },
};

#[test]
fn what_was_left_is_loaded_again_and_who_follows_drops_what_others_owe() {
    const NOWHERE: u64 = 0x7000;
    let (vmids, vmid) = (VmidAllocator::<1>::new(8, 1).expect("there are enough"), VmidSlot::new());
    let (residents, target) = (Residents::new(), Target::new());
    let space =
        AddressSpace { vmids: &vmids, vmid: &vmid, residents: &residents, root: 0x4000, setup: &SETUP };
    let (tlb, mut place, told) =
        (Noting(&target, Cell::new(0), RefCell::default()), CpuStage2::new(), Cell::new(0));
    let enter = |place: &mut CpuStage2| {
        tlb.2.take();
        enter_address_space(&tlb, CpuId(0), place, &space, || told.set(told.get() + 1)).has_changed
    };
    assert!(enter(&mut place) && !enter(&mut place));
    let loaded = tlb.vttbr();
    leave_address_space(&tlb, &mut place, &SETUP, NOWHERE);
    assert_eq!(tlb.vttbr(), Vttbr::new(NOWHERE, 0).bits());
    assert!(enter(&mut place));
    assert_eq!((tlb.vttbr(), told.get()), (loaded, 2));
    // The first of the four owes nothing, and the third what the fourth drops with its own.
    for drop in ["local_combined", "local_all_vms"] {
        (0..2).for_each(|_| {
            place.arrive(&space, &mut Home::new(), CpuId(0), LocalMaintenance::Local, &tlb);
        });
        assert!(enter(&mut place));
        assert_eq!(*tlb.2.borrow(), [drop, "complete_local", "context_sync"]);
    }
}

#[test]
fn g5_list_registers_are_read_when_the_word_no_longer_says_in_guest_mode() {
    for (event, expected) in [(false, &["fill", "run", "take"][..]), (true, &["fill", "take"])] {
        let target = Target::new();
        let _nobody_is_told = event.then(|| target.post_event());
        let mut processor = Noting(&target, Cell::new(0), RefCell::default());
        assert_eq!(enter(&mut processor, &mut target.owner().expect("nobody has it")), !event);
        assert_eq!(*processor.2.get_mut(), expected);
    }
}

#[test]
fn a_flush_of_one_processor_is_over_there_before_it_is_reported() {
    let target = Target::new();
    let (tlb, mut owner) =
        (Noting(&target, Cell::new(0), RefCell::default()), target.owner().expect("nobody has it"));
    take_flush(&tlb, &mut owner);
    assert_eq!(*tlb.2.borrow(), [""; 0], "there is none");
    let mut ledger = Ledger::<1>::new();
    let asked = flush(&[&target][..], &TargetSet::<1>::first(1), Scope::All, &mut ledger, &Alone);
    assert!(asked.is_ok(), "it is not in guest mode");
    take_flush(&tlb, &mut owner);
    assert_eq!(*tlb.2.borrow(), ["local_combined", "complete_local", "context_sync"]);
}

#[test]
fn leaves_have_the_engines_names() {
    let levels = [Level::Page4K, Level::Page2M, Level::Page1G, Level::Page512G].map(leaf_level);
    assert_eq!(levels, [Some(LeafLevel::Three), Some(LeafLevel::Two), Some(LeafLevel::One), None]);
}
