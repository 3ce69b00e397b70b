//! Exits with random contents: no panic, and the vCPU can be entered again, or reports that it
//! cannot continue. What a handler leaves is never what an entry refuses.

use baremetal::random::Random;

use super::mock::Stay;
use super::processor::{Guest, TABLES, with_guest, written};
use super::refusal::wrong_field;
use super::said::Said;
use crate::devices::pc::message::Trigger;
use crate::svm::tests::due::Due;
use crate::svm::tests::random::{begin_anywhere, each_seed, goes_on, number};
use crate::vm::Next;
use crate::vmx::fields as f;
use crate::vmx::table::{ENTRY_FAILURE, EXCEPTION};
use crate::vmx::vmcs::BLOCKING_BY_NMI;
use crate::x86::vcpu::block::Field::{Cr0, Cr4, Efer, Rflags};
use crate::x86::vcpu::block::{ControlBlock, Segment, SegmentName};
use crate::x86::vcpu::event;
use crate::x86::vcpu::nmi::Nmi;
use crate::x86::vcpu::signals;
use crate::x86::{CR0_PE, CR4_PAE, DR6_SINGLE_STEP, EFER_LME, RFLAGS_IF, RFLAGS_TF};

fn begin(random: &mut Random, guest: &mut Guest<'_, '_>) {
    begin_anywhere(random, guest, |guest| {
        for (field, value) in [(Efer, 0), (Cr0, 0x10), (Cr4, 0)] {
            guest.set_field(field, value);
        }
        let code = Segment { selector: 0x100, attributes: 0x9b, limit: 0xffff, base: 0x1000 };
        guest.0.state.block.set_segment(SegmentName::Cs, code);
    });
    if guest.field(Efer) == 0 {
        guest.set_field(Efer, random.one_of([0, EFER_LME]));
        guest.set_field(Cr4, random.one_of([0, CR4_PAE]));
        let task = Segment { selector: 0x20, attributes: 0x83, limit: 0x67, base: 0 };
        if random.one_in(2) {
            guest.0.state.block.set_segment(SegmentName::Tr, task);
        }
    }
    if random.one_in(3) {
        guest.set_cpl(3);
    }
    guest.set_field(Rflags, random.word() & 0x7fd5 | 2);
    let blocked = random.one_in(4);
    guest.vmcs().set_interruptibility(if blocked { BLOCKING_BY_NMI } else { 0 });
    guest.vmcs().set_pending_debug(0);
    guest.0.state.nmi = Nmi::default();
    guest.0.state.nmi.set(Nmi::BLOCKED, blocked);
    while guest.0.state.lapic.highest_isr().is_some() {
        let _effect = guest.0.state.lapic.eoi();
    }
    if random.one_in(4) {
        guest.0.state.nmi.post();
    }
    if random.one_in(2) {
        let vector = 0x20 + random.below(0xe0) as u8;
        guest.0.state.lapic.accept_fixed(vector, Trigger::Edge);
    }
}

/// The guest runs for a while.
fn wander(random: &mut Random, stay: &mut Stay) {
    if random.one_in(4) {
        stay.write(f::GUEST_RIP, number(random));
    }
    let flags = random.word() & 0x7fd5 | 2;
    stay.write(f::GUEST_RFLAGS, flags);
    for field in [f::GUEST_RSP, f::GUEST_ES_BASE, f::GUEST_DS_BASE, f::GUEST_FS_BASE, f::GUEST_SS_BASE] {
        stay.write(field, number(random) & 0xffff_ffff);
    }
    stay.write(f::GUEST_CR3, if random.one_in(8) { number(random) & ((1 << 40) - 1) } else { TABLES });
    let shadow = random.one_of([0, 0, 2, BLOCKING_BY_NMI.into(), if flags & RFLAGS_IF != 0 { 1 } else { 0 }]);
    stay.write(f::INTERRUPTIBILITY, shadow);
    let step = if flags & RFLAGS_TF != 0 { DR6_SINGLE_STEP } else { 0 };
    stay.write(f::PENDING_DEBUG, step | random.one_of([0, 0, 1 << 12 | 1]));
}

