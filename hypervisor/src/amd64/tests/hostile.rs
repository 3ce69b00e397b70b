//! Exits of a guest that does everything wrong.

use hostlink::counters::Counter;

use super::processor::{CODE, DATA, Guest, HOLE, MEMORY, TABLES, UNMAPPED, processor, with_guest};
use super::rows::{GP, MSR, UD, port};
use crate::amd64::exits::Row;
use crate::amd64::exits::table::Instruction;
use crate::amd64::features::Features;
use crate::amd64::fpu::is_valid_xcr0;
use crate::amd64::registers::{RAX, RBX, RCX, RDI, RDX, RSI};
use crate::amd64::state::Activity;
use crate::amd64::vmcb::{RFLAGS_TF, Segment};
use crate::amd64::{RFLAGS_VM, checks, event};
use crate::devices::platform::SerialPort;
use crate::devices::power;
use crate::vm::Next;

const CPUID: u64 = 0x72;
const HLT: u64 = 0x78;
const IOIO: u64 = 0x7b;
const VMMCALL: u64 = 0x81;
const XSETBV: u64 = 0x8d;
const NESTED: u64 = 0x400;
const PF: Option<u64> = Some(14);

/// Rows of instructions with their code.
fn instructions() -> impl Iterator<Item = (Instruction, u64, u64)> {
    Row::ALL.iter().filter_map(|&row| match row {
        Row::Instruction(instruction) => {
            let (code, info_1) = super::rows::codes(row)[0];
            Some((instruction, code, info_1))
        }
        Row::Event(_) => None,
    })
}

#[test]
fn u28_an_instruction_that_cannot_be_read_has_no_effect_but_its_fault() {
    for (row, code, info_1) in instructions() {
        for (rip, fault, address) in [
            (UNMAPPED, PF, Some(UNMAPPED)),
            (1 << 47, GP, None),
            (u64::MAX << 48, GP, None),
            (HOLE, GP, None),
        ] {
            with_guest(row.bytes(), |guest| {
                guest.vmcb().rip = rip;
                let registers = guest.0.state.registers.clone();
                assert_eq!(guest.exit(code, info_1, 0), Next::Resume, "{row:?} at {rip:#x}");
                assert_eq!((guest.raised(), guest.vmcb().rip), (fault, rip), "{row:?} at {rip:#x}");
                assert!(address.is_none_or(|address| guest.vmcb().cr2 == address));
                assert_eq!(
                    (&guest.0.state.registers, guest.0.state.activity),
                    (&registers, Activity::Running)
                );
            });
        }
    }
}

#[test]
fn u28_code_that_has_been_changed_is_skipped_as_it_is_or_is_no_instruction() {
    for (row, code, info_1) in instructions().filter(|row| row.0 != Instruction::Hypercall) {
        for (bytes, length) in
            [(&[0x90][..], 1), (&[0x66, 0x66, 0x0f, 0xa2], 4), (&[0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0], 10)]
        {
            with_guest(bytes, |guest| {
                guest.set(RAX, 1);
                guest.exit(code, info_1, 0);
                let expected = if guest.raised().is_some() { 0 } else { length };
                assert_eq!(guest.advanced(), expected, "{row:?}");
            });
        }
        with_guest(&[0x06], |guest| {
            assert_eq!(guest.exit(code, info_1, 0), Next::Resume);
            assert_eq!((guest.raised(), guest.advanced()), (UD, 0), "{row:?}");
        });
        with_guest(&[0x66; 16], |guest| {
            guest.exit(code, info_1, 0);
            assert_eq!((guest.raised(), guest.advanced()), (UD, 0), "{row:?}: 16 bytes are none");
        });
    }
}

