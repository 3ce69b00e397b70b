//! Random guests of a guest: whatever L1 writes into its blocks and its nested tables, whatever the
//! processor reports of L2, and whatever comes in between. What must follow is the [model]'s.
//!
//! `QUELL_INNER_SEED` runs from that seed on, and `QUELL_INNER_RUNS` so many.

mod model;
mod stays;

use coherence::CpuId;
use coherence::asid::AsidAllocator;
use core::num::NonZeroU32;
use paging::{Invalidation, Permissions};
use std::cell::RefCell;
use std::rc::Rc;

use self::model::{Tlb, Whose, walk};
use self::stays::{Did, LEGACY_ROOT, PAE_ROOT, Storm, read};
use super::*;
use crate::svm::features::Features;
use crate::svm::intercepts::{fill_msr_map, map_place};
use crate::svm::tests::processor::MockSvm;
use crate::svm::vmcb::clean;
use crate::vm::mock;
use crate::x86::vcpu::state::Activity;
use crate::x86::{CR4_PAE, CR4_PSE, EFER_NXE, enter};

/// The exit that L1 must get before L2 is entered.
fn early(storm: &Storm, guest: &Guest<'_, '_>) -> Option<u64> {
    let state = &*guest.0.state;
    let inside = state.own.nested.as_ref()?.inside.as_ref()?;
    let (block, misc) = (&storm.block, storm.block.intercept_misc1);
    if inside.fault.is_some() {
        return Some(0x400);
    }
    if let Some(vector) = guest.raised() {
        return (block.intercept_exceptions >> vector & 1 != 0).then_some(0x40 + vector);
    }
    if state.own.holds_events() || state.block.event() & event::VALID != 0 {
        return None;
    }
    if state.nmi.is_deliverable() {
        return (misc & misc1::NMI != 0).then_some(0x61);
    }
    let masks = block.interrupt_control & vintr::MASKING != 0;
    let decides = if masks { storm.own.rflags } else { state.block.rflags };
    let is_taken = state.lapic.pending().is_some() && decides & RFLAGS_IF != 0;
    (is_taken && misc & misc1::INTR != 0).then_some(0x60)
}

/// A mode of L1's, in which its nested tables are as well.
fn set_mode(guest: &mut Guest<'_, '_>, mode: u64, no_execute: bool) {
    let b = guest.vmcb();
    let efer = EFER_SVME | if no_execute { EFER_NXE } else { 0 };
    (b.cr3, b.cr4, b.efer, b.cs.attributes) = match mode {
        0 => (TABLES, CR4_PAE | 1 << 18, efer | EFER_LME | EFER_LMA, 0xa9b),
        1 => (PAE_ROOT, CR4_PAE | 1 << 18, efer, 0xc9b),
        2 => (LEGACY_ROOT, CR4_PSE | 1 << 18, efer, 0xc9b),
        _ => (LEGACY_ROOT, CR4_PSE | CR4_PSE << 14, efer, 0xc9b),
    };
    b.mark_dirty(clean::ALL);
    guest.0.state.own.asid.owe_flush();
}

/// L1 begins, or begins again.
fn start(guest: &mut Guest<'_, '_>) {
    let _nothing = guest.0.state.lapic.write_page(0xfee0_00f0, 0x1ff, 0);
    guest.write_msr(EFER, EFER_LME | EFER_SVME);
    for index in 0..512 {
        guest.write(
            LEGACY_ROOT + 8 * index,
            &((index << 1 | 1) << 54 | (0x87 << 32) | index << 23 | 0x87).to_le_bytes(),
        );
    }
    guest.write(PAE_ROOT, &((TABLES + 0x2000) | 1).to_le_bytes());
    guest.0.state.own.asid.owe_flush();
}

fn come_between(storm: &mut Storm, guest: &mut Guest<'_, '_>) {
    let state = &mut *guest.0.state;
    state.activity = Activity::Running;
    while state.lapic.highest_isr().is_some() {
        let _effect = state.lapic.eoi();
    }
    if storm.random.one_in(16) {
        state.nmi.post();
    }
    if storm.random.one_in(16) {
        state.nmi.remove(Nmi::BLOCKED);
    }
    if storm.random.one_in(16) {
        state.lapic.accept_fixed(0x20 + storm.random.below(0xe0) as u8, Trigger::Edge);
    }
    for _ in 0..storm.random.below(3) {
        storm.change_tables();
    }
    if storm.random.one_in(24) {
        let _receipt = guest.0.vm.flush_space(Invalidation::Everything, &mut guest.0.workspace.scratch);
        storm.tlb.drop_everything();
    }
    if !is_inside(guest) && storm.random.one_in(16) {
        set_mode(guest, storm.random.below(3), storm.random.one_in(2));
    }
    if !is_inside(guest) && storm.random.one_in(32) {
        set_mode(guest, 0, false);
        let page = storm.page();
        let pages = if storm.random.one_in(2) { &[page][..] } else { &[] };
        flush(guest, pages);
        storm.tlb.drop(0, pages.first().copied());
        start(guest);
    }
}

