//! Sequences: the entries that they remove, the order, and that each part is needed.

use std::vec::Vec;

use super::machine::{Held, Mistake, OTHER, Processors, ROOT, VMID};
use crate::tlbi::{
    Context, Errata, Features, Granule, Instructions, LeafLevel, Limits, Plan, Setup, Stage2Tlb, Stale,
    Vttbr, break_before_make, clean, enter_vm, invalidate, invalidate_all_vms, leave_vm, plan,
};
use crate::vmid::Arrival;

const NONE: Errata = Errata { repeat_tlbi: false, speculative_at: false };
const SETUP: Setup = Setup {
    granule: Granule::Size4K,
    features: Features { range: true, ttl: true, forces_write_back: false, instructions_by_vmid: false },
    errata: NONE,
    limits: Limits { pages_max: 512, ranges_max: 4 },
};
const OLD: Setup = Setup { features: Features { range: false, ttl: false, ..SETUP.features }, ..SETUP };

/// A whole unlinked table of pages: leaves, the entries that led to them, and the combined entries
/// of both stages.
const TABLE: Stale = Stale { start: 2 << 20, len: 2 << 20, leaf: Some(LeafLevel::Three), tables: true };
const HELD: [Held; 4] = [
    Held::Leaf { ipa: 2 << 20, level: 3 },
    Held::Leaf { ipa: (4 << 20) - 0x1000, level: 3 },
    Held::Walk { ipa: 2 << 20, level: 2 },
    Held::Combined,
];

fn vttbr() -> Vttbr {
    Vttbr::new(ROOT, VMID)
}

/// The entries that both processors hold after the sequence for `stale`.
fn left_by(machine: &Processors, setup: &Setup, stale: Stale) -> Vec<Held> {
    let context = Context::enter(machine, vttbr(), setup.errata);
    let _done = invalidate(&context, setup, plan(setup, [stale]));
    drop(context);
    machine.held(VMID)
}

/// The entries left after a mistake.
fn left_with(mistake: Mistake, setup: &Setup) -> Vec<Held> {
    left_by(&Processors::new(&HELD).with(mistake), setup, TABLE)
}

#[test]
fn nothing_is_left_on_any_processor() {
    for setup in [SETUP, OLD, Setup { limits: Limits { pages_max: 0, ranges_max: 0 }, ..SETUP }] {
        let machine = Processors::new(&HELD);
        machine.hold(1, OTHER, Held::Combined);
        assert_eq!(left_by(&machine, &setup, TABLE), []);
        assert_eq!(machine.held(OTHER), [Held::Combined], "another machine's");
    }
}

#[test]
fn the_sequence_of_a_range() {
    let machine = Processors::new(&HELD);
    assert_eq!(left_by(&machine, &SETUP, TABLE), []);
    let expected = ["order_stores", "range", "complete", "combined", "complete", "context_sync"];
    assert_eq!(machine.trace(), expected);
}

#[test]
fn the_sequence_of_a_whole_vmid() {
    let machine = Processors::new(&HELD);
    let context = Context::enter(&machine, vttbr(), NONE);
    let _done = invalidate(&context, &SETUP, Plan::<core::iter::Empty<Stale>>::Whole);
    assert_eq!(machine.trace(), ["order_stores", "everything", "complete", "context_sync"]);
    assert_eq!(machine.held(VMID), []);
}

#[test]
fn a_gibibyte_takes_two_instructions_and_one_more_with_the_errata() {
    let gibibyte = Stale { start: 1 << 30, len: 1 << 30, ..TABLE };
    for (repeat_tlbi, setup, expected) in
        [(false, SETUP, 2), (true, SETUP, 3), (false, OLD, 1), (true, OLD, 2)]
    {
        let setup = Setup { errata: Errata { repeat_tlbi, ..NONE }, ..setup };
        let machine = Processors::new(&HELD);
        let _left = left_by(&machine, &setup, gibibyte);
        assert_eq!(machine.tlbi_count(), expected, "{setup:?}");
        let trace = machine.trace();
        assert_eq!(
            trace.iter().filter(|what| *what == "complete").count(),
            expected,
            "a DSB for each: {trace:?}"
        );
        assert_eq!(trace[trace.len() - 2..], ["complete", "context_sync"]);
    }
}

