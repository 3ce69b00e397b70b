//! Each row of the table, with mock exits.

use hostlink::counters::Counter;

use super::processor::{CODE, DATA, Guest, HOLE, MockSvm, processor, with_guest};
use crate::devices::pc::lapic;
use crate::devices::pc::platform::SerialPort;
use crate::svm::table::{Event, Instruction, Row};
use crate::svm::vmcb::{Vmcb, vintr};
use crate::vm::{Context, Next};
use crate::x86::vcpu::block::ControlBlock;
use crate::x86::vcpu::event;
use crate::x86::vcpu::nmi::Nmi;
use crate::x86::vcpu::registers::{RAX, RBX, RCX, RDX};
use crate::x86::vcpu::state::Activity;
use crate::x86::{DR6_SINGLE_STEP, RFLAGS_RF, RFLAGS_TF};

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

pub(super) fn codes(row: Row) -> Vec<(u64, u64)> {
    let all = (0..0x500).chain([u64::from(u32::MAX), u64::MAX]).flat_map(|code| [(code, 0), (code, 1)]);
    all.filter(|&(code, info_1)| Row::of(&super::exit(code, info_1, 0)) == row).collect()
}

/// Those to be tried on a machine each: all, or some where they are many.
pub(crate) fn some_of<T>(codes: Vec<T>) -> impl Iterator<Item = T> {
    let step = codes.len() / 64 + 1;
    codes.into_iter().rev().step_by(step)
}

/// The test of a row: a row without a test does not compile.
fn test_of(row: Row) -> fn(u64) {
    match row {
        Row::Instruction(row) => match row {
            Instruction::ReadMsr => reads_an_msr,
            Instruction::WriteMsr => writes_an_msr,
            Instruction::Cpuid => says_what_the_processor_is,
            Instruction::Hypercall => calls,
            Instruction::Halt => halts,
            Instruction::Pause => spins,
            Instruction::SetExtendedControl => sets_xcr0,
            Instruction::WriteBack | Instruction::Invalidate => goes_on_behind_it,
        },
        Row::Event(row) => match row {
            Event::Interrupt | Event::Signal => goes_on,
            Event::Window => withdraws_the_request,
            Event::Port => writes_and_reads_a_port,
            Event::NestedFault => finds_memory,
            Event::ControlWrite => writes_a_control_register,
            Event::DebugRegister => brings_the_breakpoints,
            Event::InterruptReturn => steps_over_it_next,
            Event::Debug | Event::Exception => gets_the_exception,
            Event::MachineCheck => ends_in_a_report,
            Event::Refused => gets_a_protection_fault,
            Event::Undefined | Event::Unexpected => finds_no_instruction,
            Event::Shutdown => shuts_down,
            Event::Invalid => cannot_go_on,
        },
    }
}

#[test]
fn each_code_of_each_row_does_what_its_row_says() {
    for &row in Row::ALL {
        assert!(!codes(row).is_empty(), "{row:?} cannot happen");
        some_of(codes(row)).for_each(|(code, _)| test_of(row)(code));
    }
}

#[test]
fn each_exit_is_counted_once_and_as_its_row_says() {
    for &row in Row::ALL.iter().filter(|&&row| row != Row::Event(Event::MachineCheck)) {
        for (code, info_1) in some_of(codes(row)) {
            with_guest(&[0xf4], |guest| {
                let exits =
                    |guest: &Guest<'_, '_>| -> u64 { EXITS.iter().map(|&exit| guest.count(exit)).sum() };
                let before = (guest.count(row.counter()), exits(guest));
                guest.exit(code, info_1, 0);
                let after = (guest.count(row.counter()), exits(guest));
                assert_eq!((after.0 - before.0, after.1 - before.1), (1, 1), "{row:?} {code:#x}");
            });
        }
    }
}

pub(crate) const EXITS: [Counter; 12] = [
    Counter::ExitRegisterRead,
    Counter::ExitRegisterWrite,
    Counter::ExitCpuid,
    Counter::ExitHypercall,
    Counter::ExitWait,
    Counter::ExitPause,
    Counter::ExitControl,
    Counter::ExitOther,
    Counter::ExitInterrupt,
    Counter::ExitWindow,
    Counter::ExitIo,
    Counter::ExitNested,
];