/// What VMRUN, or another of L1's instructions, has done.
fn check_outer(
    storm: &mut Storm,
    guest: &mut Guest<'_, '_>,
    maps: &[u8],
    (code, rax, asid): (u64, u64, u32),
) {
    let (has_svm, is_inside) = (guest.0.state.own.efer() != 0, is_inside(guest));
    match code {
        0x7a if has_svm && asid <= 0xff => storm.tlb.drop(asid, Some(rax)),
        VMRUN if is_inside => {
            storm.is_fresh = true;
            storm.tlb.vmrun(&storm.block, storm.tables());
            let b = &storm.block;
            assert!(b.asid != 0 && b.intercept_misc2 & misc2::VMRUN != 0 && b.efer & EFER_SVME != 0);
            let map = &guest.0.state.own.nested.as_ref().expect("may nest").msr_map;
            for _ in 0..16 {
                let base = storm.random.one_of([0, 0xc000_0000, 0xc001_0000]);
                let number = (base + storm.random.below(0x200)) as u32;
                let (byte, bit) = map_place(number).expect("in the map");
                let word = map.words()[byte / 8].load(core::sync::atomic::Ordering::Relaxed);
                let exits = word.to_le_bytes()[byte % 8] >> bit & 3;
                let theirs = read(storm.vm, ((b.msrpm_base & !0xfff) + byte as u64) & !7)
                    .map_or(0xff, |word| word.to_le_bytes()[byte % 8]);
                let theirs = if b.intercept_misc1 & misc1::MSR != 0 { theirs } else { 0 };
                assert_eq!(
                    exits,
                    (maps[byte] | theirs) >> bit & 3 | exits & maps[byte] >> bit,
                    "{number:#x}"
                );
            }
        }
        VMRUN if has_svm && guest.raised().is_none() => {
            assert!(guest.0.state.own.holds_events(), "GIF is 0");
            assert_eq!(read(storm.vm, rax + 0x70), Some(INVALID), "{rax:#x}");
        }
        _ => {}
    }
}

/// L1 has what it had at VMRUN, and its block says why it goes on.
fn check_exit(storm: &Storm, guest: &mut Guest<'_, '_>, exit: [u64; 4], left: Option<(&Vmcb, Option<u64>)>) {
    assert!(!is_inside(guest), "{exit:x?} is L1's");
    let word = |at: u64| read(storm.vm, storm.at + at).expect("is memory");
    assert_eq!([0x70, 0x78, 0x80, 0x88].map(word), exit);
    assert_eq!(word(0xa8) & event::VALID, 0);
    if let Some((left, kept)) = left {
        let is = [0x578, 0x570, 0x5d8, 0x5f8, 0x640].map(word);
        assert_eq!(is, [left.rip, left.rflags, left.rsp, left.rax, left.cr2]);
        assert_eq!(Some(word(0x58)), kept, "what L1 has written");
    }
    let (own, now) = (&storm.own, &*guest.0.state.block);
    let held = |b: &Vmcb| ([b.cr0 | 1, b.cr3, b.cr4, b.efer, b.rsp], [b.es, b.cs, b.ss, b.ds]);
    assert_eq!(held(now), held(own));
    assert_eq!((now.rip, now.cpl, now.dr7), (own.rip + 3, 0, 0x400));
    assert!(guest.0.state.own.holds_events());
}

fn check_shadow(storm: &mut Storm, guest: &mut Guest<'_, '_>) {
    let Some(tables) = storm.tables() else { return };
    let nested = guest.0.state.own.nested.as_deref().expect("may nest");
    let Some(inside) = &nested.inside else { return };
    let memory = storm.vm.space.slots().memory();
    let mut leaves = Vec::new();
    let shadow = nested.shadows[nested.contexts.shadow(inside.context)].as_ref().expect("has tables");
    shadow.for_each(|at, pa, rights| leaves.push((at, pa, rights)));
    for (at, pa, rights) in leaves {
        let leads =
            |gpa: u64| memory.find(Gpa(gpa)).is_some_and(|place| place.host.0 + (gpa - place.gpa.0) == pa.0);
        let is_writable = rights.contains(Permissions::WRITE);
        let now = walk(&|at| read(storm.vm, at), tables, at, false, false);
        assert!(storm.tlb.allows(at, is_writable, &leads), "{at:#x} to {pa}, {rights:?}; {now:x?}");
    }
}

