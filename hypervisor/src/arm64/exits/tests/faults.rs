//! Data and instruction aborts.

use super::*;
use crate::devices::virt::map::{GICD, RTC, UART};
use memslots::SlotId;

const TRANSLATION: u64 = 0x07;
const PERMISSION: u64 = 0x0f;
const WRITE: u64 = 1 << 6;
const IN_WALK: u64 = 1 << 7;
const MAINTENANCE: u64 = 1 << 8;
/// The syndrome describes the access: of 4 bytes, by X3.
const DESCRIBED: u64 = 1 << 24 | 2 << 22 | 3 << 16;
/// Guest virtual address of a device's page.
const DEVICE: u64 = 0xffff_0000_0900_0000;
const NOTHING: u64 = 0x2000_0000;
/// The guest's syndrome of a data abort at EL1, for an unused address.
const DATA_ABORT: u64 = 0x25 << 26 | LONG | 0x10;
const FETCH_ABORT: u64 = 0x21 << 26 | LONG | 0x10;

/// A fault of `class` at `gpa`; its virtual address is `DEVICE` plus an offset.
fn fault(context: &mut Context<'_, MockArm64>, class: u8, rest: u64, gpa: u64) -> Next {
    leave(context, Vector::Synchronous, |hardware| {
        hardware.syndrome = of_class(class, rest);
        hardware.address = DEVICE | gpa & 0xfff;
        hardware.page = gpa >> 12 << 4;
    })
}

#[test]
pub(super) fn memory_appears() {
    for (class, rest) in [
        (0x20, TRANSLATION),
        (0x24, TRANSLATION),
        (0x24, TRANSLATION | WRITE),
        (0x24, TRANSLATION | IN_WALK | WRITE),
    ] {
        with(|context| {
            let before = context.state.registers.clone();
            assert_eq!(fault(context, class, rest, RAM + 0x10_0123), Next::Resume);
            assert_eq!(context.state.registers, before, "it is executed again");
            assert_eq!(count(context, Counter::NestedInstalled), 1);
            // Another vCPU that has waited for it, say, finds it there.
            assert_eq!(fault(context, class, rest, RAM + 0x10_0123), Next::Resume);
            assert_eq!(count(context, Counter::NestedInstalled), 1);
        });
    }
}

#[test]
pub(super) fn registers_of_devices_are_read_and_written() {
    with(|context| {
        // UARTFR: nothing received, nothing to be sent. The destination is W3, whose upper half
        // becomes 0.
        assert_eq!(fault(context, 0x24, TRANSLATION | DESCRIBED, UART + 0x18), Next::Resume);
        assert_eq!((context.state.registers.pc, context.state.registers.x[3] & !7), (CODE + 4, 0x90));
        // UARTDR, when the port is enabled.
        for (register, value) in [(0x30, 0x301), (0, 0x1_0000_0041)] {
            ready(context);
            context.state.registers.x[3] = value;
            assert_eq!(fault(context, 0x24, TRANSLATION | DESCRIBED | WRITE, UART + register), Next::Resume);
            assert_eq!(context.state.registers.pc, CODE + 4);
        }
        assert_eq!(hardware(|hardware| core::mem::take(&mut hardware.transmitted)), b"A");
        // The date, the distributor, the vCPU's own redistributor and another one; into XZR.
        for gpa in [RTC, GICD + 8, 0x080a_0008, 0x080c_0008, 0x080b_0100] {
            ready(context);
            assert_eq!(fault(context, 0x24, TRANSLATION | DESCRIBED, gpa), Next::Resume);
            assert_eq!(context.state.registers.pc, CODE + 4, "{gpa:#x}");
            let before = context.state.registers.x;
            fault(context, 0x24, TRANSLATION | DESCRIBED | 31 << 16, gpa);
            assert_eq!(context.state.registers.x, before);
        }
        // A sign-extended byte: 0xb1 is the last of the PL011's identification. Into X3, W3, and
        // zero-extended.
        for (how, value) in
            [(1 << 21 | 1 << 15, 0xffff_ffff_ffff_ffb1), (1 << 21, 0xffff_ffb1), (0, 0xb1), (1 << 15, 0xb1)]
        {
            ready(context);
            let byte = 1 << 24 | 3 << 16;
            fault(context, 0x24, TRANSLATION | byte | how, UART + 0xffc);
            assert_eq!(context.state.registers.x[3], value, "{how:#x}");
        }
        // A write to the vCPU's own redistributor affects it alone: GICR_ISENABLER0.
        ready(context);
        context.state.registers.x[3] = 1 << 27;
        fault(context, 0x24, TRANSLATION | DESCRIBED | WRITE, 0x080b_0100);
        fault(context, 0x24, TRANSLATION | DESCRIBED, 0x080b_0100);
        assert_ne!(context.state.registers.x[3] & 1 << 27, 0);
        // All registers of all devices, with all sizes and all bits.
        for page in
            [GICD, 0x080a_0000, 0x080b_0000, 0x080c_0000, 0x080d_0000, 0x080e_0000, 0x080f_0000, UART, RTC]
        {
            for offset in (0..0x1000).step_by(4).chain([1, 2, 0xfff, 0xffd]) {
                for (size, is_write) in [(0, 0), (1, WRITE), (2, 0), (2, WRITE), (3, 0), (3, WRITE)] {
                    ready(context);
                    context.state.registers.x[3] = u64::MAX;
                    let rest = 1 << 24 | size << 22 | 3 << 16 | is_write | TRANSLATION;
                    assert_eq!(fault(context, 0x24, rest, page + offset), Next::Resume);
                    assert_eq!(context.state.registers.pc, CODE + 4, "{:#x}", page + offset);
                }
            }
        }
    });
}

