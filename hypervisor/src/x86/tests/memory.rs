//! Hypercalls with inputs anywhere, and accesses to addresses without memory.

use core::sync::atomic::Ordering;
use hostlink::counters::Counter;
use memslots::SLOTS_MAX;
use paging::Progress;

use super::processor::{CODE, DATA, Guest, HOLE, MEMORY, with_guest, with_guest_of};
use super::rows::{GP, IOIO, NESTED, UD, VMMCALL, port};
use crate::devices::pc::pci::{CONFIG_ADDRESS, CONFIG_DATA};
use crate::vm::mock::largest::use_all_twice;
use crate::vm::{Next, VpIndex};
use crate::x86::vcpu::block::Field::{Cr0, Rflags, Rip, Rsp};
use crate::x86::vcpu::block::{ControlBlock, Segment, SegmentName};
use crate::x86::vcpu::event;
use crate::x86::vcpu::instruction::build_decoder;
use crate::x86::vcpu::registers::{RAX, RBX, RCX, RDI, RDX};
use crate::x86::{RFLAGS_TF, RFLAGS_VM};

#[test]
fn u7_the_largest_use_of_tables_fits_twice() {
    for switches in ["", "\nzap=everything"] {
        let config = alloc::format!("vcpus=2\nmemory=16777216\nnested_page=4K{switches}").leak();
        assert_eq!(with_guest_of(config, |guest| use_all_twice(guest.0.vm)), SLOTS_MAX, "{switches}");
    }
}

#[test]
fn hypercalls_read_inputs_only_from_memory() {
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
                guest.set_all(&[(RCX, control), (RDX, input)]);
                let next = guest.exit(VMMCALL, 0, 0);
                assert!(matches!(next, Next::Resume | Next::Yield));
                assert_ne!((guest.get(RAX) & 0xffff, guest.advanced()), (0, 3), "{control:#x} from {what}");
                assert_eq!(guest.count(Counter::FlushWholeAsked), 0);
            });
        }
    }
}

#[test]
fn hypercalls_have_their_callers() {
    let code = Segment::DEFAULT_32;
    for (attributes, cr0, cpl, rflags, is_allowed) in [
        (0, 0, 0, 2, false),
        (0, 1, 3, 2, false),
        (code, 1, 3, 2, false),
        (0, 1, 3, 2 | RFLAGS_VM, false),
        (code, 1, 0, 2, true),
        (code, 1, 0, 2 | RFLAGS_VM, false),
    ] {
        with_guest(&[0x0f, 0x01, 0xd9], |guest| {
            guest.enable_hypercalls();
            guest.legacy_mode(attributes);
            guest.set_field(Cr0, cr0);
            guest.set_cpl(cpl);
            guest.set_field(Rflags, rflags);
            guest.set_all(&[(RDX, 0), (RAX, 0xfff)]);
            guest.exit(VMMCALL, 0, 0);
            let found = (guest.raised(), guest.advanced(), guest.get(RAX));
            let expected = if is_allowed { (None, 3, 2) } else { (UD, 0, 0xfff) };
            assert_eq!(found, expected, "{attributes:#x} {cr0} {cpl} {rflags:#x}");
        });
    }
}

/// An access at `gpa` by this instruction, in 32-bit code without paging.
fn access(bytes: &[u8], gpa: u64, info_1: u64, act: impl FnOnce(&mut Guest<'_, '_>, Next)) {
    with_guest(bytes, |guest| {
        guest.legacy_mode(Segment::DEFAULT_32);
        guest.set_all(&[(RBX, gpa), (RAX, 0x1111), (RCX, 0x2222)]);
        let next = guest.exit(NESTED, info_1, gpa);
        act(guest, next);
    });
}

const LOAD: &[u8] = &[0x8b, 0x03];
const STORE: &[u8] = &[0x89, 0x03];
pub(crate) const WRITE: u64 = 1 << 1;

#[test]
fn where_nothing_is_all_ones_are_read_and_stores_are_lost() {
    for gpa in [HOLE, 0xfed0_0000, 0xffff_fffc] {
        access(LOAD, gpa, 0, |guest, next| {
            let found = (next, guest.raised(), guest.get(RAX), guest.advanced());
            assert_eq!(found, (Next::Resume, None, 0xffff_ffff, 2));
        });
        access(STORE, gpa, WRITE, |guest, next| {
            assert_eq!((next, guest.raised(), guest.advanced()), (Next::Resume, None, 2));
        });
    }
}