#[test]
fn u28_an_instruction_ends_with_memory_or_is_cut_off_there() {
    with_guest(&[], |guest| {
        guest.write(MEMORY - 1, &[0xf4]);
        guest.vmcb().rip = MEMORY - 1;
        assert_eq!(guest.exit(HLT, 0, 0), Next::Halt);
        assert_eq!(guest.vmcb().rip, MEMORY);
    });
    with_guest(&[], |guest| {
        guest.write(MEMORY - 1, &[0x0f]);
        guest.vmcb().rip = MEMORY - 1;
        guest.exit(CPUID, 0, 0);
        assert_eq!((guest.raised(), guest.vmcb().rip), (UD, MEMORY - 1));
    });
    with_guest(&[], |guest| {
        guest.write(CODE + 0xfff, &[0x0f, 0xa2]);
        guest.vmcb().rip = CODE + 0xfff;
        guest.exit(CPUID, 0, 0);
        assert_eq!((guest.raised(), guest.vmcb().rip), (None, CODE + 0x1001), "over the edge of a page");
    });
}

#[test]
fn u28_addresses_of_code_wrap_as_the_mode_has_it() {
    with_guest(&[], |guest| {
        guest.legacy_mode(Segment::DEFAULT_32);
        guest.write(0x5000, &[0x0f, 0xa2]);
        guest.vmcb().cs.base = 0x5002;
        guest.vmcb().rip = 0xffff_fffe;
        assert_eq!(guest.exit(CPUID, 0, 0), Next::Resume);
        assert_eq!((guest.vmcb().rip, guest.raised()), (0, None));
    });
    with_guest(&[], |guest| {
        guest.legacy_mode(0);
        guest.write(0x5000, &[0x66, 0x0f, 0xa2]);
        guest.vmcb().rip = 0x5000;
        assert_eq!(guest.exit(CPUID, 0, 0), Next::Resume);
        assert_eq!((guest.vmcb().rip, guest.raised()), (0x5003, None));
    });
}

#[test]
fn u28_where_the_processor_says_the_next_address_nothing_is_read() {
    with_guest(&[], |guest| {
        processor(|processor| processor.features = Features(1 << 3));
        guest.vmcb().rip = UNMAPPED;
        guest.vmcb().next_rip = UNMAPPED + 5;
        assert_eq!(guest.exit(CPUID, 0, 0), Next::Resume);
        assert_eq!((guest.raised(), guest.vmcb().rip), (None, UNMAPPED + 5));
    });
}

#[test]
fn u28_what_is_the_kernels_is_refused_to_programs() {
    for (row, code, info_1) in instructions() {
        with_guest(row.bytes(), |guest| {
            guest.vmcb().cpl = 3;
            guest.set(RAX, 1);
            guest.set(RCX, 0x277);
            let pat = guest.vmcb().pat;
            let next = guest.exit(code, info_1, 0);
            match row.whose() {
                checks::Instruction::Anybodys if row == Instruction::Hypercall => {
                    assert_eq!(guest.raised(), UD)
                }
                checks::Instruction::Anybodys => assert_eq!((guest.raised(), guest.advanced()), (None, 2)),
                _ => assert_eq!((guest.raised(), guest.advanced(), next), (GP, 0, Next::Resume), "{row:?}"),
            }
            assert_eq!((guest.vmcb().pat, guest.0.state.activity), (pat, Activity::Running));
            assert_eq!(processor(|processor| processor.xcr0), 1);
        });
    }
    for (bytes, code) in [(&[0x0f, 0x22, 0xe0][..], 0x14), (&[0x44, 0x0f, 0x22, 0xc0], 0x18)] {
        with_guest(bytes, |guest| {
            guest.vmcb().cpl = 3;
            guest.set(RAX, 0x20);
            guest.exit(code, 0, 0);
            assert_eq!((guest.raised(), guest.vmcb().cr4 & 1 << 18), (GP, 1 << 18));
        });
    }
}

