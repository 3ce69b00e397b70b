//! Sequences: the entries that they remove, the order, and that each part is needed.

use std::string::String;
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
const BLOCK: Stale = Stale { start: 4 << 20, len: 2 << 20, leaf: Some(LeafLevel::Two), tables: false };

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
        let machine = Processors::new(&[Held::Leaf { ipa: 5 << 20, level: 2 }, Held::Combined]);
        assert_eq!(left_by(&machine, &setup, BLOCK), []);
    }
}

/// The instructions of an invalidation, without those of its context.
fn sequence(setup: &Setup, stale: Stale) -> Vec<String> {
    let machine = Processors::new(&[]);
    let _left = left_by(&machine, setup, stale);
    machine.trace()
}

#[test]
fn p18_sequences_are_as_short_as_they_can_be() {
    let features = |features| Setup { features, ..SETUP };
    let repeated = |setup| Setup { errata: Errata { repeat_tlbi: true, ..NONE }, ..setup };
    let by_vmid = features(Features { instructions_by_vmid: true, ..SETUP.features });
    let without_hints = features(Features { ttl: false, ..SETUP.features });
    let pages = |count: u64| Stale { len: count << 12, tables: false, ..TABLE };
    let gibibyte = Stale { start: 1 << 30, len: 1 << 30, ..TABLE };
    for (setup, stale, expected) in [
        (SETUP, TABLE, "range complete combined complete"),
        (SETUP, gibibyte, "range complete combined complete"),
        (SETUP, pages(2), "range complete combined complete"),
        // A range has two pages at least.
        (SETUP, pages(1), "page complete combined complete"),
        (OLD, pages(2), "page page complete combined complete"),
        (SETUP, BLOCK, "page complete combined complete"),
        (OLD, BLOCK, "page complete combined complete"),
        (without_hints, BLOCK, "page complete combined complete"),
        (OLD, gibibyte, "everything complete"),
        // Any broadcast will do, once more.
        (repeated(SETUP), TABLE, "range complete combined complete combined complete"),
        (repeated(OLD), gibibyte, "everything complete everything complete"),
        (by_vmid, TABLE, "range complete combined complete instruction_cache complete"),
    ] {
        let expected = std::format!("order_stores {expected} context_sync");
        assert_eq!(sequence(&setup, stale).join(" "), expected, "{stale:?} {setup:?}");
    }
    assert_eq!(sequence(&SETUP, pages(0)), [""; 0]);
    let machine = Processors::new(&[]);
    let _done = break_before_make(&Context::enter(&machine, vttbr(), NONE), &SETUP, BLOCK);
    assert_eq!(machine.trace(), sequence(&SETUP, BLOCK));
}