#[test]
fn devices_answer_accesses_of_their_width_alone() {
    access(LOAD, 0xfec0_0000, 0, |guest, _| {
        assert_eq!((guest.get(RAX), guest.advanced()), (0, 2), "IOREGSEL")
    });
    access(&[0x8a, 0x03], 0xfec0_0000, 0, |guest, _| assert_eq!(guest.get(RAX), 0x11ff));
    access(LOAD, 0xfee0_0030, 0, |guest, _| {
        assert_eq!((guest.raised(), guest.get(RAX) >> 32), (None, 0));
        assert_ne!(guest.get(RAX), 0xffff_ffff, "the local APIC's version");
    });
    access(&[0x66, 0x8b, 0x03], 0xfee0_0030, 0, |guest, _| assert_eq!(guest.get(RAX), 0xffff));
    access(LOAD, 0xfee0_0034, 0, |guest, _| assert_eq!(guest.get(RAX), 0xffff_ffff, "between registers"));
    access(STORE, 0xfee0_0320, WRITE, |guest, next| {
        assert_eq!((next, guest.raised()), (Next::Timers, None));
    });
    access(&[0x83, 0x3b, 0xff], HOLE, 0, |guest, _| {
        assert_eq!((guest.field(Rflags), guest.advanced()), (2 | 1 << 6 | 1 << 2, 3), "equal: ZF, PF");
    });
    with_guest(&[0x8b, 0x24, 0x24], |guest| {
        guest.legacy_mode(Segment::DEFAULT_32);
        guest.set_field(Rsp, HOLE);
        guest.exit(NESTED, 0, HOLE);
        assert_eq!((guest.field(Rsp), guest.advanced()), (0xffff_ffff, 3), "mov esp, [esp]");
    });
    // Of a long string a part is done, and with TF one element and its trap.
    for (flags, trap, is_one) in [(2, None, false), (2 | RFLAGS_TF, Some(1), true)] {
        with_guest(&[0xf3, 0xab], |guest| {
            guest.legacy_mode(Segment::DEFAULT_32);
            guest.set_field(Rflags, flags);
            guest.set_all(&[(RDI, HOLE), (RCX, 1000)]);
            guest.exit(NESTED, WRITE, HOLE);
            assert_eq!((guest.raised(), guest.advanced()), (trap, 0), "rep stosd, {flags:#x}");
            assert!(guest.get(RCX) < 1000 && (guest.get(RCX) == 999) == is_one);
        });
    }
}

/// Behind the segment's base, and beyond 4 GiB, at an odd address.
#[test]
fn legacy_code_is_read_by_its_segment_and_wraps() {
    build_decoder();
    for (attributes, bytes, before, loaded) in [
        (0, [0x8b, 0x07], u64::MAX << 32, u64::MAX << 32 | 0xffff),
        (Segment::DEFAULT_32, [0x8b, 0x03], u64::MAX << 32, 0xffff_ffff),
        (Segment::DEFAULT_32 | Segment::LONG, [0x8b, 0x03], u64::MAX << 32, 0xffff_ffff),
    ] {
        with_guest(&[], |guest| {
            guest.legacy_mode(attributes);
            guest.write(CODE + 1, &bytes);
            for (name, base) in [(SegmentName::Cs, CODE + 3), (SegmentName::Ds, HOLE - 0xf)] {
                let segment = guest.0.state.block.segment(name);
                guest.0.state.block.set_segment(name, Segment { base, ..segment });
            }
            guest.set_all(&[(RBX, 0x10), (RAX, before)]);
            guest.set_field(Rip, 0xffff_fffe);
            guest.exit(NESTED, 0, HOLE);
            let found = (guest.raised(), guest.get(RAX), guest.field(Rip));
            assert_eq!(found, (None, loaded, 0), "{attributes:#x}");
        });
    }
}