#[test]
fn u28_xcr0_takes_what_the_processor_takes_and_nothing_else() {
    with_guest(&[], |guest| {
        processor(|processor| processor.components = 0xe7);
        for value in (0..512).chain([1 << 62, u64::MAX, 1 << 63 | 1]) {
            for register in [0, 1, u64::MAX] {
                processor(|processor| processor.xcr0 = 1);
                guest.begin(&[0x0f, 0x01, 0xd1]);
                guest.set(RAX, value & 0xffff_ffff);
                guest.set(RDX, value >> 32);
                guest.set(RCX, register);
                guest.exit(XSETBV, 0, 0);
                let sse_for_avx = value & 4 == 0 || value & 2 != 0;
                let avx512 = value >> 5 & 7 == 0 || value >> 5 & 7 == 7 && value & 4 != 0;
                let right = value & 1 != 0 && value & !0xe7 == 0 && sse_for_avx && avx512 && register == 0;
                assert_eq!(is_valid_xcr0(value, 0xe7) && register == 0, right, "{value:#x}");
                assert_eq!(guest.raised(), if right { None } else { GP }, "{value:#x} to {register}");
                assert_eq!(processor(|processor| processor.xcr0), if right { value } else { 1 });
            }
        }
        processor(|processor| processor.components = 7);
        processor(|processor| processor.xcr0 = 1);
    });
    with_guest(&[0x0f, 0x01, 0xd1], |guest| {
        guest.vmcb().cr4 &= !checks::CR4_OSXSAVE;
        guest.set(RAX, 3);
        guest.exit(XSETBV, 0, 0);
        assert_eq!((guest.raised(), processor(|processor| processor.xcr0)), (UD, 1));
    });
}

#[test]
fn u28_cr4_takes_the_bits_that_cpuid_shows() {
    for bit in 0..64 {
        with_guest(&[0x0f, 0x22, 0xe3], |guest| {
            let shown = guest.0.vm.guest.cr4_mask & 1 << bit != 0;
            let value = 1 << 5 | 1u64 << bit;
            guest.set(RBX, value);
            let old = guest.vmcb().cr4;
            guest.exit(0x14, 0, 0);
            assert_eq!(guest.raised(), if shown { None } else { GP }, "bit {bit}");
            assert_eq!(guest.vmcb().cr4, if shown { value } else { old });
            assert_eq!(guest.advanced(), if shown { 3 } else { 0 });
        });
    }
    for (cr3, value) in [(TABLES, 1 << 18), (TABLES | 5, 1 << 5 | 1 << 17), (TABLES, u64::MAX)] {
        with_guest(&[0x0f, 0x22, 0xe3], |guest| {
            guest.vmcb().cr3 = cr3;
            guest.set(RBX, value);
            guest.exit(0x14, 0, 0);
            assert_eq!(guest.raised(), GP, "CR3 {cr3:#x}, CR4 {value:#x}");
        });
    }
}

#[test]
fn u28_a_control_write_that_is_none_has_no_effect() {
    for (bytes, fault) in [
        (&[0x0f, 0x22, 0xc3][..], GP), // CR0: not intercepted
        (&[0x0f, 0x22, 0xdb], GP),     // CR3
        (&[0x0f, 0x20, 0xe3], UD),     // a read of CR4
        (&[0x90], UD),
        (&[0x06], UD),
        (&[0x0f, 0x01, 0xf3], UD), // LMSW
    ] {
        for code in [0x14, 0x18] {
            with_guest(bytes, |guest| {
                guest.set(RBX, 0x20);
                let before = (guest.vmcb().cr0, guest.vmcb().cr3, guest.vmcb().cr4);
                guest.exit(code, u64::MAX, u64::MAX);
                assert_eq!((guest.raised(), guest.advanced()), (fault, 0), "{bytes:x?}");
                assert_eq!((guest.vmcb().cr0, guest.vmcb().cr3, guest.vmcb().cr4), before);
            });
        }
    }
    with_guest(&[0x44, 0x0f, 0x22, 0xc3], |guest| {
        guest.set(RBX, 16);
        guest.exit(0x18, 0, 0);
        assert_eq!((guest.raised(), guest.0.state.lapic.tpr()), (GP, 0), "CR8 has four bits");
    });
}

