//! Each row of the table, with mock exits.

use hostlink::counters::Counter;

use super::exits::{
    Code, brings_the_breakpoints, cannot_go_on, ends_in_a_report, finds_no_instruction,
    gets_a_protection_fault, goes_on, shuts_down, test_of_instruction, writes_and_reads_a_port,
};
use super::processor::{DATA, Guest, HOLE, MockSvm, with_guest};
use crate::svm::table::INNER;
pub(super) use crate::svm::table::{Event, Instruction, Row};
use crate::svm::vmcb::{Vmcb, vintr};
use crate::vm::Next;
use crate::x86::vcpu::block::ControlBlock;
use crate::x86::vcpu::event;
use crate::x86::vcpu::nmi::Nmi;
use crate::x86::vcpu::registers::RBX;
use crate::x86::{DR6_SINGLE_STEP, RFLAGS_TF};

pub(crate) const MSR: u64 = 0x7c;
pub(crate) const CPUID: u64 = 0x72;
pub(crate) const HLT: u64 = 0x78;
pub(crate) const IOIO: u64 = 0x7b;
pub(crate) const VMMCALL: u64 = 0x81;
pub(crate) const XSETBV: u64 = 0x8d;
pub(crate) const NESTED: u64 = 0x400;
pub(crate) const PF: Option<u64> = Some(14);
pub(crate) const UD: Option<u64> = Some(6);
pub(crate) const GP: Option<u64> = Some(13);

/// Of moves to control registers.
pub(super) const OWN_EXITS: [(&[u8], u64); 2] =
    [(&[0x0f, 0x22, 0xe0], 0x14), (&[0x44, 0x0f, 0x22, 0xc0], 0x18)];

pub(super) fn leave(guest: &mut Guest<'_, '_>, (code, info_1): Code, _length: u64) -> Next {
    guest.exit(code, info_1, 0)
}

/// An exit that says more, which means nothing.
pub(super) fn leave_and_say(guest: &mut Guest<'_, '_>, (code, _): Code, _length: u64, info: u64) -> Next {
    guest.exit(code, info, info)
}

/// The instruction is read, if the processor does not say how long it is.
pub(super) fn with_instruction(row: Instruction, act: impl FnOnce(&mut Guest<'_, '_>)) {
    with_guest(row.bytes(), act);
}

pub(super) fn shadow(guest: &mut Guest<'_, '_>) {
    guest.vmcb().interrupt_shadow = 1;
}

pub(super) fn intercepts_debug(guest: &mut Guest<'_, '_>) -> bool {
    guest.vmcb().intercept_dr != 0
}

/// The test of a row: a row without a test does not compile.
pub(super) fn test_of(row: Row) -> fn(Code) {
    match row {
        Row::Instruction(row) => test_of_instruction(row),
        Row::Event(row) => match row {
            Event::Interrupt | Event::Signal | Event::Inner => goes_on,
            Event::Window => withdraws_the_request,
            Event::Port => writes_and_reads_a_port,
            Event::NestedFault => finds_memory,
            Event::ControlWrite => writes_a_control_register,
            Event::DebugRegister => brings_the_breakpoints,
            Event::InterruptReturn => steps_over_it_next,
            Event::Debug | Event::Exception => gets_the_exception,
            Event::MachineCheck => ends_in_a_report,
            Event::Refused => gets_a_protection_fault,
            Event::Svm | Event::Undefined | Event::Unexpected => finds_no_instruction,
            Event::Shutdown => shuts_down,
            Event::Invalid => cannot_go_on,
        },
    }
}

pub(super) fn codes(row: Row) -> Vec<(u64, u64)> {
    let all =
        (0..0x500).chain([INNER, u64::from(u32::MAX), u64::MAX]).flat_map(|code| [(code, 0), (code, 1)]);
    all.filter(|&(code, info_1)| Row::of(&super::exit(code, info_1, 0)) == row).collect()
}

