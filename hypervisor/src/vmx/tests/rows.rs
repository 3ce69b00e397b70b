//! Each row of the table, with mock exits.

use hostlink::counters::Counter;

use super::processor::{DATA, Guest, HOLE, processor, with_guest};
use super::said::Said;
use crate::devices::pc::lapic;
use crate::devices::pc::platform::SerialPort;
use crate::svm::tests::rows::some_of;
pub(super) use crate::svm::tests::rows::{CPUID, GP, IOIO, MSR, NESTED, PF, UD, VMMCALL, XSETBV, port};
use crate::vm::Next;
use crate::vmx::controls::{CHOSEN, How, Word};
use crate::vmx::table::{ENTRY_FAILURE, EXCEPTION, Event, Exit, Instruction, REFUSED, Row};
use crate::x86::vcpu::block::Field::{Cr0, Cr4, Dr6, Dr7, Pat, Rflags};
use crate::x86::vcpu::event;
use crate::x86::vcpu::registers::{RAX, RBX, RCX, RDX};
use crate::x86::vcpu::state::Activity;
use crate::x86::{DR6_SINGLE_STEP, RFLAGS_RF, RFLAGS_TF};

fn codes(row: Row) -> Vec<u64> {
    let all = (1..0x180).chain([33, 34, 41].map(|reason| ENTRY_FAILURE | reason)).chain([REFUSED]);
    let exit = |code| Exit { code, qualification: 0, exception: 0, event: 0, guest_physical: 0, next_rip: 0 };
    all.filter(|&code| Row::of(&exit(code)) == row).collect()
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
                let exits = |guest: &Guest<'_, '_>| -> u64 {
                    crate::svm::tests::rows::EXITS.iter().map(|&exit| guest.count(exit)).sum()
                };
                let before = (guest.count(row.counter()), exits(guest));
                guest.leave(code, 1, 0);
                let after = (guest.count(row.counter()), exits(guest));
                assert_eq!((after.0 - before.0, after.1 - before.1), (1, 1), "{row:?} {code:#x}");
            });
        }
    }
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
    let mut found: Vec<u64> = rows.flat_map(|&row| codes(row)).collect();
    found.sort_unstable();
    assert_eq!(found, expected);
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
            let next = guest.leave(codes(Row::Instruction(row))[0], row.usual().len() as u64, 0);
            match row {
                Instruction::Hypercall => assert_eq!(guest.raised(), UD),
                Instruction::Cpuid | Instruction::Pause => assert_eq!(guest.advanced(), 2),
                _ => assert_eq!((guest.raised(), guest.advanced(), next), (GP, 0, Next::Resume), "{row:?}"),
            }
            assert_eq!((guest.field(Pat), guest.0.state.activity), (pat, Activity::Running));
            assert_eq!(processor(|processor| processor.xcr0), 1);
        });
    }
}

fn reads_an_msr(code: u64) {
    with_guest(&[], |guest| {
        guest.set_all(&[(RCX, lapic::msr::APIC_BASE.into()), (RAX, u64::MAX), (RDX, u64::MAX)]);
        assert_eq!(guest.leave(code, 2, 0), Next::Resume);
        let base = guest.get(RDX) << 32 | guest.get(RAX);
        assert_eq!((base & 0xffff_f100, guest.advanced(), guest.raised()), (0xfee0_0100, 2, None));
    });
}

fn writes_an_msr(code: u64) {
    with_guest(&[], |guest| {
        guest.set_all(&[(RCX, 0x277), (RAX, 0xffff_ffff_0606_0606), (RDX, 0x0606_0606)]);
        assert_eq!(guest.leave(code, 2, 0), Next::Resume);
        assert_eq!((guest.field(Pat), guest.advanced()), (0x0606_0606_0606_0606, 2));
    });
}

fn says_what_the_processor_is(code: u64) {
    with_guest(&[], |guest| {
        guest.set_all(&[(RAX, 1), (RBX, u64::MAX)]);
        assert_eq!(guest.leave(code, 3, 0), Next::Resume);
        assert_eq!((guest.get(RAX), guest.get(RBX), guest.advanced()), (0x0080_0f12, 0x0002_0800, 3));
        assert_eq!(guest.get(RCX) & (1 << 5 | 1 << 31), 1 << 31, "a hypervisor, and no VMX");
    });
}

fn calls(code: u64) {
    with_guest(&[], |guest| {
        assert_eq!(guest.leave(code, 3, 0), Next::Resume);
        assert_eq!((guest.raised(), guest.advanced()), (UD, 0), "without a hypercall page");
        guest.enable_hypercalls();
        assert_eq!(guest.read(DATA + 0x5000) as u32, 0xc3c1_010f, "VMCALL, RET");
        guest.set(RCX, 0xfff);
        assert_eq!(guest.leave(code, 3, 0), Next::Resume);
        let found = (guest.get(RAX), guest.advanced(), guest.raised());
        assert_eq!(found, (2, 3, None), "HV_STATUS_INVALID_HYPERCALL_CODE");
    });
}