/// Numbers of all kinds: each that somebody answers, its neighbours, and the edges of the ranges.
fn numbers() -> Vec<u32> {
    let ranges = [0..0x400, 0x6d0..0x6f0, 0x7f0..0x910, 0x4000_0000..0x4000_0120, 0xc000_0000..0xc000_0110];
    let more = [0xc000_1fff, 0xc000_2000, 0xc001_0000, 0xc001_0015, 0xc001_0114, 0xc001_1029, u32::MAX];
    ranges.into_iter().flatten().chain(more).collect()
}

#[test]
fn u28_an_msr_is_answered_or_refused_whatever_its_number_and_value() {
    with_guest(&[], |guest| {
        for number in numbers() {
            guest.begin(&[0x0f, 0x32]);
            guest.set(RCX, u64::from(number) | 0xabcd << 32);
            (guest.set(RAX, 5), guest.set(RDX, 6));
            assert_eq!(guest.exit(MSR, 0, 0), Next::Resume);
            match guest.raised() {
                None => assert_eq!((guest.advanced(), guest.get(RAX) >> 32, guest.get(RDX) >> 32), (2, 0, 0)),
                fault => assert_eq!((fault, guest.advanced(), guest.get(RAX), guest.get(RDX)), (GP, 0, 5, 6)),
            }
            for value in [0, 1, 0xff, 0x6001, u64::from(u32::MAX), 1 << 63, u64::MAX] {
                if number == tlfs::msr::RESET || number == tlfs::msr::CRASH_CTL {
                    continue;
                }
                let next = guest.write_msr(number, value);
                assert!(matches!(next, Next::Resume | Next::Timers), "{number:#x} = {value:#x}: {next:?}");
                let expected = if guest.raised().is_some() { (GP, 0) } else { (None, 2) };
                assert_eq!((guest.raised(), guest.advanced()), expected, "{number:#x} = {value:#x}");
            }
        }
    });
}

#[test]
fn u28_registers_that_vmrun_reads_take_no_value_that_it_refuses() {
    with_guest(&[], |guest| {
        for (number, value) in [
            (0xc000_0080, 1 << 12), // EFER.SVME
            (0xc000_0080, 1 << 1),  // reserved
            (0xc000_0080, 0),       // LME while paging is on
            (0xc000_0080, u64::MAX),
            (0x277, 2), // a memory type that is none
            (0x277, 8 << 56),
        ] {
            let before = (guest.vmcb().efer, guest.vmcb().pat);
            guest.write_msr(number, value);
            assert_eq!((guest.raised(), guest.advanced()), (GP, 0), "{number:#x} = {value:#x}");
            assert_eq!((guest.vmcb().efer, guest.vmcb().pat), before);
        }
        guest.write_msr(0xc000_0080, 1 << 8 | 1 << 10 | 1 << 11);
        assert_eq!((guest.raised(), guest.vmcb().efer & 1 << 12), (None, 1 << 12), "SVME stays");
    });
}

