//! Continuing after an instruction that was emulated for the guest.
//!
//! Source: Arm DDI 0487, C5.2.18 "SPSR_EL1" (its fields for both states), G1.12.4.2 "ITSTATE" with
//! pseudocode `AArch32.ITAdvance`, and ESR_EL2 "ISS encoding for an exception from a WF*
//! instruction" for conditions.

/// PSTATE.nRW in SPSR: the interrupted code is AArch32.
const AARCH32: u64 = 1 << 4;
/// In AArch32: T32 instructions.
const THUMB: u64 = 1 << 5;
const SINGLE_STEP: u64 = 1 << 21;
/// In AArch64: the type of the last indirect branch (BTYPE).
const BRANCH_TYPE: u64 = 3 << 10;
/// In AArch32: bits 7:2 and 1:0 of IT.
const IT_HIGH: u64 = 0x3f << 10;
const IT_LOW: u64 = 3 << 25;

/// The instruction has 32 bits, not 16 (ESR_ELx.IL).
const LONG: u64 = 1 << 25;
/// The syndrome has the instruction's condition (CV), and the condition.
const CONDITION_VALID: u64 = 1 << 24;
const CONDITION_SHIFT: u32 = 20;
const ALWAYS: u64 = 0xe;

/// Exception classes whose syndrome names a condition: WFI and WFE, and trapped coprocessor and
/// floating-point accesses of AArch32.
const CONDITIONAL: [u64; 8] = [0x01, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x0c];

/// PC and processor state after the instruction that caused an exception with this syndrome.
pub const fn behind(pc: u64, pstate: u64, syndrome: u64) -> (u64, u64) {
    let next = pc.wrapping_add(if syndrome & LONG != 0 { 4 } else { 2 });
    let pstate = pstate & !SINGLE_STEP;
    if pstate & AARCH32 == 0 {
        return (next, pstate & !BRANCH_TYPE);
    }
    let pstate = if pstate & THUMB != 0 { with_it(pstate, advanced(it(pstate))) } else { pstate };
    (next & 0xffff_ffff, pstate)
}

/// Whether the instruction's condition holds. An instruction whose condition fails does nothing,
/// trapped or not.
pub fn condition_holds(pstate: u64, syndrome: u64) -> bool {
    if pstate & AARCH32 == 0 || !CONDITIONAL.contains(&(syndrome >> 26 & 0x3f)) {
        return true;
    }
    let condition = match () {
        () if syndrome & CONDITION_VALID != 0 => syndrome >> CONDITION_SHIFT & 0xf,
        // For T32 it may be missing: then the IT block has it.
        () if pstate & THUMB != 0 && it(pstate) != 0 => it(pstate) >> 4,
        () => ALWAYS,
    };
    holds(condition, pstate)
}

const fn it(pstate: u64) -> u64 {
    (pstate & IT_HIGH) >> 10 << 2 | (pstate & IT_LOW) >> 25
}

const fn with_it(pstate: u64, it: u64) -> u64 {
    pstate & !(IT_HIGH | IT_LOW) | it >> 2 << 10 | (it & 3) << 25
}

/// `ITAdvance`: the next instruction of the block, or its end.
const fn advanced(it: u64) -> u64 {
    if it & 7 == 0 { 0 } else { it & 0xe0 | it << 1 & 0x1f }
}

/// A condition against NZCV (`ConditionHolds`).
const fn holds(condition: u64, pstate: u64) -> bool {
    let (n, z) = (pstate >> 31 & 1 != 0, pstate >> 30 & 1 != 0);
    let (c, v) = (pstate >> 29 & 1 != 0, pstate >> 28 & 1 != 0);
    let base = match condition >> 1 {
        0 => z,
        1 => c,
        2 => n,
        3 => v,
        4 => c && !z,
        5 => n == v,
        6 => n == v && !z,
        // Always, in both forms.
        _ => return true,
    };
    base != (condition & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AArch32, user mode, T32, with this ITSTATE.
    fn thumb(it: u64) -> u64 {
        with_it(0x30, it)
    }

    #[test]
    fn u14_skipping_advances_the_it_block() {
        // ITTE EQ: IT = 0000_0110; the instructions have conditions EQ, EQ, NE.
        let (pc, state) = behind(0x1000, thumb(0b0000_0110), 0);
        assert_eq!((pc, it(state)), (0x1002, 0b0000_1100));
        let (pc, state) = behind(pc, state, LONG);
        assert_eq!((pc, it(state)), (0x1006, 0b0001_1000), "the third one's condition is NE");
        assert_eq!(it(state) >> 4, 1);
        let (pc, state) = behind(pc, state, 0);
        assert_eq!((pc, state), (0x1008, thumb(0)), "the block is over");
        assert_eq!(behind(pc, state, 0), (0x100a, thumb(0)), "and nothing begins");
        // All fields, wherever they are in SPSR.
        for value in 0..=0xff {
            assert_eq!((it(thumb(value)), thumb(value) & 0xf9ff_03ff), (value, 0x30));
            let (_, after) = behind(0, thumb(value), 0);
            let expected = if value & 7 == 0 { 0 } else { value & 0xe0 | value << 1 & 0x1f };
            assert_eq!(it(after), expected);
        }
    }

    #[test]
    fn u14_the_rest_of_the_state_is_kept() {
        // A32: bits 10 and 11 belong to IT, which is 0 there; flags, GE and Q are kept.
        let a32 = 0xf80f_0210;
        assert_eq!(behind(0xffff_fffc, a32, LONG), (0, a32), "AArch32's PC has 32 bits");
        let a64 = 0x6000_0000 | 3 << 10 | 1 << 21 | 1 << 12;
        assert_eq!(behind(u64::MAX - 3, a64, LONG), (0, 0x6000_0000 | 1 << 12), "BTYPE and SS end");
        assert_eq!(behind(0, 0x10 | SINGLE_STEP, LONG).1, 0x10);
    }

    #[test]
    fn u14_what_fails_its_condition_does_nothing() {
        const WFI: u64 = 1 << 26;
        let with = |condition: u64| WFI | CONDITION_VALID | condition << CONDITION_SHIFT;
        let flags = |nzcv: u64| 0x10 | nzcv << 28;
        // By the manual's table, EQ to AL, with every set of flags.
        for nzcv in 0..16 {
            let (n, z, c, v) = (nzcv & 8 != 0, nzcv & 4 != 0, nzcv & 2 != 0, nzcv & 1 != 0);
            let table = [
                z,
                !z,
                c,
                !c,
                n,
                !n,
                v,
                !v,
                c && !z,
                !c || z,
                n == v,
                n != v,
                !z && n == v,
                z || n != v,
                true,
                true,
            ];
            for (condition, holds) in (0..).zip(table) {
                assert_eq!(condition_holds(flags(nzcv), with(condition)), holds, "{condition} {nzcv:#x}");
            }
        }
        // Without a condition in the syndrome the IT block has it: NE.
        assert!(!condition_holds(thumb(0b0001_1000) | 1 << 30, WFI));
        assert!(condition_holds(thumb(0b0001_1000), WFI));
        assert!(condition_holds(thumb(0), WFI));
        // Other classes have none, and neither has AArch64.
        assert!(condition_holds(flags(0), 0x24 << 26 | CONDITION_VALID));
        assert!(condition_holds(0, with(0)));
    }
}
