//! Each row of the table, with mock exits.

use hostlink::counters::Counter;

use super::exits::{
    Code, brings_the_breakpoints, cannot_go_on, ends_in_a_report, finds_no_instruction,
    gets_a_protection_fault, goes_on, shuts_down, test_of_instruction, writes_and_reads_a_port,
};
use super::processor::{DATA, Guest, HOLE, with_guest};
use super::said::Said;
pub(super) use crate::svm::tests::rows::{CPUID, GP, IOIO, MSR, NESTED, PF, UD, VMMCALL, XSETBV, port};
use crate::vm::Next;
use crate::vmx::controls::{CHOSEN, How, MOV_DR, Word};
use crate::vmx::table::{ENTRY_FAILURE, EXCEPTION, Exit, REFUSED};
pub(super) use crate::vmx::table::{Event, Instruction, Row};
use crate::x86::vcpu::block::Field::{Cr0, Cr4, Dr6, Dr7};
use crate::x86::vcpu::event;
use crate::x86::vcpu::registers::{RAX, RBX};

pub(super) const OWN_EXITS: [(&[u8], u64); 0] = [];

pub(super) fn leave(guest: &mut Guest<'_, '_>, code: Code, length: u64) -> Next {
    leave_and_say(guest, code, length, 0)
}

pub(super) fn leave_and_say(guest: &mut Guest<'_, '_>, (code, _): Code, length: u64, info: u64) -> Next {
    guest.leave(code, length, info)
}

/// The processor says how long it is: it is not read.
pub(super) fn with_instruction(_: Instruction, act: impl FnOnce(&mut Guest<'_, '_>)) {
    with_guest(&[], act);
}

pub(super) fn shadow(guest: &mut Guest<'_, '_>) {
    guest.vmcs().set_interruptibility(1);
}

pub(super) fn intercepts_debug(guest: &mut Guest<'_, '_>) -> bool {
    guest.vmcs().control(Word::Primary, MOV_DR)
}

/// The test of a row: a row without a test does not compile.
pub(super) fn test_of(row: Row) -> fn(Code) {
    match row {
        Row::Instruction(row) => test_of_instruction(row),
        Row::Event(row) => match row {
            Event::Interrupt | Event::Signal | Event::Priority | Event::FullList => goes_on,
            Event::EndOfInterrupt | Event::ApicWrite => goes_on,
            Event::Window => withdraws_the_request,
            Event::Port => writes_and_reads_a_port,
            Event::NestedFault => finds_memory,
            Event::ControlAccess => writes_a_control_register,
            Event::DebugRegister => brings_the_breakpoints,
            Event::Debug => gets_the_debug_exception,
            Event::Exception => gets_the_exception,
            Event::MachineCheck => ends_in_a_report,
            Event::Refused => gets_a_protection_fault,
            Event::Undefined | Event::Unexpected => finds_no_instruction,
            Event::Shutdown => shuts_down,
            Event::TaskSwitch | Event::Invalid => cannot_go_on,
        },
    }
}

pub(super) fn codes(row: Row) -> Vec<Code> {
    let all = (1..0x180).chain([33, 34, 41].map(|reason| ENTRY_FAILURE | reason)).chain([REFUSED]);
    let exit = |code| Exit { code, qualification: 0, exception: 0, event: 0, guest_physical: 0, next_rip: 0 };
    all.filter(|&code| Row::of(&exit(code)) == row).map(|code| (code, 0)).collect()
}

/// The exits that a control asks for: its word and bit.
const ASKED: [(Word, u32, &[u64]); 21] = [
    (Word::Pin, 0, &[1]),
    (Word::Pin, 3, &[0x102]),
    (Word::Primary, 2, &[7]),
    (Word::Primary, 7, &[12]),
    (Word::Primary, 9, &[14, 58]),
    (Word::Primary, 10, &[36]),
    (Word::Primary, 11, &[15]),
    (Word::Primary, 12, &[16, 51]),
    (Word::Primary, 21, &[43]),
    (Word::Primary, 22, &[8]),
    (Word::Primary, 23, &[29]),
    (Word::Primary, 25, &[30]),
    (Word::Primary, 28, &[31, 32]),
    (Word::Primary, 29, &[39]),
    (Word::Primary, 30, &[40]),
    (Word::Secondary, 1, &[48, 49]),
    (Word::Secondary, 2, &[46, 47]),
    (Word::Secondary, 6, &[54]),
    (Word::Secondary, 9, &[45, 56]),
    (Word::Secondary, 10, &[40]),
    (Word::Secondary, 17, &[62]),
];

/// The exits that nothing asks for (26.1.2, 26.2), and those of masked bits of CR0 and CR4.
const UNASKED: [u64; 38] = [
    2, 3, 4, 5, 6, 9, 10, 11, 13, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 50, 53, 55, 59, 60, 63, 64,
    65, 67, 68, 69, 70, 76, 77, 0x8000_0021, 0x8000_0022, 0x8000_0029,
];

