//! Exits with random contents: no panic, and the vCPU can be entered again, or reports that it
//! cannot continue. What a handler leaves is never what an entry refuses.

use baremetal::random::Random;

use super::processor::{Guest, with_guest};
use super::refusal::wrong_field;
use crate::svm::tests::random::{CODES, each_seed, goes_on, number};
use crate::vm::Next;
use crate::vmx::table::{ENTRY_FAILURE, EXCEPTION};
use crate::vmx::vmcs::BLOCKING_BY_NMI;
use crate::x86::vcpu::block::Field::{Cr0, Cr4, Efer, Rflags, Rip, Rsp};
use crate::x86::vcpu::block::{ControlBlock, Segment, SegmentName};
use crate::x86::vcpu::event;
use crate::x86::{CR4_PAE, DR6_SINGLE_STEP, EFER_LME, RFLAGS_IF, RFLAGS_TF};

fn begin(random: &mut Random, guest: &mut Guest<'_, '_>) {
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
        2 => {
            for (field, value) in [(Efer, 0), (Cr0, 0x10), (Cr4, 0)] {
                guest.set_field(field, value);
            }
            let code = Segment { selector: 0x100, attributes: 0x9b, limit: 0xffff, base: 0x1000 };
            guest.0.state.block.set_segment(SegmentName::Cs, code);
        }
        _ => {}
    }
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
    let flags = random.word() & 0x7fd5 | 2;
    guest.set_field(Rflags, flags);
    guest.set_field(Rsp, number(random));
    if random.one_in(4) {
        guest.set_field(Rip, number(random));
    }
    let shadow = random.one_of([0, 0, 2, BLOCKING_BY_NMI.into(), if flags & RFLAGS_IF != 0 { 1 } else { 0 }]);
    guest.vmcs().set_interruptibility(shadow as u32);
    let breakpoint = random.one_of([0, 0, 1 << 12 | 1]);
    let step = if flags & RFLAGS_TF != 0 { DR6_SINGLE_STEP } else { 0 };
    guest.vmcs().set_pending_debug(step | breakpoint);
}

fn exit(random: &mut Random, guest: &mut Guest<'_, '_>) -> Next {
    let vmcs = guest.vmcs();
    vmcs.guest_physical = number(random);
    vmcs.interruption = random.word() & 0xffff_ffff_0000_1fff | event::VALID;
    vmcs.vectoring = 0;
    if random.one_in(4) {
        let kind =
            random.one_of([0, 0x80, event::TYPE_NMI | 2, 3 << 8 | 6, 4 << 8 | 0x80, 5 << 8 | 1, 6 << 8 | 3]);
        vmcs.vectoring = event::VALID | kind | random.below(2) << 12;
        if kind < event::TYPE_EXCEPTION {
            vmcs.set_interruptibility(0); // It has not begun in a shadow.
        }
    }
    guest.0.state.recover_event();
    let code = match random.below(8) {
        0 => random.one_of([ENTRY_FAILURE | 33, ENTRY_FAILURE | 34, EXCEPTION + 1, EXCEPTION + 17]),
        1 | 2 => 48,
        3 => 30,
        4 => 28,
        _ => random.below(80).max(1),
    };
    let qualification = if random.one_in(2) { random.word() } else { number(random) };
    guest.leave(code, random.below(16), qualification)
}

fn play(seed: u64, steps: u32) {
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    with_guest(&[], |guest| {
        if random.one_in(2) {
            guest.enable_hypercalls();
        }
        for step in 0..steps {
            begin(&mut random, guest);
            if wrong_field(guest.vmcs()).is_some() {
                continue; // No guest can get there.
            }
            let next = exit(&mut random, guest);
            assert!(guest.raised().is_none_or(|vector| vector < 32));
            if matches!(next, Next::Reset | Next::PowerOff | Next::Shutdown | Next::Dead) {
                continue;
            }
            goes_on(guest, (seed, step), |guest| {
                guest.enter(move |vmcs, _| {
                    assert_eq!(wrong_field(vmcs), None, "seed {seed}, step {step}, after {next:?}");
                })
            });
        }
    });
}

#[test]
fn no_exit_stops_the_hypervisor_or_a_vcpu_that_goes_on() {
    each_seed(40, play);
}
