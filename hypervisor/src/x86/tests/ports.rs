//! Ports by the check that refuses them, and strings that cannot be moved.

use super::processor::{CODE, DATA, HOLE, MEMORY, TABLES, Tested, UNMAPPED, board, processor, with_guest};
use super::rows::{GP, IOIO, PF, port};
use crate::devices::pc::platform::{PortSize, SerialPort};
use crate::devices::pc::power;
use crate::svm::tests::guest::Guest;
use crate::vm::Next;
use crate::vm::arch::Arch;
use crate::x86::RFLAGS_VM;
use crate::x86::vcpu::block::ControlBlock;
use crate::x86::vcpu::block::Field::{Cr2, Rflags, Rip};
use crate::x86::vcpu::block::{Segment, SegmentName};
use crate::x86::vcpu::registers::{RAX, RCX, RDI, RSI};

fn set_task(guest: &mut Guest<'_, '_, Tested>, limit: u32, base: u64) {
    let task = Segment { selector: 0x18, attributes: 0x8b, limit, base };
    guest.0.state.block.set_segment(SegmentName::Tr, task);
}

#[test]
fn ports_above_the_privilege_level_are_the_tasks_to_allow() {
    const TASK: u64 = DATA + 0x4000;
    for (rflags, limit, map, fault) in [
        (2, 0x2068, 0xff, GP),
        (2, 0x2068, 0x00, None),
        (2, 0x67, 0x00, GP),
        (3 << 12 | 2, 0, 0xff, None),
        (3 << 12 | 2 | RFLAGS_VM, 0, 0, GP),
    ] {
        with_guest(&[0xee], |guest| {
            guest.set_cpl(3);
            guest.set_field(Rflags, rflags);
            set_task(guest, limit, TASK);
            guest.write(TASK + 0x66, &0x68u16.to_le_bytes());
            guest.write(TASK + 0x68 + 0x3f8 / 8, &[map, map]);
            guest.exit(IOIO, port(0x3f8, 1, false), CODE + 1);
            assert_eq!(guest.raised(), fault, "{rflags:#x}, limit {limit:#x}, map {map:#x}");
            assert_eq!(processor(|processor| processor.sent.len()), usize::from(fault.is_none()));
        });
    }
    with_guest(&[0xee], |guest| {
        guest.set_cpl(3);
        set_task(guest, 0x2068, UNMAPPED);
        guest.exit(IOIO, port(0x3f8, 1, false), CODE + 1);
        assert_eq!((guest.raised(), guest.field(Cr2)), (PF, UNMAPPED + 0x66), "a task that is not there");
    });
}

