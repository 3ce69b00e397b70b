//! Exits with random contents: no panic, and the vCPU can be entered again or reports that it
//! cannot continue.

use baremetal::random::Random;

use super::due::Due;
use super::guest::{Guest as GuestOf, Kind};
use super::processor::{CODE, DATA, Guest, HOLE, MEMORY, TABLES, UNMAPPED, board, processor};
use crate::devices::pc::message::Trigger;
use crate::svm::features::Features;
use crate::svm::table::{Event, Row};
use crate::svm::vmcb::EFER_SVME;
use crate::vm::Next;
use crate::x86::vcpu::block::Segment;
use crate::x86::vcpu::event;
use crate::x86::vcpu::nmi::Nmi;
use crate::x86::{CR0_PE, EFER_LMA, RFLAGS_VM};

/// A number that may be an address, a register's number or a size.
pub(crate) fn number(random: &mut Random) -> u64 {
    let edges = [
        0,
        CODE,
        DATA,
        HOLE,
        MEMORY,
        TABLES,
        UNMAPPED,
        0xfec0_0000,
        0xfee0_0000,
        1 << 32,
        1 << 40,
        1 << 47,
        (1 << 47) - 1,
        u64::MAX << 47,
        u64::MAX,
        0x1000,
        0x4000_0000,
        0xc000_0080,
        0x800,
        0x6e0,
    ];
    match random.below(4) {
        0 => random.word(),
        1 => random.word() >> random.below(64),
        2 => random.one_of(edges),
        _ => random.one_of(edges).wrapping_add(random.below(64)).wrapping_sub(32),
    }
}

/// Instructions that have rows, and some on memory.
const CODES: [&[u8]; 20] = [
    &[0x0f, 0x32],
    &[0x0f, 0x30],
    &[0x0f, 0xa2],
    &[0x0f, 0x01, 0xd9],
    &[0xf4],
    &[0xf3, 0x90],
    &[0x0f, 0x01, 0xd1],
    &[0x0f, 0x22, 0xe0],
    &[0x44, 0x0f, 0x22, 0xc3],
    &[0xf3, 0x6e],
    &[0xf3, 0x6c],
    &[0x67, 0x66, 0x6f],
    &[0x8b, 0x03],
    &[0x89, 0x03],
    &[0xf0, 0x0f, 0xb1, 0x0b],
    &[0xf3, 0xa4],
    &[0xf3, 0x48, 0xab],
    &[0x87, 0x44, 0x24, 0x08],
    &[0xff, 0x33],
    &[0x0f, 0xb6, 0x07],
];

/// Random code and registers, in each mode now and then: returns the code.
pub(crate) fn begin_anywhere<A: Kind>(
    random: &mut Random,
    guest: &mut GuestOf<'_, '_, A>,
    real_mode: fn(&mut GuestOf<'_, '_, A>),
) -> Vec<u8> {
    let code: Vec<u8> = match random.below(3) {
        0 => (0..16).map(|_| random.word() as u8).collect(),
        _ => CODES[random.below(CODES.len() as u64) as usize].to_vec(),
    };
    guest.begin(&code);
    for register in 0..16 {
        let value = number(random);
        guest.set(register, value);
    }
    match random.below(6) {
        0 => guest.legacy_mode(Segment::DEFAULT_32),
        1 => guest.legacy_mode(0),
        2 => real_mode(guest),
        _ => {}
    }
    code
}

fn exit_of(random: &mut Random, guest: &mut Guest<'_, '_>) -> (u64, Next) {
    let code = begin_anywhere(random, guest, |guest| {
        let vmcb = guest.vmcb();
        (vmcb.cr0, vmcb.efer, vmcb.cs.attributes, vmcb.cr4) = (0, EFER_SVME, 0x9b, 0);
    });
    let vmcb = guest.vmcb();
    if random.one_in(3) {
        vmcb.cpl = 3;
    }
    vmcb.rflags |= random.word() & 0x3_7fd5 & !RFLAGS_VM;
    if random.one_in(4) {
        vmcb.rip = number(random);
    }
    if random.one_in(8) {
        vmcb.cr3 = number(random);
    }
    vmcb.rsp = number(random);
    vmcb.interrupt_shadow = random.below(2);
    (vmcb.es.base, vmcb.ds.base, vmcb.fs.base) = (number(random), number(random), number(random));
    (vmcb.tr.base, vmcb.tr.limit) = (number(random), random.below(0x3000) as u32);
    vmcb.tr.attributes = 0x8b;
    vmcb.next_rip = number(random);
    vmcb.fetched_count = random.word() as u8;
    vmcb.fetched_bytes =
        std::array::from_fn(|index| if index < code.len() { code[index] } else { random.word() as u8 });
    // A test's changes are no guest's: no translation that the processor holds is of use.
    guest.0.state.own.asid.owe_flush();
    processor(|processor| processor.features = Features(random.word() as u32));
    let code = loop {
        let code = match random.below(8) {
            0 => number(random),
            1..3 => 0x400,
            3 => 0x7b,
            _ => random.below(0xc0),
        };
        if Row::of(&super::exit(code, 0, 0)) != Row::Event(Event::MachineCheck) {
            break code;
        }
    };
    let event = event_of(random, guest, matches!(code, 0x40..=0x5f | 0x7d | 0x400));
    let next = guest.exit_in_delivery(event, [code, number(random), number(random)]);
    guest.check_request(event);
    (event, next)
}