#[test]
fn u28_ports_above_the_privilege_level_are_the_tasks_to_allow() {
    const TASK: u64 = DATA + 0x4000;
    for (rflags, limit, map, fault) in [
        (2, 0x2068, 0xff, GP),
        (2, 0x2068, 0x00, None),
        (2, 0x67, 0x00, GP),
        (3 << 12 | 2, 0, 0xff, None),
        (3 << 12 | 2 | RFLAGS_VM, 0, 0, GP),
    ] {
        with_guest(&[0xee], |guest| {
            guest.vmcb().cpl = 3;
            guest.vmcb().rflags = rflags;
            guest.vmcb().tr = Segment { selector: 0x18, attributes: 0x8b, limit, base: TASK };
            guest.write(TASK + 0x66, &0x68u16.to_le_bytes());
            guest.write(TASK + 0x68 + 0x3f8 / 8, &[map, map]);
            guest.exit(IOIO, port(0x3f8, 1, false), CODE + 1);
            assert_eq!(guest.raised(), fault, "{rflags:#x}, limit {limit:#x}, map {map:#x}");
            assert_eq!(processor(|processor| processor.sent.len()), usize::from(fault.is_none()));
        });
    }
    with_guest(&[0xee], |guest| {
        guest.vmcb().cpl = 3;
        guest.vmcb().tr = Segment { selector: 0x18, attributes: 0x8b, limit: 0x2068, base: UNMAPPED };
        guest.exit(IOIO, port(0x3f8, 1, false), CODE + 1);
        assert_eq!((guest.raised(), guest.vmcb().cr2), (PF, UNMAPPED + 0x66), "a task that is not there");
    });
}

#[test]
fn u28_a_port_of_no_width_is_refused() {
    for info in [0, 3, 5, 6, 7].map(|size| 0x3f8 << 16 | size << 4) {
        for string in [0, 1 << 2, 1 << 2 | 1 << 3] {
            with_guest(&[0x6e], |guest| {
                guest.set(RCX, 5);
                guest.exit(IOIO, info | string, CODE + 1);
                assert_eq!((guest.raised(), guest.advanced(), guest.get(RCX)), (GP, 0, 5), "{info:#x}");
            });
        }
    }
}

/// `info_1` of OUTSB or INSB with REP.
const fn string(number: u16, is_input: bool) -> u64 {
    port(number, 1, is_input) | 1 << 2 | 1 << 3
}

#[test]
fn u28_strings_of_ports_fault_at_the_element_that_cannot_be_moved() {
    with_guest(&[0xf3, 0x6e], |guest| {
        guest.write(MEMORY - 2, b"ab");
        (guest.set(RSI, MEMORY - 2), guest.set(RCX, 4));
        assert_eq!(guest.exit(IOIO, string(0x3f8, false), CODE + 2), Next::Resume);
        assert_eq!((guest.raised(), guest.advanced()), (GP, 0), "behind memory");
        assert_eq!((guest.get(RSI), guest.get(RCX)), (MEMORY, 2));
        let sent = processor(|processor| processor.sent.clone());
        assert_eq!(sent, [(SerialPort::Com1, b'a'), (SerialPort::Com1, b'b')]);
    });
    for (address, fault) in [(UNMAPPED, PF), (1 << 47, GP), (HOLE, GP), (0xffff_ffff_ffff_ffff, GP)] {
        for is_input in [false, true] {
            with_guest(&[0xf3, 0x6c | (!is_input as u8) << 1], |guest| {
                (guest.set(RSI, address), guest.set(RDI, address), guest.set(RCX, 3));
                guest.exit(IOIO, string(0x3f8, is_input), CODE + 2);
                let fault = if address == u64::MAX { PF } else { fault };
                assert_eq!((guest.raised(), guest.get(RCX), guest.advanced()), (fault, 3, 0), "{address:#x}");
                assert!(processor(|processor| processor.sent.is_empty()));
            });
        }
    }
}

#[test]
fn u28_a_long_string_lets_others_in_between() {
    with_guest(&[0xf3, 0x6e], |guest| {
        (guest.set(RSI, DATA), guest.set(RCX, u64::MAX));
        assert_eq!(guest.exit(IOIO, string(0x3f8, false), CODE + 2), Next::Resume);
        assert_eq!((guest.raised(), guest.advanced(), guest.get(RCX)), (None, 0, u64::MAX - 64));
        guest.set(RCX, 0);
        guest.exit(IOIO, string(0x3f8, false), CODE + 2);
        assert_eq!((guest.advanced(), guest.get(RSI)), (2, DATA + 64), "of none nothing is moved");
    });
}