fn step(shared: &Rc<RefCell<Storm>>, guest: &mut Guest<'_, '_>, maps: &[u8]) {
    come_between(&mut shared.borrow_mut(), guest);
    let was_inside = is_inside(guest);
    shared.borrow_mut().was_inside = was_inside;
    let (mut due, mut calls) = (None, 0);
    loop {
        due = due.or_else(|| early(&shared.borrow(), guest));
        shared.borrow_mut().prepare(guest.0.state.nmi);
        let stay = Rc::clone(shared);
        processor(|processor| {
            processor.stay = Some(Box::new(move |vmcb, registers| stay.borrow_mut().stay(vmcb, registers)));
        });
        if enter::enter(guest.0) {
            break;
        }
        calls += 1;
        assert!(calls < 4, "nothing calls an entry off for ever");
        let _posted = guest.0.owner.take_events();
        <MockSvm as crate::vm::arch::Arch>::take_signals(guest.0);
    }
    let next = table::handle_exit(guest.0);
    let storm = &mut *shared.borrow_mut();
    storm.take_dropped();
    match storm.did.take() {
        Some(Did::Inner { whose, left, kept }) => {
            assert_eq!((was_inside, due), (true, None), "L1's exit comes first");
            match whose {
                Whose::L1(exit) => check_exit(storm, guest, exit, Some((&left, kept))),
                Whose::Ours => assert!(is_inside(guest), "{:x?} is ours", (left.exit_code, left.exit_info_1)),
                Whose::Either => {}
            }
            check_shadow(storm, guest);
        }
        Some(Did::Outer { code, rax, asid }) => match due {
            Some(code) => {
                let [info_1, info_2, event] = [0x78, 0x80, 0x88].map(|at| read(storm.vm, storm.at + at));
                let exit = [Some(code), info_1, info_2, event].map(|word| word.expect("is memory"));
                check_exit(storm, guest, exit, None);
            }
            None => {
                assert!(!was_inside, "L2 goes on: {:x?}", read(storm.vm, storm.at + 0x70));
                check_outer(storm, guest, maps, (code, rax, asid));
            }
        },
        None => panic!("nothing has run"),
    }
    assert_ne!(next, Next::Dead);
    if matches!(next, Next::Reset | Next::PowerOff | Next::Shutdown) {
        guest.0.state.reset(&guest.0.vcpu.inbox);
        guest.begin(&[]);
        start(guest);
        storm.tlb.drop_everything();
    }
}

fn play(seed: u64, steps: u32) {
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut maps = std::vec![0; 0x2000];
    fill_msr_map::<MockSvm>(&mut maps);
    with_l1(|guest| {
        let tags = 1 + random.below(7) as u32;
        let features = Features(random.word() as u32);
        processor(|processor| processor.features = features);
        let number = NonZeroU32::new(tags).expect("one at least");
        guest.0.workspace.asids = AsidAllocator::new(CpuId(0), number, features.flush_by_asid());
        start(guest);
        set_mode(guest, 0, false);
        let [block, own] = [Vmcb::boxed(), Vmcb::boxed()];
        let has_plenty = features.flush_by_asid() && tags > 3;
        let (vm, tlb) = (guest.0.vm, Tlb::new(has_plenty));
        let storm = Storm {
            random,
            vm,
            tags,
            tlb,
            did: None,
            was_inside: false,
            block,
            at: 0,
            own,
            is_fresh: false,
            is_stepped: false,
        };
        let shared = Rc::new(RefCell::new(storm));
        (0..200).for_each(|_| shared.borrow_mut().change_tables());
        for word in 0..0x7000 / 8 {
            let bits = shared.borrow_mut().random.word();
            guest.write(MAPS + 8 * word, &bits.to_le_bytes());
        }
        (0..steps).for_each(|_| step(&shared, guest, &maps));
        // Its state is described at the end of the turn.
        guest.0.state.exception = None;
    });
}

/// N1, N2, N3, N5, N6, N8, N10, N11, N13.
#[test]
fn n2_n3_n4_n6_whatever_l1_writes_and_l2_does_each_gets_its_own() {
    let first = mock::number("QUELL_INNER_SEED").unwrap_or(1);
    for seed in first..first + mock::number("QUELL_INNER_RUNS").unwrap_or(100) {
        if let Err(why) = std::panic::catch_unwind(|| play(seed, 500)) {
            std::eprintln!("seed {seed}");
            std::panic::resume_unwind(why);
        }
    }
}