#[test]
fn a_port_of_no_width_is_refused() {
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
fn strings_of_ports_fault_at_the_element_that_cannot_be_moved() {
    with_guest(&[0xf3, 0x6e], |guest| {
        guest.write(MEMORY - 2, b"ab");
        guest.set_all(&[(RSI, MEMORY - 2), (RCX, 4)]);
        assert_eq!(guest.exit(IOIO, string(0x3f8, false), CODE + 2), Next::Resume);
        assert_eq!((guest.raised(), guest.advanced()), (GP, 0), "behind memory");
        assert_eq!((guest.get(RSI), guest.get(RCX)), (MEMORY, 2));
        let sent = processor(|processor| processor.sent.clone());
        assert_eq!(sent, [(SerialPort::Com1, b'a'), (SerialPort::Com1, b'b')]);
    });
    for (address, fault) in [(UNMAPPED, PF), (1 << 47, GP), (HOLE, GP), (0xffff_ffff_ffff_ffff, GP)] {
        for is_input in [false, true] {
            with_guest(&[0xf3, 0x6c | (!is_input as u8) << 1], |guest| {
                guest.set_all(&[(RSI, address), (RDI, address), (RCX, 3)]);
                assert_eq!(guest.0.vm.type_in(0, b"x"), Some(1));
                guest.exit(IOIO, string(0x3f8, is_input), CODE + 2);
                let kept = guest.0.vm.port_read(0x3f8, PortSize::Byte);
                assert!(address == HOLE || kept == b'x'.into(), "nothing is read that cannot be stored");
                let fault = if address == u64::MAX { PF } else { fault };
                assert_eq!((guest.raised(), guest.get(RCX), guest.advanced()), (fault, 3, 0), "{address:#x}");
                assert!(processor(|processor| processor.sent.is_empty()));
            });
        }
    }
}

#[test]
fn what_is_typed_beyond_the_fifo_comes_whenever_there_is_room() {
    let board = board();
    board.type_in(&[b'x'; 40]);
    board.with_vcpu(0, |context| {
        let mut guest = Guest(context);
        guest.begin(&[0xee]);
        let mut has_byte = |(number, value): (u16, u64)| {
            guest.set(RAX, value);
            guest.exit(IOIO, port(number, 1, false), CODE + 1);
            guest.0.vm.port_read(0x3fd, PortSize::Byte) & 1 != 0
        };
        // One is there without a FIFO. It clears that, waits in loopback, and clears it again.
        let writes = [(0x3fa, 1), (0x3fa, 3), (0x3fc, 0x10), (0x3fa, 3), (0x3fc, 0)];
        assert_eq!(writes.map(&mut has_byte), [true, true, true, false, true]);
    });
    board.type_in(&[b'x'; 40]);
    board.with_vcpu(0, |context| {
        Tested::reset_devices(context.vm);
        assert_eq!(context.vm.port_read(0x3fd, PortSize::Byte) & 1, 1, "after a reset");
    });
}

/// By each segment's base, at an odd address that wraps.
#[test]
fn a_string_of_ports_is_where_its_segment_is() {
    const NAMES: [(u8, SegmentName); 6] = [
        (0x26, SegmentName::Es),
        (0x2e, SegmentName::Cs),
        (0x36, SegmentName::Ss),
        (0x3e, SegmentName::Ds),
        (0x64, SegmentName::Fs),
        (0x65, SegmentName::Gs),
    ];
    const PLACE: u64 = DATA + 1;
    for (prefix, name) in NAMES {
        for is_64bit in [false, true] {
            with_guest(&[], |guest| {
                if !is_64bit {
                    guest.legacy_mode(Segment::DEFAULT_32);
                }
                for (other, index) in NAMES.iter().zip(0..) {
                    let segment = guest.0.state.block.segment(other.1);
                    let base = if other.1 == name { 0x8000_0000 } else { 0x100 << index };
                    guest.0.state.block.set_segment(other.1, Segment { base, ..segment });
                }
                let has_base = !is_64bit || matches!(name, SegmentName::Fs | SegmentName::Gs);
                let (base, limit) =
                    (if has_base { 0x8000_0000_u64 } else { 0 }, 1_u64 << if is_64bit { 63 } else { 32 });
                let code = if is_64bit { 0 } else { guest.0.state.block.segment(SegmentName::Cs).base };
                guest.set_field(Rip, CODE.wrapping_sub(code) & (limit - 1));
                guest.write(CODE, &[prefix, 0x6e]);
                guest.write(PLACE, b"s");
                let offset = PLACE.wrapping_sub(base) & if is_64bit { u64::MAX } else { limit - 1 };
                guest.set_all(&[(RSI, offset), (RCX, 0x77)]);
                guest.exit(IOIO, port(0x3f8, 1, false) | 1 << 2, guest.field(Rip) + 2);
                assert_eq!(
                    (guest.raised(), guest.get(RSI), guest.get(RCX)),
                    (None, offset + 1, 0x77),
                    "{name:?}"
                );
                let sent = processor(|processor| processor.sent.clone());
                assert_eq!(sent, [(SerialPort::Com1, b's')], "{name:?}");
            });
        }
    }
}

/// The entry for the page has neither bit before.
#[test]
fn an_access_marks_the_tables_as_the_processor_does() {
    for (is_input, cpl, page, fault, marked) in [
        (false, 0, 0x87, None, [0x20, 0x20, 0x20]),
        (true, 0, 0x87, None, [0x20, 0x20, 0x60]),
        (false, 3, 0x83, PF, [0; 3]),
        (true, 3, 0x85, PF, [0; 3]),
        (true, 0, 0x85, PF, [0; 3]),
    ] {
        with_guest(&[], |guest| {
            guest.write(CODE, &[0xf3, 0x6c | (!is_input as u8) << 1]);
            guest.set_cpl(cpl);
            guest.set_field(Rflags, 2 | 3 << 12);
            guest.write(TABLES + 0x2010, &(2_u64 << 21 | page).to_le_bytes());
            let entries = [TABLES, TABLES + 0x1000, TABLES + 0x2010];
            let before = entries.map(|at| guest.read(at));
            guest.set_all(&[(RSI, 2 << 21), (RDI, 2 << 21), (RCX, 1)]);
            // The processor says the address's size, and the segment.
            let info = string(0x3f8, is_input) | 1 << 9 | 3 << 10;
            guest.exit(IOIO, info, CODE + 2);
            assert_eq!(guest.raised(), fault, "{is_input} {cpl} {page:#x}");
            let after = entries.map(|at| guest.read(at));
            let marks: Vec<_> = after.iter().zip(before).map(|(after, before)| after ^ before).collect();
            // Its code may be looked at, by the upper two.
            let first = if fault.is_some() { 2 } else { 0 };
            assert_eq!(marks[first..], marked[first..], "{is_input} {cpl} {page:#x}");
            if fault.is_some() {
                let code = 1 | u32::from(is_input) << 1 | u32::from(cpl == 3) << 2;
                assert_eq!(guest.0.state.exception.map(|event| event >> 32), Some(code.into()));
                assert_eq!(guest.field(Cr2), 2 << 21);
            }
        });
    }
}

#[test]
fn a_long_string_lets_others_in_between() {
    with_guest(&[0xf3, 0x6e], |guest| {
        guest.set_all(&[(RSI, DATA), (RCX, u64::MAX)]);
        assert_eq!(guest.exit(IOIO, string(0x3f8, false), CODE + 2), Next::Resume);
        assert_eq!((guest.raised(), guest.advanced(), guest.get(RCX)), (None, 0, u64::MAX - 64));
        guest.set(RCX, 0);
        guest.exit(IOIO, string(0x3f8, false), CODE + 2);
        assert_eq!((guest.advanced(), guest.get(RSI)), (2, DATA + 64), "of none nothing is moved");
    });
}

#[test]
fn the_machine_ends_by_its_ports() {
    let next = |number: u16, value: u8| {
        with_guest(&[0xee], |guest| {
            guest.set(RAX, value.into());
            let next = guest.exit(IOIO, port(number, 1, false), CODE + 1);
            (next, guest.advanced())
        })
    };
    assert_eq!(next(power::SLEEP, 1 << 5 | power::SLEEP_TYPE_S5 << 2), (Next::PowerOff, 1));
    assert_eq!(next(power::SLEEP, !(1 << 5)), (Next::Resume, 1));
    assert_eq!(next(power::RESET, power::RESET_VALUE), (Next::Reset, 1));
}