/// An exit, which may cut short what the entry delivers, or an event of the guest's own.
fn exit(random: &mut Random, delivered: u64, is_protected: bool) -> Said {
    let code = match random.below(10) {
        0 => random.one_of([ENTRY_FAILURE | 33, ENTRY_FAILURE | 34]),
        1 => random.one_of([EXCEPTION + 1, EXCEPTION + 17]),
        2 | 3 => 48,
        4 => random.one_of([44, 49, 62]),
        5 => 30,
        6 => 28,
        _ => random.below(80).max(1),
    };
    let qualification = if random.one_in(2) { random.word() } else { number(random) };
    let mut said = Said { physical: number(random), ..Said::of(code, random.below(16), qualification) };
    said.exception = event::VALID | event::TYPE_EXCEPTION | random.below(2) << 12;
    if code == EXCEPTION + 17 && is_protected {
        said.exception |= event::ERROR_VALID | random.below(16) << 32;
    }
    if said.cuts() && random.one_in(2) {
        let (with_code, code) =
            if is_protected { (event::ERROR_VALID, random.word() << 48 >> 16) } else { (0, 0) };
        let own = random.one_of([
            event::exception(0),
            event::exception(6),
            event::exception(8) | with_code,
            event::exception(13) | with_code | code,
            event::exception(14) | with_code | code,
            event::VALID | event::TYPE_SOFTWARE | 0x80,
            event::VALID | 5 << 8 | 1,
            event::VALID | 6 << 8 | 3,
        ]);
        said.event = if delivered & event::VALID != 0 && random.one_in(2) { delivered } else { own };
    }
    said
}

/// Whether NMIs are blocked behind an exit: also where an IRET that faults has unblocked them
/// (28.2.3), which is executed again.
fn blocks_nmis(said: &Said, interruptibility: u32) -> bool {
    let info = match said.code {
        48 | 62 => said.qualification,
        EXCEPTION..ENTRY_FAILURE => said.exception,
        _ => 0,
    };
    interruptibility & BLOCKING_BY_NMI != 0 || said.event & event::VALID == 0 && info >> 12 & 1 != 0
}

/// Enters the guest, whose exit this is. What the entry delivers is what is due.
fn enter(guest: &mut Guest<'_, '_>, due: u64, mut act: impl FnMut(&mut Stay) + 'static) -> bool {
    guest.enter(move |stay, _| {
        let delivered = stay.delivered();
        let event = if delivered & event::VALID == 0 { 0 } else { delivered };
        assert_eq!(event, due, "{event:#x} is delivered, and {due:#x} is due");
        act(stay);
    })
}

/// One exit, and the entry after it.
fn step(random: &mut Random, guest: &mut Guest<'_, '_>, at: (u64, u32)) {
    begin(random, guest);
    if wrong_field(guest.vmcs()).is_some() {
        return; // No guest can get there.
    }
    let first = guest.due(0, None, guest.0.state.nmi.contains(Nmi::BLOCKED));
    let said = exit(random, first, guest.field(Cr0) & CR0_PE != 0);
    let (mut its, is_at_once) = (Random::new(random.word()), said.event == first && first != 0);
    if !enter(guest, first, move |stay| {
        if !is_at_once {
            wander(&mut its, stay);
        }
        stay.said = said;
    }) {
        let _posted = guest.0.owner.take_events();
        return signals::take_signals(guest.0);
    }
    guest.check_request(said.event);
    if !said.is_failure() && wrong_field(guest.vmcs()).is_some() {
        return; // As above.
    }
    let is_blocked = blocks_nmis(&said, guest.vmcs().interruptibility());
    let next = guest.handle();
    let raised = guest.0.state.exception;
    assert!(guest.raised().is_none_or(|vector| vector < 32));
    if matches!(next, Next::Reset | Next::PowerOff | Next::Shutdown | Next::Dead) {
        return;
    }
    let is_quiet = matches!(said.code, 1 | 3..=8 | 43 | 45 | 62);
    assert!(raised.is_none() || !is_quiet, "{raised:x?} after {said:x?}");
    let mut due = Due::default();
    goes_on(guest, at, |guest| {
        let event = due.of(guest, said.event, raised, is_blocked);
        let blocked = if is_blocked && !due.is_nmi() { BLOCKING_BY_NMI } else { 0 };
        enter(guest, event, move |_| {
            let state = written(f::INTERRUPTIBILITY.raw()) as u32;
            assert_eq!(state & BLOCKING_BY_NMI, blocked, "blocking by NMI after {said:x?}");
        })
    });
    guest.check_nmi(said.event, due.0);
}

fn play(seed: u64, steps: u32) {
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    with_guest(&[], |guest| {
        if random.one_in(2) {
            guest.enable_hypercalls();
        }
        for index in 0..steps {
            step(&mut random, guest, (seed, index));
        }
    });
}

#[test]
fn no_exit_stops_the_hypervisor_or_a_vcpu_that_goes_on() {
    each_seed(40, play);
}
