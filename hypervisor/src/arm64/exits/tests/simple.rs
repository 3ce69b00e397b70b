//! Interrupts, SErrors, waits, and undefined instructions.

use super::*;
use crate::arm64::controls::hcr::VSE;
use crate::vm::arch::State;

#[test]
pub(super) fn an_interrupt_goes_back_with_nothing_read() {
    with(|context| {
        let before = context.state.registers.clone();
        assert_eq!(leave(context, Vector::Interrupt, |_| {}), Next::Resume);
        assert_eq!(context.state.registers, before);
        assert_eq!(told(), []);
    });
}

/// An SError of this type (AET), asynchronous.
fn serror(kind: u64) -> u64 {
    of_class(0x2f, kind << 10 | 0x11)
}

#[test]
pub(super) fn an_serror_is_the_guests() {
    let own = of_class(0x2f, 1 << 24 | 2 << 10 | 0x11);
    let others = [serror(0), serror(1), serror(3), serror(7), own, of_class(0x2f, 2 << 10), u64::MAX, 0];
    for syndrome in others {
        with(|context| {
            let before = context.state.registers.clone();
            let next = leave(context, Vector::SError, |hardware| hardware.syndrome = syndrome);
            assert_eq!(next, Next::Resume);
            assert_ne!(hardware(|hardware| hardware.configuration) & VSE, 0, "{syndrome:#x}");
            assert_eq!(context.state.registers, before, "it comes when the guest lets it through");
            // The guest has taken it: it is delivered once.
            hardware(|hardware| hardware.configuration &= !VSE);
            context.state.intercept_pause(true);
            assert_eq!(hardware(|hardware| hardware.configuration) & VSE, 0);
        });
    }
}

#[test]
pub(super) fn an_serror_that_is_harmless_is_not() {
    for (has_ras, kind, is_harmless) in
        [(true, 2, true), (true, 6, true), (false, 2, false), (false, 6, false)]
    {
        with(|context| {
            hardware(|hardware| hardware.features.set(Features::ERRORS, has_ras));
            let found = leave(context, Vector::SError, |hardware| hardware.syndrome = serror(kind));
            assert_eq!(found, Next::Resume);
            assert_eq!(hardware(|hardware| hardware.configuration) & VSE == 0, is_harmless);
        });
    }
}

#[test]
pub(super) fn what_is_not_shown_is_undefined() {
    let listed: Vec<u8> = Row::ALL.iter().filter_map(|row| row.class()).collect();
    let classes = [0x00, 0x07, 0x0e, 0x19].into_iter().chain((0..64).filter(|class| !listed.contains(class)));
    for class in classes {
        // EL1 with SP_EL1, with SP_EL0; EL0 in both states.
        for from in [EL1, 4, EL0, 0x10, 0xf000_03c5] {
            with(|context| {
                context.state.registers.pstate = from;
                // A condition that always holds.
                assert_eq!(except(context, of_class(class, 1 << 24 | 0xe << 20)), Next::Resume);
                assert_taken(context, UNDEFINED, (CODE, from));
            });
        }
    }
}

#[test]
pub(super) fn what_fails_its_condition_is_passed_over() {
    // AArch32 at EL0, with Z clear: EQ fails.
    for class in [0x01, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x0c] {
        for is_event in [0, 1] {
            with(|context| {
                (context.state.registers.pc, context.state.registers.pstate) = (0x8000, 0x10);
                assert_eq!(except(context, of_class(class, 1 << 24 | is_event)), Next::Resume);
                assert_eq!((context.state.registers.pc, context.state.registers.pstate), (0x8004, 0x10));
                assert_eq!(context.state.activity, Activity::Running);
            });
        }
    }
    // Classes without a condition cannot fail it.
    for class in [0x00, 0x0e, 0x19, 0x3f] {
        with(|context| {
            context.state.registers.pstate = 0x10;
            assert_eq!(except(context, of_class(class, 1 << 24)), Next::Resume);
            assert_taken(context, UNDEFINED, (CODE, 0x10));
        });
    }
}

#[test]
pub(super) fn wfi_halts_and_wfe_yields() {
    for from in [EL1, EL0, 0x4000_0010] {
        with(|context| {
            context.state.registers.pstate = from;
            assert_eq!(except(context, of_class(0x01, 1 << 24 | 0xe << 20)), Next::Halt);
            assert_eq!(context.state.activity, Activity::Halted);
            assert_eq!(context.state.registers.pc & 0xffff_ffff, (CODE + 4) & 0xffff_ffff);
        });
        with(|context| {
            context.state.registers.pstate = from;
            // Also for the forms with a timeout, which are not shown.
            assert_eq!(except(context, of_class(0x01, 1 << 24 | 0xe << 20 | 3)), Next::Yield);
            assert_eq!(context.state.activity, Activity::Running);
            assert_eq!(context.state.registers.pc & 0xffff_ffff, (CODE + 4) & 0xffff_ffff);
        });
    }
}

/// SEVL; WFE; LDXR W3, [X1]; EOR W3, W3, W0; CBNZ W3, end; WFE.
const WAIT: [u32; 6] = [0xd503_20bf, 0xd503_205f, 0x885f_7c23, 0x4a00_0063, 0x3500_0043, 0xd503_205f];

#[test]
pub(super) fn wfe_in_a_wait_for_memory_stays_where_it_is() {
    // The values in X0 and in memory, the word's offset, and whether the guest waits for it.
    for (value, found, off, waits) in
        [(7, 7, 0, true), (7, 8, 0, false), (1 << 32 | 7, 7, 0, true), (7, 7, 2, false)]
    {
        with(|context| {
            hardware(|hardware| hardware.pages = [(CODE, RAM + 0x8_0000), (0x5000, RAM + 0x9_0000)].into());
            store(context, RAM + 0x8_0100, &WAIT);
            store(context, RAM + 0x9_0010, &[found]);
            context.state.registers.pc = CODE + 0x114;
            context.state.registers.x[0] = value;
            context.state.registers.x[1] = 0x5010 + off;
            assert_eq!(except(context, of_class(0x01, 1)), Next::Yield);
            assert_eq!(context.state.registers.pc, CODE + if waits { 0x114 } else { 0x118 });
            let word = MockArm64::awaited_word(context);
            assert_eq!(word.is_some_and(|word| word.gpa.0 == RAM + 0x9_0010 && word.bytes == 4), waits);
        });
    }
    // No code there, code across two pages, AArch32, a misaligned PC, an address without a
    // translation: the wait is unknown.
    for (pc, from) in [
        (0x5000, EL1),
        (CODE + 4, EL1),
        (CODE + 0xffc, EL1),
        (CODE + 0x114, 0x10),
        (CODE + 0x116, EL1),
        (0, EL1),
        (u64::MAX, EL1),
    ] {
        with(|context| {
            hardware(|hardware| hardware.pages = [(CODE, RAM + 0x8_0000)].into());
            store(context, RAM + 0x8_0100, &WAIT);
            (context.state.registers.pc, context.state.registers.pstate) = (pc, from);
            assert_eq!(MockArm64::awaited_word(context), None, "{pc:#x}");
            assert_eq!(except(context, of_class(0x01, 1)), Next::Yield);
            assert_ne!(context.state.registers.pc, pc);
        });
    }
}