fn reads_an_msr(code: u64) {
    with_guest(&[0x0f, 0x32], |guest| {
        guest.set(RCX, lapic::msr::APIC_BASE.into());
        guest.set(RAX, u64::MAX);
        guest.set(RDX, u64::MAX);
        assert_eq!(guest.exit(code, 0, 0), Next::Resume);
        let base = guest.get(RDX) << 32 | guest.get(RAX);
        assert_eq!((base & 0xffff_f100, guest.advanced(), guest.raised()), (0xfee0_0100, 2, None));
    });
}

fn writes_an_msr(code: u64) {
    with_guest(&[0x0f, 0x30], |guest| {
        guest.set(RCX, 0x277);
        guest.set(RAX, 0xffff_ffff_0606_0606);
        guest.set(RDX, 0x0606_0606);
        assert_eq!(guest.exit(code, 1, 0), Next::Resume);
        assert_eq!((guest.vmcb().pat, guest.advanced()), (0x0606_0606_0606_0606, 2));
    });
}

fn says_what_the_processor_is(code: u64) {
    with_guest(&[0x0f, 0xa2], |guest| {
        guest.set(RAX, 1);
        guest.set(RBX, u64::MAX);
        assert_eq!(guest.exit(code, 0, 0), Next::Resume);
        assert_eq!((guest.get(RAX), guest.get(RBX), guest.advanced()), (0x0080_0f12, 0x0002_0800, 2));
        let found = guest.get(RCX) & (1 << 13 | 1 << 31);
        assert_eq!(found, 1 << 31, "what is wrong is hidden, a hypervisor is shown");
        assert_ne!(guest.get(RCX) & 1 << 27, 0, "OSXSAVE as in CR4");
    });
}

fn calls(code: u64) {
    with_guest(&[0x0f, 0x01, 0xd9], |guest| {
        assert_eq!(guest.exit(code, 0, 0), Next::Resume);
        assert_eq!((guest.raised(), guest.advanced()), (UD, 0), "without a hypercall page");
        guest.begin(&[0x0f, 0x01, 0xd9]);
        guest.enable_hypercalls();
        guest.set(RCX, 0xfff);
        assert_eq!(guest.exit(code, 0, 0), Next::Resume);
        let found = (guest.get(RAX), guest.advanced(), guest.raised());
        assert_eq!(found, (2, 3, None), "HV_STATUS_INVALID_HYPERCALL_CODE");
    });
}

fn halts(code: u64) {
    with_guest(&[0xf4], |guest| {
        guest.vmcb().interrupt_shadow = 1;
        assert_eq!(guest.exit(code, 0, 0), Next::Halt);
        assert_eq!((guest.0.state.activity, guest.advanced()), (Activity::Halted, 1));
        assert_eq!(guest.vmcb().interrupt_shadow, 0);
    });
}

fn spins(code: u64) {
    with_guest(&[0xf3, 0x90], |guest| {
        assert_eq!(guest.exit(code, 0, 0), Next::Yield);
        assert_eq!((guest.advanced(), guest.raised()), (2, None));
    });
}

fn sets_xcr0(code: u64) {
    with_guest(&[0x0f, 0x01, 0xd1], |guest| {
        guest.set(RAX, 3);
        guest.set(RDX, 0);
        assert_eq!(guest.exit(code, 0, 0), Next::Resume);
        assert_eq!((processor(|processor| processor.xcr0), guest.advanced()), (3, 3));
    });
}

fn goes_on_behind_it(code: u64) {
    let bytes: &[u8] = if code == 0x89 { &[0x0f, 0x09] } else { &[0x0f, 0x08] };
    with_guest(bytes, |guest| {
        let registers = guest.0.state.registers.clone();
        guest.vmcb().rflags |= RFLAGS_TF | RFLAGS_RF;
        assert_eq!(guest.exit(code, 0, 0), Next::Resume);
        assert_eq!((guest.advanced(), guest.raised()), (2, Some(event::VECTOR_DB)), "TF does its work");
        assert_eq!(guest.vmcb().dr6 & DR6_SINGLE_STEP, DR6_SINGLE_STEP);
        assert_eq!(guest.vmcb().rflags & RFLAGS_RF, 0);
        assert_eq!(guest.0.state.registers, registers);
    });
}