/// As the build checks it of SVM's: what can exit has a row, and nothing else has one.
#[test]
fn the_rows_are_those_of_the_controls() {
    let mut expected = UNASKED.to_vec();
    expected.extend([REFUSED, 0x101, 0x111, 0x112]);
    for (word, bit, codes) in ASKED {
        let chosen = CHOSEN.iter().find(|choice| (choice.word, choice.bit) == (word, bit));
        if chosen.is_some_and(|choice| choice.how != How::Clear) {
            expected.extend(codes);
        }
    }
    expected.sort_unstable();
    expected.dedup();
    let rows = Row::ALL.iter().filter(|&&row| row != Row::Event(Event::Unexpected));
    let mut found: Vec<u64> = rows.flat_map(|&row| codes(row)).map(|(code, _)| code).collect();
    found.sort_unstable();
    assert_eq!(found, expected);
}

fn withdraws_the_request((code, _): Code) {
    with_guest(&[], |guest| {
        guest.0.state.lapic.accept_fixed(0x51, crate::devices::pc::message::Trigger::Edge);
        guest.0.state.nmi.post();
        guest.0.state.nmi.take();
        guest.0.state.nmi.post();
        guest.0.state.prepare_events::<super::processor::MockVmx>();
        assert_eq!(guest.windows(), [true; 2]);
        assert_eq!(guest.leave(code, 0, 0), Next::Resume);
        assert_eq!(guest.windows(), [false; 2]);
    });
}

/// A walk's fault, of tables where no memory is; also that of the entries which a move to CR3
/// loads, which has no linear address.
fn finds_memory((code, _): Code) {
    with_guest(&[0x8b, 0x03], |guest| {
        let leave = |guest: &mut Guest<'_, '_>, physical, qualification| {
            guest.leave_with(Said { physical, ..Said::of(code, 0, qualification) })
        };
        assert_eq!(leave(guest, DATA, 1 << 1 | 1 << 7 | 1 << 8), Next::Resume);
        assert_eq!((guest.count(Counter::NestedInstalled), guest.raised(), guest.advanced()), (1, None, 0));
        guest.set(RBX, HOLE);
        if code == 49 {
            assert_eq!(leave(guest, HOLE, u64::MAX), Next::Resume);
            assert_eq!((guest.raised(), guest.advanced(), guest.get(RAX)), (None, 2, 0xffff_ffff));
            return;
        }
        for qualification in [1 | 1 << 7, 1] {
            guest.0.state.exception = None;
            assert_eq!(leave(guest, HOLE, qualification), Next::Resume);
            assert_eq!((guest.raised(), guest.advanced()), (GP, 0));
        }
        leave(guest, HOLE, 1 << 2 | 1 << 7 | 1 << 8);
        assert_eq!((guest.raised(), guest.advanced()), (UD, 0), "a fetch");
    });
}

fn writes_a_control_register((code, _): Code) {
    with_guest(&[], |guest| {
        guest.set(RBX, 1 << 5 | 1 << 6 | 1 << 7 | 1 << 18);
        assert_eq!(guest.leave(code, 3, 4 | (RBX as u64) << 8), Next::Resume);
        assert_eq!((guest.field(Cr4), guest.advanced()), (guest.get(RBX), 3));
        guest.set(RBX, guest.field(Cr0) | 1 << 30);
        assert_eq!(guest.leave(code, 4, (RBX as u64) << 8), Next::Resume);
        assert_eq!((guest.field(Cr0), guest.advanced()), (guest.get(RBX) | 1 << 4, 7));
        for refused in [1 | 3 << 8, 4 | (RBX as u64) << 8, 4 | 1 << 4, 8 | (RBX as u64) << 8] {
            guest.0.state.exception = None;
            guest.set(RBX, 1 << 13);
            guest.leave(code, 3, refused);
            assert_eq!((guest.raised(), guest.advanced()), (GP, 7), "{refused:#x}");
        }
    });
}

fn gets_the_debug_exception((code, _): Code) {
    with_guest(&[], |guest| {
        guest.set_field(Dr6, 0xffff_0ff3);
        guest.set_field(Dr7, 1 << 13 | 0x400);
        assert_eq!(guest.leave(code, 0, 1 << 13 | 1 << 2 | 1 << 12), Next::Resume);
        assert_eq!((guest.raised(), guest.advanced()), (Some(event::VECTOR_DB), 0));
        assert_eq!((guest.field(Dr6), guest.field(Dr7)), (0xffff_2ff4, 0x400), "VMX has not changed them");
        guest.leave_with(Said { exception: event::VALID | 5 << 8, ..Said::of(code, 1, 0) });
        assert_eq!((guest.raised(), guest.advanced()), (Some(event::VECTOR_DB), 1), "behind INT1");
    });
}

fn gets_the_exception((code, _): Code) {
    with_guest(&[], |guest| {
        let exception = event::exception(0) | event::ERROR_VALID | 0x18 << 32;
        assert_eq!(guest.leave_with(Said { exception, ..Said::of(code, 0, 0) }), Next::Resume);
        let expected = event::exception(code - EXCEPTION) | event::ERROR_VALID | 0x18 << 32;
        assert_eq!((guest.0.state.exception, guest.advanced()), (Some(expected), 0));
    });
}
