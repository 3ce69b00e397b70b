//! The two words of every hypercall: the control word that goes in, the result value that comes out.

use bitfield_struct::bitfield;

use crate::{MAX_BANKS, Status};

/// Code of a hypercall. An open set: unknown values are kept and have no [shape](CallCode::shape).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallCode(pub u16);

impl CallCode {
    /// HvCallFlushVirtualAddressSpace: targets as a 64-bit mask, everything of an address space.
    pub const FLUSH_VIRTUAL_ADDRESS_SPACE: Self = Self(0x0002);
    /// HvCallFlushVirtualAddressList: targets as a 64-bit mask, a list of ranges.
    pub const FLUSH_VIRTUAL_ADDRESS_LIST: Self = Self(0x0003);
    /// HvCallNotifyLongSpinWait: the caller has been spinning on a lock for long.
    pub const NOTIFY_LONG_SPIN_WAIT: Self = Self(0x0008);
    /// HvCallFlushVirtualAddressSpaceEx: targets as a VP set, everything of an address space.
    pub const FLUSH_VIRTUAL_ADDRESS_SPACE_EX: Self = Self(0x0013);
    /// HvCallFlushVirtualAddressListEx: targets as a VP set, a list of ranges.
    pub const FLUSH_VIRTUAL_ADDRESS_LIST_EX: Self = Self(0x0014);

    /// What the call's input looks like; `None` if the call is not known.
    #[inline]
    pub const fn shape(self) -> Option<CallShape> {
        Some(match self {
            Self::FLUSH_VIRTUAL_ADDRESS_SPACE => CallShape::new(false, false, 3),
            Self::FLUSH_VIRTUAL_ADDRESS_LIST => CallShape::new(true, false, 3),
            Self::NOTIFY_LONG_SPIN_WAIT => CallShape::new(false, false, 1),
            Self::FLUSH_VIRTUAL_ADDRESS_SPACE_EX => CallShape::new(false, true, 4),
            Self::FLUSH_VIRTUAL_ADDRESS_LIST_EX => CallShape::new(true, true, 4),
            _ => return None,
        })
    }
}

/// What the input of a call looks like: a fixed header, perhaps a variable header, perhaps a list of
/// 8-byte elements, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallShape {
    /// The call takes a list of elements; otherwise it is a simple call.
    pub rep: bool,
    /// A header of variable size, counted in the control word, follows the fixed one.
    pub variable_header: bool,
    /// Size of the fixed header in 8-byte words.
    pub header_words: usize,
    /// Bits of the control word that must be zero.
    must_be_zero: u64,
}

impl CallShape {
    const fn new(rep: bool, variable_header: bool, header_words: usize) -> Self {
        let reserved = Control::new().with_reserved_27(0xf).with_reserved_44(0xf).with_reserved_60(0xf);
        let reps = Control::new().with_rep_count(0xfff).with_rep_start(0xfff).into_bits();
        let header = Control::new().with_variable_header_words(0x3ff).into_bits();
        let must_be_zero = reserved.with_nested(true).into_bits()
            | if rep { 0 } else { reps }
            | if variable_header { 0 } else { header };
        Self { rep, variable_header, header_words, must_be_zero }
    }
}

/// Words of input that fit in the two general registers of a fast call without XMM registers.
pub(crate) const FAST_WORDS: usize = 2;

/// The hypercall input value. TLFS, "Hypercall Inputs".
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Control {
    /// Which call; see [`Control::code`].
    pub call_code: u16,
    /// Input is in registers rather than in memory.
    pub fast: bool,
    /// Size of the variable header in 8-byte words.
    #[bits(10)]
    pub variable_header_words: u16,
    #[bits(4)]
    reserved_27: u8,
    /// The call is meant for a hypervisor that runs as this one's guest.
    pub nested: bool,
    /// Number of elements in the list.
    #[bits(12)]
    pub rep_count: u16,
    #[bits(4)]
    reserved_44: u8,
    /// Index of the first element that is still to be done.
    #[bits(12)]
    pub rep_start: u16,
    #[bits(4)]
    reserved_60: u8,
}

impl Control {
    /// Which call.
    pub const fn code(self) -> CallCode {
        CallCode(self.call_code())
    }

    /// Checks every rule on the control word that needs nothing but the control word.
    ///
    /// The order in which errors are found is ours to choose (TLFS, "Ordering of Error Conditions"):
    /// an unknown call is reported as such whatever the other fields say, so that a guest can probe.
    ///
    /// # Errors
    ///
    /// `INVALID_HYPERCALL_CODE` for an unknown call. `INVALID_HYPERCALL_INPUT` for a reserved bit, for
    /// the nested bit (no nested hypervisor is offered), a variable header on a call without one or of
    /// more words than a VP set has banks, a rep count or start index on a simple call, and a start
    /// index that is not below the rep count on a rep call, which includes a rep count of 0.
    pub const fn check(self) -> Result<CallShape, Status> {
        let Some(shape) = self.code().shape() else {
            return Err(Status::INVALID_HYPERCALL_CODE);
        };
        match self.fits(shape) {
            true => Ok(shape),
            false => Err(Status::INVALID_HYPERCALL_INPUT),
        }
    }

    /// Whether the other fields are as the call's shape wants them.
    #[inline]
    pub(crate) const fn fits(self, shape: CallShape) -> bool {
        self.into_bits() & shape.must_be_zero == 0
            && self.variable_header_words() as usize <= MAX_BANKS
            && (!shape.rep || self.rep_start() < self.rep_count())
    }
}