fn withdraws_the_request((code, _): Code) {
    with_guest(&[], |guest| {
        guest.vmcb().interrupt_control |= vintr::IRQ;
        assert_eq!(guest.exit(code, 0, 0), Next::Resume);
        assert_eq!(guest.vmcb().interrupt_control & vintr::IRQ, 0);
    });
}

/// `info_1` of an access to a port.
pub(crate) const fn port(port: u16, bytes: u64, is_input: bool) -> u64 {
    (port as u64) << 16 | bytes << 4 | is_input as u64
}

fn finds_memory((code, _): Code) {
    with_guest(&[], |guest| {
        assert_eq!(guest.exit(code, 1 << 1, DATA), Next::Resume);
        assert_eq!((guest.count(Counter::NestedInstalled), guest.raised(), guest.advanced()), (1, None, 0));
        assert_eq!(guest.exit(code, 1 << 1 | 1 << 33, HOLE), Next::Resume);
        let found = (guest.count(Counter::MmioSearched), guest.raised());
        assert_eq!(found, (1, GP), "tables where no memory is");
    });
}

fn writes_a_control_register((code, _): Code) {
    let number = (code - 0x10) as u8;
    with_guest(&[0x0f, 0x22, 0xc0 | number << 3 | 3], |guest| {
        if number == 8 {
            guest.begin(&[0x44, 0x0f, 0x22, 0xc3]);
            guest.set(RBX, 9);
        } else {
            guest.set(RBX, 1 << 5 | 1 << 7 | 1 << 18);
        }
        assert_eq!(guest.exit(code, 0, 0), Next::Resume);
        assert_eq!(guest.raised(), None);
        match number {
            4 => assert_eq!((guest.vmcb().cr4, guest.advanced()), (1 << 5 | 1 << 7 | 1 << 18, 3)),
            _ => {
                assert_eq!((guest.0.state.lapic.tpr(), guest.advanced()), (0x90, 4));
                assert_eq!(guest.vmcb().interrupt_control & vintr::TPR_MASK, 9);
            }
        }
    });
}

fn steps_over_it_next((code, _): Code) {
    with_guest(&[0x48, 0xcf], |guest| {
        guest.0.state.nmi.post();
        guest.0.state.nmi.take();
        Vmcb::begin_nmi(guest.0.state);
        assert_eq!(guest.exit(code, 0, 0), Next::Resume);
        assert!(guest.0.state.nmi.contains(Nmi::AT_IRET));
        guest.0.state.prepare_events::<MockSvm>();
        assert!(guest.0.state.nmi.contains(Nmi::STEPPING));
        assert_ne!(guest.vmcb().rflags & RFLAGS_TF, 0);
        // The IRET is executed, and the guest sees nothing of the step's own #DB.
        guest.vmcb().rip += 2;
        guest.vmcb().dr6 |= DR6_SINGLE_STEP;
        let before = guest.count(Counter::ExitOther);
        assert_eq!(guest.exit(0x41, 0, 0), Next::Resume);
        assert_eq!((guest.raised(), guest.0.state.nmi.contains(Nmi::BLOCKED)), (None, false));
        assert_eq!(guest.count(Counter::ExitOther), before + 1);
    });
}

fn gets_the_exception((code, _): Code) {
    let vector = code - 0x40;
    with_guest(&[0xcc], |guest| {
        assert_eq!(guest.exit(code, 0x18, HOLE), Next::Resume);
        let event = guest.0.state.exception.expect("the exception that was intercepted");
        assert_eq!((event & 0xff, event & event::TYPE_MASK), (vector, event::TYPE_EXCEPTION));
        let has_error = matches!(vector, 10..=14 | 17);
        assert_eq!(event >> 32, if has_error { 0x18 } else { 0 });
        assert_eq!((event & event::ERROR_VALID != 0, guest.vmcb().cr2 == HOLE), (has_error, vector == 14));
        assert_eq!(guest.advanced(), 0);
        guest.vmcb().cr0 = 0;
        guest.exit(0x4d, 0x18, 0);
        assert_eq!(guest.0.state.exception, Some(event::exception(13)), "real mode has no error codes");
    });
}