fn goes_on(code: u64) {
    with_guest(&[0xf4], |guest| {
        assert_eq!(guest.exit(code, u64::MAX, u64::MAX), Next::Resume);
        assert_eq!((guest.advanced(), guest.raised()), (0, None));
    });
}

fn withdraws_the_request(code: u64) {
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

fn writes_and_reads_a_port(code: u64) {
    with_guest(&[0xee], |guest| {
        guest.set(RAX, u64::from(b'q'));
        assert_eq!(guest.exit(code, port(0x3f8, 1, false), CODE + 1), Next::Resume);
        assert_eq!(processor(|processor| processor.sent.clone()), [(SerialPort::Com1, b'q')]);
        assert_eq!(guest.advanced(), 1);
        guest.begin(&[0xed]);
        guest.set(RAX, 0x1234_5678_9abc_def0);
        assert_eq!(guest.exit(code, port(0x9999, 4, true), CODE + 1), Next::Resume);
        assert_eq!((guest.get(RAX), guest.advanced()), (0xffff_ffff, 1), "nobody is there");
    });
}

fn finds_memory(code: u64) {
    with_guest(&[], |guest| {
        assert_eq!(guest.exit(code, 1 << 1, DATA), Next::Resume);
        assert_eq!((guest.count(Counter::NestedInstalled), guest.raised(), guest.advanced()), (1, None, 0));
        assert_eq!(guest.exit(code, 1 << 1 | 1 << 33, HOLE), Next::Resume);
        let found = (guest.count(Counter::MmioSearched), guest.raised());
        assert_eq!(found, (1, GP), "tables where no memory is");
    });
}

fn writes_a_control_register(code: u64) {
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

fn brings_the_breakpoints(code: u64) {
    with_guest(&[], |guest| {
        processor(|processor| processor.breakpoints = [1, 2, 3, 4]);
        assert_ne!(guest.vmcb().intercept_dr, 0);
        assert_eq!(guest.exit(code, 0, 0), Next::Resume);
        assert_eq!((processor(|processor| processor.breakpoints), guest.vmcb().intercept_dr), ([0; 4], 0));
        assert_eq!((guest.advanced(), guest.raised()), (0, None), "it is executed again");
    });
}

fn steps_over_it_next(code: u64) {
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

fn gets_the_exception(code: u64) {
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

fn ends_in_a_report(code: u64) {
    with_guest(&[], |guest| {
        let context: &mut Context<'_, MockSvm> = guest.0;
        context.state.block.exit_code = code;
        let report = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            crate::svm::table::handle_exit(context)
        }));
        let report = report.expect_err("the machine is broken");
        let found = report.downcast_ref::<String>().map(String::as_str);
        assert_eq!(found, Some("machine check while vCPU 0 ran"));
    });
}

fn gets_a_protection_fault(code: u64) {
    with_guest(&[0x0f, 0x33], |guest| {
        assert_eq!(guest.exit(code, 0, 0), Next::Resume);
        assert_eq!((guest.raised(), guest.advanced()), (GP, 0));
        assert_ne!(guest.0.state.exception.unwrap() & event::ERROR_VALID, 0);
        guest.begin(&[0x0f, 0x33]);
        guest.vmcb().cr0 = 0;
        guest.exit(code, 0, 0);
        assert_eq!(guest.0.state.exception.unwrap() & event::ERROR_VALID, 0, "real mode has no error codes");
    });
}

fn finds_no_instruction(code: u64) {
    with_guest(&[0x0f, 0x01, 0xd8], |guest| {
        assert_eq!(guest.exit(code, u64::MAX, u64::MAX), Next::Resume);
        assert_eq!((guest.raised(), guest.advanced()), (UD, 0), "{code:#x}");
    });
}

fn shuts_down(code: u64) {
    with_guest(&[], |guest| {
        assert_eq!(guest.exit(code, 0, 0), Next::Shutdown);
        assert_eq!(guest.advanced(), 0);
    });
}

fn cannot_go_on(code: u64) {
    with_guest(&[], |guest| {
        assert_eq!(guest.exit(code, 0, 0), Next::Dead);
        assert_eq!(guest.advanced(), 0);
    });
}