#[test]
pub(super) fn where_nothing_is_the_guest_gets_an_abort() {
    for (rest, passed) in [(0, 0), (WRITE, WRITE)] {
        for from in [EL1, 4, EL0, 0x10] {
            with(|context| {
                context.state.registers.pstate = from;
                assert_eq!(fault(context, 0x24, TRANSLATION | DESCRIBED | rest, NOTHING + 8), Next::Resume);
                let lower = if matches!(from, EL0 | 0x10) { 1 << 26 } else { 0 };
                assert_taken(context, (DATA_ABORT | passed) - lower, (CODE, from));
                assert_eq!(MockArm64::read(Register::Far), DEVICE | 8);
                assert_eq!(context.state.registers.x[3], 0x1_0000_0003);
            });
        }
    }
    // After the last redistributor.
    with(|context| {
        fault(context, 0x24, TRANSLATION | DESCRIBED, 0x080a_0000 + 3 * 0x2_0000);
        assert_taken(context, DATA_ABORT, (CODE, EL1));
    });
    // Cache maintenance has no effect there, nor on a device.
    for gpa in [NOTHING, UART] {
        with(|context| {
            assert_eq!(fault(context, 0x24, TRANSLATION | MAINTENANCE | WRITE, gpa), Next::Resume);
            assert_eq!(context.state.registers.pc, CODE + 4);
        });
    }
}

#[test]
pub(super) fn a_fetch_from_a_device_is_an_abort() {
    for gpa in [UART, NOTHING, GICD] {
        for (from, syndrome) in [(EL1, FETCH_ABORT), (EL0, FETCH_ABORT - (1 << 26))] {
            with(|context| {
                context.state.registers.pstate = from;
                assert_eq!(fault(context, 0x20, TRANSLATION | WRITE | DESCRIBED, gpa), Next::Resume);
                assert_taken(context, syndrome, (CODE, from));
                assert_eq!(hardware(|hardware| hardware.transmitted.len()), 0);
            });
        }
    }
}

#[test]
pub(super) fn an_address_beyond_all_is_an_abort() {
    for page in [u64::MAX, 1 << 39 >> 8, 1 << 43, 0xfff_ffff_fff0, 1 << 63] {
        with(|context| {
            let next = leave(context, Vector::Synchronous, |hardware| {
                hardware.syndrome = of_class(0x24, TRANSLATION | DESCRIBED);
                (hardware.address, hardware.page) = (u64::MAX, page);
            });
            assert_eq!(next, Next::Resume);
            assert_taken(context, DATA_ABORT, (CODE, EL1));
            assert_eq!(MockArm64::read(Register::Far), u64::MAX);
        });
    }
    // Stage 2 itself reports that the address is too large.
    with(|context| {
        fault(context, 0x24, DESCRIBED, RAM);
        assert_taken(context, DATA_ABORT, (CODE, EL1));
        assert_eq!(count(context, Counter::NestedInstalled), 0);
    });
}

