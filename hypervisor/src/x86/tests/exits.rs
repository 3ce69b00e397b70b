//! The rows that the tables of exits have in common, with mock exits; each kind of processor has
//! its own codes.

use super::processor::{CODE, DATA, Guest, processor, with_guest};
use super::rows::{
    Event, GP, IOIO, Instruction, OWN_EXITS, Row, UD, codes, intercepts_debug, leave, leave_and_say, shadow,
    test_of, with_instruction,
};
use crate::devices::pc::lapic;
use crate::devices::pc::platform::SerialPort;
use crate::svm::tests::rows::port;
use crate::vm::Next;
use crate::vm::mock::creation::EXITS;
use crate::x86::vcpu::block::ControlBlock;
use crate::x86::vcpu::block::Field::{Cr0, Cr4, Dr6, Pat, Rflags};
use crate::x86::vcpu::registers::{RAX, RBX, RCX, RDX};
use crate::x86::vcpu::state::Activity;
use crate::x86::vcpu::{checks, event};
use crate::x86::{DR6_SINGLE_STEP, RFLAGS_RF, RFLAGS_TF};

/// Those to be tried on a machine each: all, or some where they are many.
fn some_of<T>(codes: Vec<T>) -> impl Iterator<Item = T> {
    let step = codes.len() / 64 + 1;
    codes.into_iter().rev().step_by(step)
}

/// How an exit differs from others of its row.
pub(super) type Code = (u64, u64);

/// The test of an instruction: a row without a test does not compile.
pub(super) fn test_of_instruction(row: Instruction) -> fn(Code) {
    match row {
        Instruction::ReadMsr => reads_an_msr,
        Instruction::WriteMsr => writes_an_msr,
        Instruction::Cpuid => says_what_the_processor_is,
        Instruction::Hypercall => calls,
        Instruction::Halt => halts,
        Instruction::Pause => spins,
        Instruction::SetExtendedControl => sets_xcr0,
        Instruction::WriteBack => |code| goes_on_behind_it(code, Instruction::WriteBack),
        Instruction::Invalidate => |code| goes_on_behind_it(code, Instruction::Invalidate),
    }
}

#[test]
fn each_code_of_each_row_does_what_its_row_says() {
    for &row in Row::ALL {
        assert!(!codes(row).is_empty(), "{row:?} cannot happen");
        some_of(codes(row)).for_each(|code| test_of(row)(code));
    }
}

#[test]
fn each_exit_is_counted_once_and_as_its_row_says() {
    for &row in Row::ALL.iter().filter(|&&row| row != Row::Event(Event::MachineCheck)) {
        for code in some_of(codes(row)) {
            with_guest(&[0xf4], |guest| {
                let exits =
                    |guest: &Guest<'_, '_>| -> u64 { EXITS.iter().map(|&exit| guest.count(exit)).sum() };
                let before = (guest.count(row.counter()), exits(guest));
                leave(guest, code, 1);
                let after = (guest.count(row.counter()), exits(guest));
                assert_eq!((after.0 - before.0, after.1 - before.1), (1, 1), "{row:?} {code:x?}");
            });
        }
    }
}

#[test]
fn what_is_the_kernels_is_refused_to_programs() {
    for row in Row::ALL.iter().filter_map(|row| match row {
        Row::Instruction(row) => Some(*row),
        Row::Event(_) => None,
    }) {
        with_guest(row.bytes(), |guest| {
            guest.set_cpl(3);
            guest.set_all(&[(RAX, 1), (RCX, 0x277)]);
            let pat = guest.field(Pat);
            let next = leave(guest, codes(Row::Instruction(row))[0], row.bytes().len() as u64);
            match row.whose() {
                checks::Instruction::Anybodys if row == Instruction::Hypercall => {
                    assert_eq!(guest.raised(), UD)
                }
                checks::Instruction::Anybodys => assert_eq!((guest.raised(), guest.advanced()), (None, 2)),
                _ => assert_eq!((guest.raised(), guest.advanced(), next), (GP, 0, Next::Resume), "{row:?}"),
            }
            assert_eq!((guest.field(Pat), guest.0.state.activity), (pat, Activity::Running));
            assert_eq!(processor(|processor| processor.xcr0), 1);
        });
    }
    for (bytes, code) in OWN_EXITS {
        with_guest(bytes, |guest| {
            guest.set_cpl(3);
            guest.set(RAX, 0x20);
            guest.exit(code, 0, 0);
            assert_eq!((guest.raised(), guest.field(Cr4) & 1 << 18), (GP, 1 << 18));
        });
    }
}