/// The hypercall result value. TLFS, "Hypercall Outputs".
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct HvResult {
    /// See [`HvResult::status`].
    pub status_code: u16,
    __: u16,
    /// Elements done since element 0, not since the rep start index; 0 for simple calls.
    #[bits(12)]
    pub reps_complete: u16,
    #[bits(20)]
    __: u32,
}

impl HvResult {
    /// The result of a call that ended with `status` after `reps_complete` elements, counted from
    /// element 0. Only the low 12 bits of the count have a place.
    pub const fn of(status: Status, reps_complete: u16) -> Self {
        Self::new().with_status_code(status.0).with_reps_complete(reps_complete & 0xfff)
    }

    /// How the call ended.
    pub const fn status(self) -> Status {
        Status(self.status_code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Call, rep, variable header: the TLFS's pages of the calls, written down once more.
    const KNOWN: [(u16, bool, bool); 5] = [
        (0x02, false, false),
        (0x03, true, false),
        (0x08, false, false),
        (0x13, false, true),
        (0x14, true, true),
    ];

    /// The rules on the control word by their text, on bare bits.
    fn oracle(word: u64) -> Status {
        let field = |low: u32, high: u32| word >> low & ((1 << (high - low + 1)) - 1);
        let Some((_, rep, variable)) = KNOWN.iter().find(|(code, ..)| u64::from(*code) == field(0, 15))
        else {
            return Status::INVALID_HYPERCALL_CODE;
        };
        let (header, count, start) = (field(17, 26), field(32, 43), field(48, 59));
        let wrong = [
            field(27, 30) != 0,
            field(31, 31) != 0,
            field(44, 47) != 0,
            field(60, 63) != 0,
            !variable && header != 0,
            *variable && header > 64,
            *rep && count == 0,
            *rep && start >= count,
            !rep && count != 0,
            !rep && start != 0,
        ];
        if wrong.contains(&true) { Status::INVALID_HYPERCALL_INPUT } else { Status::SUCCESS }
    }

    fn check(word: u64) -> Status {
        Control::from_bits(word).check().map_or_else(|status| status, |_| Status::SUCCESS)
    }

    #[test]
    fn h1_h2_every_combination_of_fields_is_judged_by_the_text() {
        let codes = [0x00, 0x01, 0x02, 0x03, 0x04, 0x08, 0x12, 0x13, 0x14, 0x15, 0xaf, 0x8001, 0xffff];
        let counts = [0, 1, 2, 3, 509, 4094, 4095];
        let reserved = (27..=31).chain(44..=47).chain(60..=63).map(|bit| 1u64 << bit).chain([0]);
        let mut accepted = 0;
        for bits in reserved {
            for code in codes {
                for header in [0u64, 1, 2, 63, 64, 65, 512, 1023] {
                    for (count, start) in counts.iter().flat_map(|c| counts.map(|s| (*c, s))) {
                        for fast in [0, 1 << 16] {
                            let word = bits | code | fast | header << 17 | count << 32 | start << 48;
                            assert_eq!(check(word), oracle(word), "{word:#018x}");
                            accepted += u32::from(check(word) == Status::SUCCESS);
                        }
                    }
                }
            }
        }
        // 2 fast × (2 fixed simple + 5 headers × variable simple + (1 + 5 headers) × 21 rep pairs)
        assert_eq!(accepted, 2 * (2 + 5 + 6 * 21));
    }

    #[test]
    fn h19_golden_control_words() {
        const CODE: Status = Status(2);
        const INPUT: Status = Status(3);
        const OK: Status = Status(0);
        for (word, status, why) in [
            (0x0000_0000_0000_0002, OK, "space"),
            (0x0000_0001_0000_0003, OK, "list of one"),
            (0x0004_0005_0000_0003, OK, "list, the last of five"),
            (0x0000_0000_0002_0013, OK, "space ex, one bank"),
            (0x0000_0000_0000_0013, OK, "space ex, no bank"),
            (0x0000_0001_0080_0014, OK, "list ex, 64 banks"),
            (0x0000_0001_0082_0014, INPUT, "list ex, 65 banks"),
            (0x0000_0000_0000_0003, INPUT, "list of none"),
            (0x0005_0005_0000_0003, INPUT, "list, start at the count"),
            (0x0006_0005_0000_0003, INPUT, "list, start past the count"),
            (0x0000_0001_0000_0002, INPUT, "space with a count"),
            (0x0001_0000_0000_0002, INPUT, "space with a start"),
            (0x0000_0000_0002_0002, INPUT, "space with a variable header"),
            (0x0000_0001_0002_0003, INPUT, "list with a variable header"),
            (0x0000_0000_0800_0002, INPUT, "bit 27"),
            (0x0000_0000_8000_0002, INPUT, "nested"),
            (0x0000_1000_0000_0002, INPUT, "bit 44"),
            (0x1000_0000_0000_0002, INPUT, "bit 60"),
            (0x0000_0000_0000_0000, CODE, "no call"),
            (0x0000_0000_0000_000b, CODE, "cluster IPI is not offered"),
            (0x0000_0000_0000_00af, CODE, "GPA flush is not offered"),
            (0xf000_f000_f800_ffff, CODE, "unknown wins over all else"),
        ] {
            assert_eq!(check(word), status, "{why}: {word:#018x}");
        }
    }

    #[test]
    fn h3_the_result_has_its_count_in_bits_43_to_32() {
        assert_eq!(HvResult::of(Status::SUCCESS, 509).into_bits(), 509 << 32);
        assert_eq!(HvResult::of(Status::INVALID_PARAMETER, 7).into_bits(), 7 << 32 | 5);
        assert_eq!(HvResult::of(Status::SUCCESS, 0xffff).into_bits(), 0xfff << 32, "nothing beyond");
    }
}