/// What the exit cuts short, if it may: an interrupt or an NMI that the entry before has delivered,
/// or an event of the guest's own.
fn event_of(random: &mut Random, guest: &mut Guest<'_, '_>, may_cut: bool) -> u64 {
    let state = &mut *guest.0.state;
    while state.lapic.highest_isr().is_some() {
        let _effect = state.lapic.eoi();
    }
    let vector = 0x20 + random.below(0xe0) as u8;
    let code = event::ERROR_VALID | random.word() << 48 >> 16;
    let event = match random.below(8) {
        _ if !may_cut => return 0,
        0 => {
            state.lapic.accept_fixed(vector, Trigger::Edge);
            state.lapic.begin_service(vector);
            if state.lapic.highest_isr() != Some(vector) {
                return 0; // The guest has switched it off.
            }
            event::TYPE_INTERRUPT | u64::from(vector)
        }
        1 => {
            state.nmi.insert(Nmi::BLOCKED);
            event::TYPE_NMI | 2
        }
        2 => event::TYPE_SOFTWARE | u64::from(vector),
        3 => event::TYPE_EXCEPTION | random.one_of([0, 1, 3, 4, 6, 17]),
        4 => event::TYPE_EXCEPTION | code | random.one_of([8, 11, 13, 14]),
        _ => return 0,
    };
    event | event::VALID
}

fn check(guest: &mut Guest<'_, '_>, mask: u64) {
    assert!(guest.raised().is_none_or(|vector| vector < 32));
    let (cr0, cr4) = (guest.vmcb().cr0, guest.vmcb().cr4);
    assert_ne!(guest.vmcb().efer & EFER_SVME, 0, "VMRUN would refuse it");
    assert_eq!(cr4 & !(mask | 1 << 18), 0, "{cr4:#x}");
    assert!(cr0 & CR0_PE != 0 || guest.vmcb().efer & EFER_LMA == 0);
}

fn play(seed: u64, steps: u32) {
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let board = board();
    board.with_vcpu(0, |context| {
        let guest = &mut Guest(context);
        if random.one_in(2) {
            guest.begin(&[]);
            guest.enable_hypercalls();
        }
        for step in 0..steps {
            let (event, next) = exit_of(&mut random, guest);
            let raised = guest.0.state.exception;
            let mask = guest.0.vm.guest.cr4_mask;
            check(guest, mask);
            if matches!(next, Next::Reset | Next::PowerOff | Next::Shutdown | Next::Dead) {
                continue;
            }
            if random.one_in(8) {
                guest.0.state.nmi.post();
            }
            if random.one_in(4) {
                let vector = 0x20 + random.below(0xe0) as u8;
                guest.0.state.lapic.accept_fixed(vector, Trigger::Edge);
            }
            let mut due = Due::default();
            goes_on(guest, (seed, step), |guest| {
                let is_blocked = guest.0.state.nmi.contains(Nmi::BLOCKED);
                let due = due.of(guest, event, raised, is_blocked);
                guest.enter(move |vmcb, _| {
                    let taken = processor(|processor| processor.taken);
                    let taken = taken.map_or(0, |vector| event::VALID | u64::from(vector));
                    let delivered = if taken == 0 { vmcb.event_injection } else { taken };
                    assert_eq!(delivered, due, "{delivered:#x} is delivered, and {due:#x} is due");
                })
            });
            guest.check_nmi(event, due.0);
        }
    });
}

/// The vCPU enters the guest, after at most three entries that are called off.
pub(crate) fn goes_on<A: Kind>(
    guest: &mut GuestOf<'_, '_, A>,
    (seed, step): (u64, u32),
    mut enter: impl FnMut(&mut GuestOf<'_, '_, A>) -> bool,
) {
    let mut entries = 0;
    while !enter(guest) {
        entries += 1;
        assert!(entries < 4, "seed {seed}, step {step}: nothing calls an entry off for ever");
        let _posted = guest.0.owner.take_events();
        A::take_signals(guest.0);
    }
    guest.0.state.exception = None;
}

/// Plays this many seeds, and says which one fails.
pub(crate) fn each_seed(seeds: u64, play: fn(seed: u64, steps: u32)) {
    for seed in 0..seeds {
        let done = std::panic::catch_unwind(|| play(seed, 400));
        if let Err(why) = done {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(why);
        }
    }
}

#[test]
fn no_exit_stops_the_hypervisor_or_a_vcpu_that_goes_on() {
    each_seed(60, play);
}