fn reads_an_msr(code: Code) {
    with_instruction(Instruction::ReadMsr, |guest| {
        guest.set_all(&[(RCX, lapic::msr::APIC_BASE.into()), (RAX, u64::MAX), (RDX, u64::MAX)]);
        assert_eq!(leave(guest, code, 2), Next::Resume);
        let base = guest.get(RDX) << 32 | guest.get(RAX);
        assert_eq!((base & 0xffff_f100, guest.advanced(), guest.raised()), (0xfee0_0100, 2, None));
    });
}

fn writes_an_msr(code: Code) {
    with_instruction(Instruction::WriteMsr, |guest| {
        guest.set_all(&[(RCX, 0x277), (RAX, 0xffff_ffff_0606_0606), (RDX, 0x0606_0606)]);
        assert_eq!(leave(guest, code, 2), Next::Resume);
        assert_eq!((guest.field(Pat), guest.advanced()), (0x0606_0606_0606_0606, 2));
    });
}

fn says_what_the_processor_is(code: Code) {
    with_instruction(Instruction::Cpuid, |guest| {
        guest.set_all(&[(RAX, 1), (RBX, u64::MAX)]);
        assert_eq!(leave(guest, code, 2), Next::Resume);
        assert_eq!((guest.get(RAX), guest.get(RBX), guest.advanced()), (0x0080_0f12, 0x0002_0800, 2));
        let found = guest.get(RCX) & (1 << 5 | 1 << 13 | 1 << 31);
        assert_eq!(found, 1 << 31, "no VMX, what is wrong is hidden, a hypervisor is shown");
        assert_ne!(guest.get(RCX) & 1 << 27, 0, "OSXSAVE as in CR4");
    });
}

fn calls(code: Code) {
    with_instruction(Instruction::Hypercall, |guest| {
        let bytes = guest.read(CODE).to_le_bytes();
        assert_eq!(leave(guest, code, 3), Next::Resume);
        assert_eq!((guest.raised(), guest.advanced()), (UD, 0), "without a hypercall page");
        guest.begin(&bytes);
        guest.enable_hypercalls();
        let its = Instruction::Hypercall.bytes();
        let expected = [its[0], its[1], its[2], 0xc3];
        assert_eq!(guest.read(DATA + 0x5000) as u32, u32::from_le_bytes(expected), "the call, RET");
        guest.set(RCX, 0xfff);
        assert_eq!(leave(guest, code, 3), Next::Resume);
        let found = (guest.get(RAX), guest.advanced(), guest.raised());
        assert_eq!(found, (2, 3, None), "HV_STATUS_INVALID_HYPERCALL_CODE");
    });
}

fn halts(code: Code) {
    with_instruction(Instruction::Halt, |guest| {
        shadow(guest);
        assert_eq!(leave(guest, code, 1), Next::Halt);
        assert_eq!((guest.0.state.activity, guest.advanced()), (Activity::Halted, 1));
        assert!(!guest.0.state.block.has_shadow());
    });
}

fn spins(code: Code) {
    with_instruction(Instruction::Pause, |guest| {
        assert_eq!(leave(guest, code, 2), Next::Yield);
        assert_eq!((guest.advanced(), guest.raised()), (2, None));
    });
}

fn sets_xcr0(code: Code) {
    with_instruction(Instruction::SetExtendedControl, |guest| {
        guest.set_all(&[(RAX, 3), (RDX, 0)]);
        assert_eq!(leave(guest, code, 3), Next::Resume);
        assert_eq!((processor(|processor| processor.xcr0), guest.advanced()), (3, 3));
    });
}