fn halts(code: u64) {
    with_guest(&[], |guest| {
        guest.vmcs().set_interruptibility(1);
        assert_eq!(guest.leave(code, 1, 0), Next::Halt);
        assert_eq!((guest.0.state.activity, guest.advanced()), (Activity::Halted, 1));
        assert_eq!(guest.vmcs().interruptibility(), 0);
    });
}

fn spins(code: u64) {
    with_guest(&[], |guest| {
        assert_eq!(guest.leave(code, 2, 0), Next::Yield);
        assert_eq!((guest.advanced(), guest.raised()), (2, None));
    });
}

fn sets_xcr0(code: u64) {
    with_guest(&[], |guest| {
        guest.set_all(&[(RAX, 3), (RDX, 0)]);
        assert_eq!(guest.leave(code, 3, 0), Next::Resume);
        assert_eq!((processor(|processor| processor.xcr0), guest.advanced()), (3, 3));
    });
}

fn goes_on_behind_it(code: u64) {
    with_guest(&[], |guest| {
        let registers = guest.0.state.registers.clone();
        guest.set_field(Rflags, RFLAGS_TF | RFLAGS_RF | 2);
        assert_eq!(guest.leave(code, 2, 0), Next::Resume);
        assert_eq!((guest.advanced(), guest.raised()), (2, Some(event::VECTOR_DB)), "TF does its work");
        assert_eq!(guest.field(Dr6) & DR6_SINGLE_STEP, DR6_SINGLE_STEP);
        assert_eq!(guest.field(Rflags) & RFLAGS_RF, 0);
        assert_eq!(guest.0.state.registers, registers);
    });
}

fn goes_on(code: u64) {
    with_guest(&[0xf4], |guest| {
        assert_eq!(guest.leave(code, 1, u64::MAX), Next::Resume);
        assert_eq!((guest.advanced(), guest.raised()), (0, None));
    });
}

fn withdraws_the_request(code: u64) {
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

fn writes_and_reads_a_port(code: u64) {
    with_guest(&[], |guest| {
        guest.set(RAX, u64::from(b'q'));
        assert_eq!(guest.leave(code, 1, 0x3f8 << 16), Next::Resume);
        assert_eq!(processor(|processor| processor.sent.clone()), [(SerialPort::Com1, b'q')]);
        assert_eq!(guest.advanced(), 1);
        guest.set(RAX, 0x1234_5678_9abc_def0);
        assert_eq!(guest.leave(code, 1, 0x9999 << 16 | 1 << 3 | 3), Next::Resume);
        assert_eq!((guest.get(RAX), guest.advanced()), (0xffff_ffff, 2), "nobody is there");
    });
}

/// A walk's fault, of tables where no memory is; also that of the entries which a move to CR3
/// loads, which has no linear address.
fn finds_memory(code: u64) {
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

fn writes_a_control_register(code: u64) {
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

fn brings_the_breakpoints(code: u64) {
    with_guest(&[], |guest| {
        processor(|processor| processor.breakpoints = [1, 2, 3, 4]);
        assert_eq!(guest.leave(code, 3, 0), Next::Resume);
        assert_eq!(processor(|processor| processor.breakpoints), [0; 4]);
        assert_eq!((guest.advanced(), guest.raised()), (0, None), "it is executed again");
    });
}

fn gets_the_debug_exception(code: u64) {
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

fn gets_the_exception(code: u64) {
    with_guest(&[], |guest| {
        let exception = event::exception(0) | event::ERROR_VALID | 0x18 << 32;
        assert_eq!(guest.leave_with(Said { exception, ..Said::of(code, 0, 0) }), Next::Resume);
        let expected = event::exception(code - EXCEPTION) | event::ERROR_VALID | 0x18 << 32;
        assert_eq!((guest.0.state.exception, guest.advanced()), (Some(expected), 0));
    });
}

fn ends_in_a_report(code: u64) {
    with_guest(&[], |guest| {
        let report = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| guest.leave(code, 0, 0)));
        let report = report.expect_err("the machine is broken");
        let found = report.downcast_ref::<String>().map(String::as_str);
        assert_eq!(found, Some("machine check while vCPU 0 ran"));
    });
}

fn gets_a_protection_fault(code: u64) {
    with_guest(&[], |guest| {
        assert_eq!(guest.leave(code, 2, 0), Next::Resume);
        assert_eq!((guest.raised(), guest.advanced()), (GP, 0));
    });
}

fn finds_no_instruction(code: u64) {
    with_guest(&[0x0f, 0x01, 0xc2], |guest| {
        assert_eq!(guest.leave(code, 3, u64::MAX), Next::Resume);
        assert_eq!((guest.raised(), guest.advanced()), (UD, 0), "{code:#x}");
    });
}

fn shuts_down(code: u64) {
    with_guest(&[], |guest| assert_eq!(guest.leave(code, 0, 0), Next::Shutdown));
}

fn cannot_go_on(code: u64) {
    with_guest(&[], |guest| {
        assert_eq!((guest.leave(code, 0, 4), guest.advanced()), (Next::Dead, 0));
    });
}
