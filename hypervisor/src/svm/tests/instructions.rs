//! Exiting instructions, in all the wrong places.

use super::processor::{CODE, HOLE, MEMORY, UNMAPPED, processor, with_guest};
use super::rows::{CPUID, GP, HLT, IOIO, MSR, PF, UD, port};
use crate::svm::features::Features;
use crate::svm::table::{Instruction, Row};
use crate::vm::Next;
use crate::x86::RFLAGS_TF;
use crate::x86::vcpu::block::Segment;
use crate::x86::vcpu::registers::{RAX, RBX, RCX};
use crate::x86::vcpu::state::Activity;

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
fn an_instruction_that_cannot_be_read_has_no_effect_but_its_fault() {
    for (row, code, info_1) in instructions() {
        for (rip, fault, address) in [
            (UNMAPPED, PF, Some(UNMAPPED)),
            (1 << 47, GP, None),
            (u64::MAX << 48, GP, None),
            (HOLE, UD, None),
        ] {
            with_guest(row.bytes(), |guest| {
                guest.vmcb().rip = rip;
                let registers = guest.0.state.registers.clone();
                assert_eq!(guest.exit(code, info_1, 0), Next::Resume, "{row:?} at {rip:#x}");
                assert_eq!((guest.raised(), guest.vmcb().rip), (fault, rip), "{row:?} at {rip:#x}");
                assert!(address.is_none_or(|address| guest.vmcb().cr2 == address));
                let found = (&guest.0.state.registers, guest.0.state.activity);
                assert_eq!(found, (&registers, Activity::Running));
            });
        }
    }
}

#[test]
fn code_that_has_been_changed_is_skipped_as_it_is_or_is_no_instruction() {
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
fn an_instruction_ends_with_memory_or_is_cut_off_there() {
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
fn addresses_of_code_wrap_as_the_mode_has_it() {
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
fn where_the_processor_says_the_next_address_nothing_is_read() {
    with_guest(&[], |guest| {
        processor(|processor| processor.features = Features(1 << 3));
        guest.vmcb().rip = UNMAPPED;
        guest.vmcb().next_rip = UNMAPPED + 5;
        assert_eq!(guest.exit(CPUID, 0, 0), Next::Resume);
        assert_eq!((guest.raised(), guest.vmcb().rip), (None, UNMAPPED + 5));
    });
}

#[test]
fn the_trap_flag_traps_behind_what_was_carried_out_and_nowhere_else() {
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

#[test]
fn a_control_write_that_is_none_has_no_effect() {
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