#[test]
fn errata_repeat_the_broadcast_after_everything_else() {
    let repeated = Setup { errata: Errata { repeat_tlbi: true, ..NONE }, ..SETUP };
    let machine = Processors::new(&HELD);
    let _left = left_by(&machine, &repeated, TABLE);
    let expected =
        ["order_stores", "range", "complete", "combined", "complete", "combined", "complete", "context_sync"];
    assert_eq!(machine.trace(), expected);
    let machine = Processors::new(&[]);
    let _done = invalidate_all_vms(&machine, &repeated);
    assert_eq!(machine.tlbi_count(), 2);
}

#[test]
fn o11_o12_p18_p19_each_mistake_in_a_sequence_is_caught() {
    for setup in [SETUP, OLD] {
        for mistake in [Mistake::CompletesLocally, Mistake::NotCompleted, Mistake::NotOrdered] {
            assert!(!left_with(mistake, &setup).is_empty(), "{mistake:?}");
        }
        assert!(left_with(Mistake::WrongHint, &setup).contains(&HELD[2]), "where tables were");
        assert_eq!(left_with(Mistake::NoCombined, &setup), [Held::Combined; 2]);
    }
    assert!(left_with(Mistake::WrongHint, &SETUP).contains(&HELD[0]));
}

#[test]
fn p18_blocks_go_by_one_instruction_with_their_hint() {
    let block = Stale { start: 4 << 20, len: 2 << 20, leaf: Some(LeafLevel::Two), tables: false };
    for setup in [SETUP, OLD, Setup { features: Features { ttl: false, ..SETUP.features }, ..SETUP }] {
        let machine = Processors::new(&[Held::Leaf { ipa: 5 << 20, level: 2 }, Held::Combined]);
        let context = Context::enter(&machine, vttbr(), NONE);
        let _done = break_before_make(&context, &setup, block);
        assert_eq!(machine.held(VMID), []);
        assert_eq!(
            machine.trace(),
            ["order_stores", "page", "complete", "combined", "complete", "context_sync"]
        );
    }
}

#[test]
fn p20_data_caches_are_cleaned_after_the_translation_is_gone() {
    let machine = Processors::new(&HELD);
    let context = Context::enter(&machine, vttbr(), NONE);
    let done = invalidate(&context, &SETUP, plan(&SETUP, [TABLE]));
    clean(&machine, &done, &SETUP, [0..0x1000, 0x8000..0x9000], Instructions::Keep);
    assert!(!machine.cleaned_early.get());
    let trace = machine.trace();
    let position = |what| trace.iter().rposition(|other| other == what).expect("it is there");
    assert!(trace.iter().position(|other| other == "clean").unwrap() > position("combined") + 1);
    assert_eq!(trace[trace.len() - 3..], ["clean", "clean", "complete_caches"]);

    // The machine notices the other order.
    let machine = Processors::new(&HELD);
    machine.clean(0..0x1000);
    assert!(machine.cleaned_early.get());
}

#[test]
fn p20_nothing_is_cleaned_where_stage_2_forces_write_back() {
    let forced = Setup { features: Features { forces_write_back: true, ..SETUP.features }, ..SETUP };
    let machine = Processors::new(&[]);
    let context = Context::enter(&machine, vttbr(), NONE);
    let done = invalidate(&context, &forced, Plan::<core::iter::Empty<Stale>>::Nothing);
    clean(&machine, &done, &forced, core::iter::once(0..0x1000), Instructions::Keep);
    assert_eq!(machine.trace(), [""; 0]);
}

#[test]
fn p21_instruction_caches_by_policy() {
    let by_vmid = Setup { features: Features { instructions_by_vmid: true, ..SETUP.features }, ..SETUP };
    for (setup, expected) in [(SETUP, 0), (by_vmid, 1)] {
        let machine = Processors::new(&HELD);
        let _left = left_by(&machine, &setup, TABLE);
        let trace = machine.trace();
        let at: Vec<_> = (0..trace.len()).filter(|&index| trace[index] == "instruction_cache").collect();
        assert_eq!(at.len(), expected);
        assert!(at.iter().all(|&at| trace[at - 1] == "complete" && trace[at + 1] == "complete"));
        // A reused VMID brings its lines along.
        let machine = Processors::new(&[]);
        enter_vm(&machine, &setup, vttbr(), Arrival::NOTHING.with_all_vms(true));
        let count = machine.trace().iter().filter(|what| *what == "local_instruction_cache").count();
        assert_eq!(count, expected);
    }
    let machine = Processors::new(&[]);
    let context = Context::enter(&machine, vttbr(), NONE);
    let done = invalidate(&context, &SETUP, Plan::<core::iter::Empty<Stale>>::Nothing);
    clean(&machine, &done, &SETUP, core::iter::once(0..0x1000), Instructions::Invalidate);
    let expected = ["clean", "complete_caches", "instruction_cache", "complete", "context_sync"];
    assert_eq!(machine.trace(), expected);
}