#[test]
fn u28_the_machine_ends_by_its_ports() {
    let next = |number: u16, value: u8| {
        with_guest(&[0xee], |guest| {
            guest.set(RAX, value.into());
            let next = guest.exit(IOIO, port(number, 1, false), CODE + 1);
            (next, guest.advanced())
        })
    };
    assert_eq!(next(power::SLEEP_CONTROL, 1 << 5 | power::SLEEP_TYPE_S5 << 2), (Next::PowerOff, 1));
    assert_eq!(next(power::SLEEP_CONTROL, 0xff & !(1 << 5)), (Next::Resume, 1));
    assert_eq!(next(power::RESET, power::RESET_VALUE), (Next::Reset, 1));
}

#[test]
fn u28_hypercalls_read_inputs_only_from_memory() {
    for (input, what) in [
        (HOLE, "a hole"),
        (1 << 40, "beyond"),
        (u64::MAX - 7, "the end"),
        (DATA + 1, "no alignment"),
        (DATA + 0xff8, "over a page"),
    ] {
        for control in [2, 3 | 2 << 32, 0x13, 0x14 | 1 << 32, 0xb, 0x15] {
            with_guest(&[0x0f, 0x01, 0xd9], |guest| {
                guest.enable_hypercalls();
                (guest.set(RCX, control), guest.set(RDX, input));
                let next = guest.exit(VMMCALL, 0, 0);
                assert!(matches!(next, Next::Resume | Next::Yield));
                assert_ne!((guest.get(RAX) & 0xffff, guest.advanced()), (0, 3), "{control:#x} from {what}");
                assert_eq!(guest.count(Counter::FlushWholeAsked), 0);
            });
        }
    }
}

#[test]
fn u28_hypercalls_have_their_callers() {
    for (attributes, cr0, cpl, rflags) in
        [(0, 0, 0, 2), (0, 1, 3, 2), (Segment::DEFAULT_32, 1, 3, 2), (0, 1, 3, 2 | RFLAGS_VM)]
    {
        with_guest(&[0x0f, 0x01, 0xd9], |guest| {
            guest.enable_hypercalls();
            guest.legacy_mode(attributes);
            guest.vmcb().cr0 = cr0;
            (guest.vmcb().cpl, guest.vmcb().rflags) = (cpl, rflags);
            guest.exit(VMMCALL, 0, 0);
            assert_eq!((guest.raised(), guest.advanced()), (UD, 0));
        });
    }
}

/// An access at `gpa` by this instruction, in 32-bit code without paging.
fn access(bytes: &[u8], gpa: u64, info_1: u64, act: impl FnOnce(&mut Guest<'_, '_>, Next)) {
    with_guest(bytes, |guest| {
        guest.legacy_mode(Segment::DEFAULT_32);
        (guest.set(RBX, gpa), guest.set(RAX, 0x1111), guest.set(RCX, 0x2222));
        let next = guest.exit(NESTED, info_1, gpa);
        act(guest, next);
    });
}

const LOAD: &[u8] = &[0x8b, 0x03];
const STORE: &[u8] = &[0x89, 0x03];
const WRITE: u64 = 1 << 1;

#[test]
fn u28_where_nothing_is_all_ones_are_read_and_stores_are_lost() {
    for gpa in [HOLE, 0xfed0_0000, 0xffff_fffc] {
        access(LOAD, gpa, 0, |guest, next| {
            assert_eq!(
                (next, guest.raised(), guest.get(RAX), guest.advanced()),
                (Next::Resume, None, 0xffff_ffff, 2)
            );
        });
        access(STORE, gpa, WRITE, |guest, next| {
            assert_eq!((next, guest.raised(), guest.advanced()), (Next::Resume, None, 2));
        });
    }
}