#[test]
fn an_access_that_is_not_what_the_fault_says_does_no_harm() {
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
fn code_and_tables_where_no_memory_is_are_faults() {
    access(LOAD, HOLE, 1 << 4 | 1 << 32, |guest, _| assert_eq!((guest.raised(), guest.advanced()), (UD, 0)));
    access(LOAD, HOLE, 1 << 33, |guest, _| assert_eq!((guest.raised(), guest.advanced()), (GP, 0)));
    access(LOAD, 1 << 45, 1 << 33 | WRITE, |guest, _| {
        assert_eq!((guest.raised(), guest.advanced()), (GP, 0))
    });
    with_guest(LOAD, |guest| {
        guest.set_field(Rip, HOLE);
        guest.exit(NESTED, 0, HOLE);
        assert_eq!(
            (guest.raised(), guest.advanced()),
            (UD, HOLE - CODE),
            "a fetch that is not said to be one"
        );
    });
}

#[test]
fn an_event_that_cannot_be_delivered_becomes_a_double_fault_and_that_the_end() {
    for (delivered, next, raised) in [
        (event::VALID | event::TYPE_INTERRUPT | 0x41, Next::Resume, Some(8)),
        (event::exception(13), Next::Resume, Some(8)),
        (event::exception(8) | event::ERROR_VALID, Next::Shutdown, Some(8)),
    ] {
        with_guest(LOAD, |guest| {
            assert_eq!(guest.exit_in_delivery(delivered, [NESTED, WRITE, HOLE]), next, "{delivered:#x}");
            assert_eq!((guest.raised(), guest.advanced()), (raised, 0), "{delivered:#x}");
        });
    }
}

pub(crate) const ROM: u64 = 0xe100_0000;

/// OUT of a double word: a write to a port, and the change of memory that it begins.
pub(crate) fn out(guest: &mut Guest<'_, '_>, number: u16, value: u64) -> Next {
    guest.set(RAX, value);
    guest.set_field(Rip, CODE);
    let next = guest.exit(IOIO, port(number, 4, false), CODE + 1);
    while guest.0.vm.step_change(Some(guest.0.vcpu.index)) != Progress::Done {}
    next
}

/// A guest of 32-bit code that sees its ROM.
fn with_rom(act: impl FnOnce(&mut Guest<'_, '_>)) {
    with_guest(STORE, |guest| {
        guest.legacy_mode(Segment::DEFAULT_32);
        for (register, value) in [(0x04, 2), (0x30, ROM | 1)] {
            assert_eq!(out(guest, CONFIG_ADDRESS, 1 << 31 | 1 << 11 | register), Next::Resume);
            assert_eq!(out(guest, CONFIG_DATA, value), Next::Resume);
        }
        guest.set_field(Rip, CODE);
        act(guest);
    });
}

#[test]
fn stores_to_a_rom_are_lost_and_walks_through_it_refused() {
    with_rom(|guest| {
        assert_eq!(guest.count(Counter::SlotChanges), 1);
        let contents = guest.read(ROM);
        guest.set_all(&[(RBX, ROM), (RAX, !contents)]);
        assert_eq!(guest.exit(NESTED, WRITE, ROM), Next::Resume);
        assert_eq!((guest.raised(), guest.advanced(), guest.read(ROM)), (None, 2, contents));
        guest.set_field(Rip, CODE);
        assert_eq!(guest.exit(NESTED, WRITE | 1 << 33, ROM), Next::Resume);
        assert_eq!((guest.raised(), guest.advanced()), (GP, 0), "it cannot be marked as used");
    });
}

#[test]
fn a_slot_that_goes_takes_its_contents_along() {
    with_rom(|guest| {
        assert_eq!(out(guest, CONFIG_DATA, 0), Next::Resume);
        assert_eq!((guest.advanced(), guest.count(Counter::SlotChanges)), (1, 2));
        guest.begin(LOAD);
        guest.legacy_mode(Segment::DEFAULT_32);
        guest.set(RBX, ROM);
        guest.exit(NESTED, 0, ROM);
        assert_eq!((guest.get(RAX), guest.raised()), (0xffff_ffff, None));
    });
}

#[test]
fn p13_a_write_that_moves_a_slot_ends_after_the_change() {
    with_rom(|guest| {
        guest.set(RAX, 0);
        assert_eq!(guest.exit(IOIO, port(CONFIG_DATA, 4, false), CODE + 1), Next::Resume);
        let (vm, by) = (guest.0.vm, guest.0.vcpu.index);
        assert_eq!(
            vm.step_change(Some(VpIndex(by.0 + 1))),
            Progress::Done,
            "the other vCPU caused no change"
        );
        let held = vm.hold_change();
        for _ in 0..100 {
            assert_eq!(vm.step_change(Some(by)), Progress::Waiting);
            assert_eq!(vm.step_change(Some(VpIndex(by.0 + 1))), Progress::Done);
        }
        drop(held);
        while vm.step_change(Some(by)) != Progress::Done {}
        assert_eq!((vm.is_changing(), guest.count(Counter::SlotChanges)), (false, 2));
    });
}

#[test]
fn a_request_from_outside_goes_before_a_guests_change() {
    with_rom(|guest| {
        guest.0.vm.turn_wanted.store(true, Ordering::Relaxed);
        assert_eq!(out(guest, CONFIG_DATA, 0), Next::Again);
        assert_eq!((guest.advanced(), guest.count(Counter::SlotChanges)), (0, 1), "it is executed again");
        guest.0.vm.turn_wanted.store(false, Ordering::Relaxed);
        assert_eq!(out(guest, CONFIG_DATA, 0), Next::Resume);
        assert_eq!((guest.advanced(), guest.count(Counter::SlotChanges)), (1, 2));
    });
}