#[test]
fn a20_the_former_vttbr_comes_back() {
    let machine = Processors::new(&HELD).elsewhere();
    let before = machine.registers();
    assert_eq!(left_by(&machine, &SETUP, TABLE), []);
    assert_eq!(machine.registers(), before);
    let trace = machine.trace();
    assert_eq!(trace[..3], ["set_vttbr", "context_sync", "order_stores"]);
    assert_eq!(trace[trace.len() - 2..], ["set_vttbr", "context_sync"]);
}

#[test]
fn a20_no_walk_mixes_two_machines() {
    let careful = Setup { errata: Errata { speculative_at: true, ..NONE }, ..SETUP };
    let machine = Processors::new(&[]).elsewhere();
    machine.is_speculative.set(true);
    let before = machine.registers();
    assert_eq!(left_by(&machine, &careful, TABLE), []);
    assert_eq!(machine.registers(), before);
    // Without the workaround, and without the erratum being known.
    let machine = Processors::new(&[]).elsewhere();
    machine.is_speculative.set(true);
    let context = Context::enter(&machine, vttbr(), NONE);
    assert_eq!(machine.held(VMID), [Held::Mixed]);
    drop(context);
    let machine = Processors::new(&[]).elsewhere().with(Mistake::WalksGoOn);
    machine.is_speculative.set(true);
    let context = Context::enter(&machine, vttbr(), careful.errata);
    assert_eq!(machine.held(VMID), [Held::Mixed]);
    drop(context);
}

#[test]
fn a3_a4_arrival_drops_after_the_vttbr_is_loaded() {
    let vmalle1 = Arrival { stage1: true, ..Arrival::NOTHING };
    let moved = Arrival { instructions: true, ..vmalle1 };
    let cases: [(Arrival, &[&str]); 4] = [
        (Arrival::NOTHING, &[]),
        (vmalle1, &["local_combined", "complete_local", "context_sync"]),
        (moved, &["local_combined", "local_instruction_cache", "complete_local", "context_sync"]),
        (vmalle1.with_all_vms(true), &["local_all_vms", "complete_local", "context_sync"]),
    ];
    for (arrival, expected) in cases {
        let machine = Processors::new(&[]).elsewhere();
        machine.hold(0, VMID, Held::Combined);
        machine.hold(1, VMID, Held::Combined);
        enter_vm(&machine, &SETUP, vttbr(), arrival);
        let trace = machine.trace();
        assert_eq!(trace[..3], ["complete", "set_vttbr", "context_sync"]);
        assert_eq!(trace[3..], *expected);
        let left = if expected.is_empty() { 2 } else { 1 };
        assert_eq!(machine.held(VMID).len(), left, "the other processor keeps its own");
        assert_eq!(machine.registers().0, vttbr().bits());
    }
}

#[test]
fn a20_a_guests_own_registers_end_the_ban_on_walks() {
    let careful = Setup { errata: Errata { speculative_at: true, ..NONE }, ..SETUP };
    let machine = Processors::new(&[]).elsewhere();
    machine.is_speculative.set(true);
    enter_vm(&machine, &careful, vttbr(), Arrival::NOTHING);
    assert_eq!(machine.held(VMID), []);
    assert_eq!(machine.registers().1 & (1 << 7 | 1 << 23), 1 << 7 | 1 << 23);
    assert_eq!(vttbr().vmid(), VMID);
}

#[test]
fn a20_a_processor_that_leaves_has_no_machines_tables() {
    let nowhere = Vttbr::new(0x7000, 0);
    for speculative_at in [false, true] {
        let careful = Setup { errata: Errata { speculative_at, ..NONE }, ..SETUP };
        let machine = Processors::new(&[]).elsewhere();
        machine.is_speculative.set(speculative_at);
        leave_vm(&machine, &careful, nowhere);
        assert_eq!(machine.registers().0, nowhere.bits());
        assert_eq!((machine.held(VMID), machine.held(0)), (Vec::new(), Vec::new()), "nothing is mixed");
        let trace = machine.trace();
        assert_eq!(trace[trace.len() - 3..], ["set_vttbr", "context_sync", "complete"]);
        assert_eq!(trace.len(), if speculative_at { 5 } else { 3 });
    }
}