#[test]
fn u28_devices_answer_accesses_of_their_width_alone() {
    access(LOAD, 0xfec0_0000, 0, |guest, _| {
        assert_eq!((guest.get(RAX), guest.advanced()), (0, 2), "IOREGSEL")
    });
    access(&[0x8a, 0x03], 0xfec0_0000, 0, |guest, _| assert_eq!(guest.get(RAX), 0x11ff));
    access(LOAD, 0xfee0_0030, 0, |guest, _| {
        assert_eq!((guest.raised(), guest.get(RAX) >> 32), (None, 0));
        assert_ne!(guest.get(RAX), 0xffff_ffff, "the local APIC's version");
    });
    access(STORE, 0xfee0_0320, WRITE, |guest, next| {
        assert_eq!((next, guest.raised()), (Next::Timers, None));
    });
}

#[test]
fn u28_an_access_that_is_not_what_the_fault_says_does_no_harm() {
    for bytes in [&[0x06][..], &[0x0f, 0x0b], &[0xf3, 0xa4], &[0x0f, 0x10, 0x03], &[0x90]] {
        access(bytes, HOLE, WRITE, |guest, next| {
            assert_eq!(next, Next::Resume, "{bytes:x?}");
            assert!(guest.raised().is_none_or(|vector| vector == 6 || vector == 13), "{bytes:x?}");
        });
    }
    for info_1 in [u64::MAX, 1 << 33, 1 << 32, 1 << 4, 0x1f] {
        for gpa in [0, MEMORY - 1, HOLE, 0xfec0_0000, 1 << 40, 1 << 52, u64::MAX] {
            access(LOAD, gpa, info_1, |guest, next| {
                assert_eq!(next, Next::Resume, "{gpa:#x}, {info_1:#x}");
                assert!(guest.advanced() == 0 || guest.raised().is_none());
            });
        }
    }
}

#[test]
fn u28_code_and_tables_where_no_memory_is_are_faults() {
    access(LOAD, HOLE, 1 << 4 | 1 << 32, |guest, _| assert_eq!((guest.raised(), guest.advanced()), (UD, 0)));
    access(LOAD, HOLE, 1 << 33, |guest, _| assert_eq!((guest.raised(), guest.advanced()), (GP, 0)));
    access(LOAD, 1 << 45, 1 << 33 | WRITE, |guest, _| {
        assert_eq!((guest.raised(), guest.advanced()), (GP, 0))
    });
}

#[test]
fn u28_an_event_that_cannot_be_delivered_becomes_a_double_fault_and_that_the_end() {
    for (delivered, next, raised) in [
        (event::VALID | event::TYPE_INTERRUPT | 0x41, Next::Resume, Some(8)),
        (event::exception(13), Next::Resume, Some(8)),
        (event::exception(8) | event::ERROR_VALID, Next::Dead, Some(8)),
    ] {
        with_guest(LOAD, |guest| {
            guest.vmcb().exit_interrupt_info = delivered;
            guest.0.state.recover_event();
            assert_eq!(guest.exit(NESTED, WRITE, HOLE), next, "{delivered:#x}");
            assert_eq!((guest.raised(), guest.advanced()), (raised, 0), "{delivered:#x}");
        });
    }
}

#[test]
fn u28_the_trap_flag_traps_behind_what_was_carried_out_and_nowhere_else() {
    for (bytes, code, info_1, raised) in [
        (&[0x0f, 0xa2][..], CPUID, 0, Some(1)),
        (&[0x0f, 0x32], MSR, 0, GP),
        (&[0xee], IOIO, port(0x80, 1, false), Some(1)),
    ] {
        with_guest(bytes, |guest| {
            guest.set(RCX, 0xdead);
            guest.vmcb().rflags |= RFLAGS_TF;
            guest.vmcb().interrupt_shadow = 1;
            guest.exit(code, info_1, CODE + 1);
            assert_eq!((guest.raised(), guest.vmcb().interrupt_shadow), (raised, u64::from(raised == GP)));
        });
    }
}