fn goes_on_behind_it(code: Code, row: Instruction) {
    with_instruction(row, |guest| {
        let registers = guest.0.state.registers.clone();
        guest.set_field(Rflags, RFLAGS_TF | RFLAGS_RF | 2);
        assert_eq!(leave(guest, code, 2), Next::Resume);
        assert_eq!((guest.advanced(), guest.raised()), (2, Some(event::VECTOR_DB)), "TF does its work");
        assert_eq!(guest.field(Dr6) & DR6_SINGLE_STEP, DR6_SINGLE_STEP);
        assert_eq!(guest.field(Rflags) & RFLAGS_RF, 0);
        assert_eq!(guest.0.state.registers, registers);
    });
}

pub(super) fn goes_on(code: Code) {
    with_guest(&[0xf4], |guest| {
        assert_eq!(leave_and_say(guest, code, 1, u64::MAX), Next::Resume);
        assert_eq!((guest.advanced(), guest.raised()), (0, None));
    });
}

/// The row has one code, which all kinds of processors describe as SVM does here.
pub(super) fn writes_and_reads_a_port(_: Code) {
    with_guest(&[0xee], |guest| {
        guest.set(RAX, u64::from(b'q'));
        assert_eq!(guest.exit(IOIO, port(0x3f8, 1, false), CODE + 1), Next::Resume);
        assert_eq!(processor(|processor| processor.sent.clone()), [(SerialPort::Com1, b'q')]);
        assert_eq!(guest.advanced(), 1);
        guest.begin(&[0xed]);
        guest.set(RAX, 0x1234_5678_9abc_def0);
        assert_eq!(guest.exit(IOIO, port(0x9999, 4, true), CODE + 1), Next::Resume);
        assert_eq!((guest.get(RAX), guest.advanced()), (0xffff_ffff, 1), "nobody is there");
    });
}

pub(super) fn brings_the_breakpoints(code: Code) {
    with_guest(&[], |guest| {
        processor(|processor| processor.breakpoints = [1, 2, 3, 4]);
        assert!(intercepts_debug(guest));
        assert_eq!(leave(guest, code, 3), Next::Resume);
        assert_eq!((processor(|processor| processor.breakpoints), intercepts_debug(guest)), ([0; 4], false));
        assert_eq!((guest.advanced(), guest.raised()), (0, None), "it is executed again");
    });
}

pub(super) fn ends_in_a_report(code: Code) {
    with_guest(&[], |guest| {
        let report = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| leave(guest, code, 0)));
        let report = report.expect_err("the machine is broken");
        let found = report.downcast_ref::<String>().map(String::as_str);
        assert_eq!(found, Some("machine check while vCPU 0 ran"));
    });
}

pub(super) fn gets_a_protection_fault(code: Code) {
    with_guest(&[0x0f, 0x33], |guest| {
        assert_eq!(leave(guest, code, 2), Next::Resume);
        assert_eq!((guest.raised(), guest.advanced()), (GP, 0));
        assert_ne!(guest.0.state.exception.unwrap() & event::ERROR_VALID, 0);
        guest.begin(&[0x0f, 0x33]);
        guest.set_field(Cr0, 0);
        leave(guest, code, 2);
        assert_eq!(guest.0.state.exception.unwrap() & event::ERROR_VALID, 0, "real mode has no error codes");
    });
}

pub(super) fn finds_no_instruction(code: Code) {
    with_guest(&[0x0f, 0x01, 0xd8], |guest| {
        assert_eq!(leave_and_say(guest, code, 3, u64::MAX), Next::Resume);
        assert_eq!((guest.raised(), guest.advanced()), (UD, 0), "{code:x?}");
    });
}

pub(super) fn shuts_down(code: Code) {
    with_guest(&[], |guest| {
        assert_eq!((leave(guest, code, 0), guest.advanced()), (Next::Shutdown, 0));
    });
}

pub(super) fn cannot_go_on(code: Code) {
    with_guest(&[], |guest| {
        assert_eq!((leave_and_say(guest, code, 0, 4), guest.advanced()), (Next::Dead, 0));
    });
}