#[test]
pub(super) fn aborts_in_walks_are_the_guests() {
    for gpa in [UART, NOTHING] {
        // For cache maintenance as well: the walk has not completed.
        for rest in [IN_WALK, IN_WALK | WRITE, IN_WALK | DESCRIBED, IN_WALK | MAINTENANCE | WRITE] {
            with(|context| {
                assert_eq!(fault(context, 0x24, TRANSLATION | rest, gpa), Next::Resume);
                assert_taken(context, DATA_ABORT | rest & (WRITE | MAINTENANCE), (CODE, EL1));
            });
        }
    }
}

/// Places an instruction at the PC, and `base` in X1 and both stack pointers.
fn code(context: &mut Context<'_, MockArm64>, word: u32, base: u64) {
    ready(context);
    hardware(|hardware| {
        hardware.pages = [(CODE, RAM + 0x8_0000)].into();
        hardware.registers.insert(Register::SpEl0, base);
        hardware.registers.insert(Register::SpEl1, base);
    });
    store(context, RAM + 0x8_0000, &[word]);
    context.state.registers.x[1] = base;
}

#[test]
pub(super) fn pairs_and_write_back_are_done_from_the_instruction() {
    with(|context| {
        // LDP W3, W4, [X1]: UARTFR and the register after it.
        code(context, 0x2940_1023, DEVICE + 0x18);
        assert_eq!(fault(context, 0x24, TRANSLATION, UART + 0x18), Next::Resume);
        assert_eq!(context.state.registers.pc, CODE + 4);
        assert_eq!((context.state.registers.x[3] & !7, context.state.registers.x[4]), (0x90, 0));
        // STR W3, [X1], #4 at EL1; and with either stack pointer. Address tags are ignored.
        for (word, base, pstate) in [
            (0xb800_4423, DEVICE | 0xff << 56, EL1),
            (0xb800_4423, DEVICE & !(0xff << 56), EL1),
            (0xb800_47e3, DEVICE, EL1),
            (0xb800_47e3, DEVICE, 4),
            (0xb800_47e3, DEVICE, EL0),
        ] {
            // UARTCR first, so that a byte is sent.
            ready(context);
            context.state.registers.x[3] = 0x301;
            fault(context, 0x24, TRANSLATION | DESCRIBED | WRITE, UART + 0x30);
            code(context, word, base);
            context.state.registers.pstate = pstate;
            context.state.registers.x[3] = 0x42;
            assert_eq!(fault(context, 0x24, TRANSLATION | WRITE, UART), Next::Resume);
            assert_eq!(context.state.registers.pc, CODE + 4);
            assert_eq!(hardware(|hardware| core::mem::take(&mut hardware.transmitted)), b"B");
            let [sp0, sp1] = [Register::SpEl0, Register::SpEl1].map(MockArm64::read);
            let after = base + 4;
            let expected = match (word, pstate) {
                (0xb800_4423, _) => (after, base, base),
                (_, EL1) => (base, base, after),
                _ => (base, after, base),
            };
            assert_eq!((context.state.registers.x[1], sp0, sp1), expected);
        }
    });
}

#[test]
pub(super) fn an_instruction_that_is_another_is_not_done() {
    // LDP W3, W4, [X1]; STP; LDR W3, [X1], #4; LDP Q3, Q4, [X1]; an invalid word; an exclusive.
    let (pair, pair_store, post, vectors, exclusive) =
        (0x2940_1023, 0x2900_1023, 0xb840_4423, 0xad40_1023, 0x885f_7c23);
    for (word, rest, base, offset) in [
        // A store where the access was a load, and vice versa.
        (pair_store, 0, DEVICE, 0),
        (pair, WRITE, DEVICE, 0),
        // Another address: X1, or a different FAR_EL2.
        (pair, 0, DEVICE + 8, 0),
        (post, 0, 0, 0),
        // A pair that extends into the next page, aligned or not.
        (pair, 0, DEVICE + 0xffc, 0xffc),
        (pair, 0, DEVICE + 0xffa, 0xffa),
        (vectors, 0, DEVICE, 0),
        (exclusive, 0, DEVICE, 0),
        (0, 0, DEVICE, 0),
        (u32::MAX, 0, DEVICE, 0),
    ] {
        with(|context| {
            code(context, word, base);
            let before = context.state.registers.x;
            assert_eq!(fault(context, 0x24, TRANSLATION | rest, UART + offset), Next::Resume);
            assert_taken(context, DATA_ABORT | rest, (CODE, EL1));
            assert_eq!(context.state.registers.x, before, "{word:#x}");
            assert_eq!(hardware(|hardware| hardware.transmitted.len()), 0);
        });
    }
    // AArch32, and a misaligned PC.
    for (pc, pstate) in [(CODE, 0x10), (CODE + 2, EL1)] {
        with(|context| {
            code(context, pair, DEVICE);
            (context.state.registers.pc, context.state.registers.pstate) = (pc, pstate);
            fault(context, 0x24, TRANSLATION, UART);
            let lower = if pstate == EL1 { 0 } else { 1 << 26 };
            assert_taken(context, DATA_ABORT - lower, (pc, pstate));
        });
    }
}