#[test]
fn firmwares_entries_go_with_every_vmid_and_what_instruction_caches_hold() {
    for (errata, expected) in [
        (NONE, "order_stores all_vms complete instruction_cache complete context_sync"),
        (
            Errata { repeat_tlbi: true, ..NONE },
            "order_stores all_vms complete all_vms complete instruction_cache complete context_sync",
        ),
    ] {
        let machine = Processors::new(&HELD);
        machine.hold(1, OTHER, Held::Combined);
        let _done = invalidate_all_vms(&machine, &Setup { errata, ..SETUP });
        assert_eq!(machine.trace().join(" "), expected);
        assert_eq!((machine.held(VMID), machine.held(OTHER)), (Vec::new(), Vec::new()));
    }
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
fn p20_p21_caches_are_cleaned_as_the_next_user_needs_it() {
    let forced = Setup { features: Features { forces_write_back: true, ..SETUP.features }, ..SETUP };
    for (setup, instructions, expected) in [
        (SETUP, Instructions::Keep, "clean complete_caches"),
        (SETUP, Instructions::Invalidate, "clean complete_caches instruction_cache complete context_sync"),
        // The guest has never bypassed the caches.
        (forced, Instructions::Keep, ""),
        (forced, Instructions::Invalidate, "instruction_cache complete context_sync"),
    ] {
        let machine = Processors::new(&[]);
        let context = Context::enter(&machine, vttbr(), NONE);
        let done = invalidate(&context, &setup, Plan::<core::iter::Empty<Stale>>::Nothing);
        clean(&machine, &done, &setup, core::iter::once(0..0x1000), instructions);
        assert_eq!(machine.trace().join(" "), expected);
    }
}

#[test]
fn a20_the_former_vttbr_comes_back() {
    let changed = "set_vttbr context_sync order_stores range complete combined complete context_sync \
                   set_vttbr context_sync";
    let careful =
        std::format!("forbid_stage1_walks context_sync {changed} restore_stage1_walks context_sync");
    for (speculative_at, expected) in [(false, changed), (true, &careful)] {
        let machine = Processors::new(&HELD).elsewhere();
        let before = machine.registers();
        let setup = Setup { errata: Errata { speculative_at, ..NONE }, ..SETUP };
        assert_eq!(left_by(&machine, &setup, TABLE), []);
        assert_eq!((machine.registers(), machine.trace().join(" ").as_str()), (before, expected));
    }
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
    let by_vmid = Setup { features: Features { instructions_by_vmid: true, ..SETUP.features }, ..SETUP };
    let stage1 = Arrival { stage1: true, ..Arrival::NOTHING };
    let (moved, all) = (Arrival { instructions: true, ..stage1 }, stage1.with_all_vms(true));
    for (setup, arrival, expected) in [
        (SETUP, Arrival::NOTHING, ""),
        (SETUP, stage1, " local_combined complete_local context_sync"),
        (SETUP, moved, " local_combined local_instruction_cache complete_local context_sync"),
        (SETUP, all, " local_all_vms complete_local context_sync"),
        // P21: a reused VMID brings its lines along.
        (by_vmid, stage1, " local_combined complete_local context_sync"),
        (by_vmid, all, " local_all_vms local_instruction_cache complete_local context_sync"),
    ] {
        let machine = Processors::new(&[]).elsewhere();
        machine.hold(0, VMID, Held::Combined);
        machine.hold(1, VMID, Held::Combined);
        enter_vm(&machine, &setup, vttbr(), arrival);
        let loaded = "complete set_vttbr context_sync";
        assert_eq!(machine.trace().join(" "), std::format!("{loaded}{expected}"));
        let left = if expected.is_empty() { 2 } else { 1 };
        assert_eq!(machine.held(VMID).len(), left, "the other processor keeps its own");
        assert_eq!(machine.registers().0, vttbr().bits());
        // The next time it is loaded already.
        enter_vm(&machine, &setup, vttbr(), arrival);
        assert_eq!(machine.trace().join(" "), std::format!("{loaded}{expected}{expected}"));
    }
}

#[test]
fn a20_stage_1_walks_stay_off_until_the_guests_own_registers_are_loaded() {
    assert_eq!(vttbr().vmid(), VMID);
    let nowhere = Vttbr::new(0x7000, 0);
    for speculative_at in [false, true] {
        let setup = Setup { errata: Errata { speculative_at, ..NONE }, ..SETUP };
        let forbidden = if speculative_at { "forbid_stage1_walks context_sync " } else { "" };
        let check = |machine: &Processors, expected: &str, loaded: Vttbr| {
            assert_eq!(machine.trace().join(" "), std::format!("{forbidden}{expected}"));
            assert_eq!(machine.registers().0, loaded.bits());
            let off = 1 << 7 | 1 << 23;
            assert_eq!(machine.registers().1 & off, if speculative_at { off } else { 0 });
            assert_eq!((machine.held(VMID), machine.held(0)), (Vec::new(), Vec::new()), "nothing is mixed");
        };
        let machine = Processors::new(&[]).elsewhere();
        machine.is_speculative.set(speculative_at);
        enter_vm(&machine, &setup, vttbr(), Arrival::NOTHING);
        check(&machine, "complete set_vttbr context_sync", vttbr());
        // One that leaves has no machine's tables.
        let machine = Processors::new(&[]).elsewhere();
        machine.is_speculative.set(speculative_at);
        leave_vm(&machine, &setup, nowhere);
        check(&machine, "set_vttbr context_sync complete", nowhere);
    }
}
