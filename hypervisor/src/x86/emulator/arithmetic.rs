//! Results and flags of arithmetic: APM volume 1, section 3.1.4 "Flags Register".

use super::operand::mask;

pub(super) const CF: u64 = 1 << 0;
pub(super) const PF: u64 = 1 << 2;
pub(super) const AF: u64 = 1 << 4;
pub(super) const ZF: u64 = 1 << 6;
pub(super) const SF: u64 = 1 << 7;
pub(super) const OF: u64 = 1 << 11;

/// An operation on two numbers of the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add,
    Sub,
    And,
    Or,
    Xor,
}

/// The six arithmetic flags as an operation sets them, at their positions in RFLAGS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flags(u64);

impl Flags {
    pub(super) fn set_in(self, flags: &mut u64) {
        *flags = *flags & !(CF | PF | AF | ZF | SF | OF) | self.0;
    }
}

impl Arithmetic {
    /// Result and flags for `first` and `second`, both of `size` bytes. For AND, OR and XOR the
    /// flag AF is undefined, and 0 here.
    pub(super) fn of(self, first: u64, second: u64, size: u32) -> (u64, Flags) {
        let sign = 8 * size - 1;
        let full = match self {
            Self::Add => first.wrapping_add(second),
            Self::Sub => first.wrapping_sub(second),
            Self::And => first & second,
            Self::Or => first | second,
            Self::Xor => first ^ second,
        };
        let result = full & mask(size);
        // Carries into each bit; an overflow is a carry into the sign bit without one out of it, or
        // the reverse.
        let carries = first ^ second ^ result;
        let (carry, overflow, half_carry) = match self {
            Self::Add => (result < first, (first ^ result) & (second ^ result), carries),
            Self::Sub => (first < second, (first ^ second) & (first ^ result), carries),
            Self::And | Self::Or | Self::Xor => (false, 0, 0),
        };
        let mut flags = half_carry & AF;
        for (flag, is_set) in [
            (CF, carry),
            (PF, (result as u8).count_ones().is_multiple_of(2)),
            (ZF, result == 0),
            (SF, result >> sign & 1 != 0),
            (OF, overflow >> sign & 1 != 0),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        (result, Flags(flags))
    }
}

pub(super) fn set_carry(flags: &mut u64, is_set: bool) {
    *flags = *flags & !CF | u64::from(is_set);
}