#[test]
pub(super) fn a_stale_translation_is_tried_again() {
    // The page of the code has been removed, from stage 2 or from memory; or it is execute-only.
    for (par, is_tried) in [(1 | 1 << 9, true), (NOTHING, true), (1, false)] {
        with(|context| {
            code(context, 0x2940_1023, DEVICE);
            hardware(|hardware| hardware.pages = [(CODE, par)].into());
            let before = context.state.registers.clone();
            assert_eq!(fault(context, 0x24, TRANSLATION, UART), Next::Resume);
            if is_tried {
                assert_eq!(context.state.registers, before);
            } else {
                assert_taken(context, DATA_ABORT, (CODE, EL1));
            }
        });
    }
    // A permission fault, whose address must be translated again through the guest's own tables.
    with(|context| {
        let before = context.state.registers.clone();
        assert_eq!(fault(context, 0x24, PERMISSION | WRITE, UART), Next::Resume);
        assert_eq!(context.state.registers, before, "they do not know it any more");
        assert!(!told().contains(&Recorded::ReadPage), "HPFAR_EL2 says nothing of it");
        hardware(|hardware| hardware.pages = [(DEVICE, RAM + 0x2000)].into());
        assert_eq!(fault(context, 0x24, PERMISSION | WRITE, UART), Next::Resume);
        assert_eq!(count(context, Counter::NestedInstalled), 1);
    });
}

#[test]
pub(super) fn read_only_memory_keeps_what_it_has() {
    with(|context| {
        let vm = context.vm;
        let mut scratch = crate::vm::space::FlushScratch::new();
        let mut job = vm.space.set_read_only(SlotId(0), true).expect("no other job");
        while vm.step_job(&mut job, &mut scratch) != paging::Progress::Done {}
        // A store is dropped, a walk's store cannot be, and a load finds memory. So does the walk
        // for a store.
        assert_eq!(fault(context, 0x24, TRANSLATION | DESCRIBED | WRITE, RAM), Next::Resume);
        assert_eq!(context.state.registers.pc, CODE + 4);
        ready(context);
        assert_eq!(fault(context, 0x24, PERMISSION | IN_WALK | WRITE, RAM), Next::Resume);
        assert_taken(context, DATA_ABORT | WRITE, (CODE, EL1));
        for (block, rest) in (0..).zip([DESCRIBED, IN_WALK | WRITE]) {
            ready(context);
            assert_eq!(fault(context, 0x24, TRANSLATION | rest, RAM + (block << 21)), Next::Resume);
            let installed = count(context, Counter::NestedInstalled);
            assert_eq!((context.state.registers.pc, installed), (CODE, block + 1));
        }
    });
}

#[test]
pub(super) fn broken_memory_is_the_guests() {
    // External aborts on the access and on walks, parity, alignment, reserved values.
    for status in [0x10, 0x14, 0x17, 0x18, 0x1f, 0x21, 0x30, 0x31, 0x34, 0x3f] {
        for class in [0x20, 0x24] {
            with(|context| {
                assert_eq!(fault(context, class, status | DESCRIBED | 1 << 10, RAM), Next::Resume);
                let unknown = if status == 0x10 { 1 << 10 } else { 0 };
                let abort = if class == 0x20 { FETCH_ABORT } else { DATA_ABORT };
                assert_taken(context, abort | unknown, (CODE, EL1));
                assert_eq!(count(context, Counter::NestedInstalled), 0, "memory is not looked at");
            });
        }
    }
}
