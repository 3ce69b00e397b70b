//! The two words of every hypercall: the control word (input) and the result value (output).

use bitfield_struct::bitfield;

use crate::{MAX_BANKS, Profile, Status};

/// Code of a hypercall. An open set: unknown values are kept and have no [shape](CallCode::shape).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallCode(pub u16);

impl CallCode {
    /// The layout of the call's input; `None` if the call is not known. Whether a partition offers
    /// the call depends on its [profile](Profile::shape).
    #[inline]
    pub const fn shape(self) -> Option<&'static CallShape> {
        match self {
            Self::FLUSH_GUEST_PHYSICAL_ADDRESS_SPACE => Some(&GUEST_PHYSICAL[0]),
            Self::FLUSH_GUEST_PHYSICAL_ADDRESS_LIST => Some(&GUEST_PHYSICAL[1]),
            _ => self.usual_shape(),
        }
    }

    /// The same, but for the flushes of nested tables.
    #[inline]
    pub(crate) const fn usual_shape(self) -> Option<&'static CallShape> {
        if self.0 as usize >= SHAPES.len() {
            return None;
        }
        SHAPES[self.0 as usize].as_ref()
    }

    /// HvCallFlushGuestPhysicalAddressSpace: all that comes from a nested table of the caller's.
    pub const FLUSH_GUEST_PHYSICAL_ADDRESS_SPACE: Self = Self(0x00af);
    /// HvCallFlushGuestPhysicalAddressList: the same of a list of ranges.
    pub const FLUSH_GUEST_PHYSICAL_ADDRESS_LIST: Self = Self(0x00b0);

    /// Whether it is one of the four flushes of virtual addresses.
    pub const fn is_flush(self) -> bool {
        matches!(self.shape(), Some(CallShape { kind: CallKind::Flush, .. }))
    }
}

/// The shapes of the two flushes of nested tables, whose codes are far from the others'.
static GUEST_PHYSICAL: [CallShape; 2] = [
    CallShape::new(CallKind::GuestPhysical, false, false, 2),
    CallShape::new(CallKind::GuestPhysical, true, false, 2),
];

/// The part of the decoder that handles a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    Flush,
    ClusterIpi,
    LongSpinWait,
    GuestPhysical,
}

/// The calls: name, code, kind, whether the call has a list, whether it has a header of variable
/// size, and the words of the fixed header. TLFS, the page of each call.
macro_rules! calls {
    ($($(#[$about:meta])* $name:ident = $code:literal, $kind:ident, $rep:literal, $variable:literal, $words:literal;)+) => {
        impl CallCode {
            $($(#[$about])* pub const $name: Self = Self($code);)+

            /// Those of the table of shapes.
            const LOW: &[Self] = &[$(Self::$name),+];

            /// All known calls.
            pub const ALL: &[Self] = &[
                $(Self::$name,)+
                Self::FLUSH_GUEST_PHYSICAL_ADDRESS_SPACE,
                Self::FLUSH_GUEST_PHYSICAL_ADDRESS_LIST,
            ];
        }

        /// One past the highest of their codes.
        const CODES: usize = {
            let (mut most, mut index) = (0, 0);
            while index < CallCode::LOW.len() {
                let code = CallCode::LOW[index].0 as usize;
                most = if code > most { code } else { most };
                index += 1;
            }
            most + 1
        };

        /// The shapes of the calls by their codes.
        static SHAPES: [Option<CallShape>; CODES] = {
            let mut shapes = [const { None }; CODES];
            $(shapes[$code] = Some(CallShape::new(CallKind::$kind, $rep, $variable, $words));)+
            shapes
        };
    };
}

calls! {
    /// HvCallFlushVirtualAddressSpace: targets as a 64-bit mask, everything of an address space.
    FLUSH_VIRTUAL_ADDRESS_SPACE = 0x0002, Flush, false, false, 3;
    /// HvCallFlushVirtualAddressList: targets as a 64-bit mask, a list of ranges.
    FLUSH_VIRTUAL_ADDRESS_LIST = 0x0003, Flush, true, false, 3;
    /// HvCallNotifyLongSpinWait: the caller has been spinning on a lock for a long time.
    NOTIFY_LONG_SPIN_WAIT = 0x0008, LongSpinWait, false, false, 1;
    /// HvCallSendSyntheticClusterIpi: an interrupt to targets as a 64-bit mask.
    SEND_SYNTHETIC_CLUSTER_IPI = 0x000b, ClusterIpi, false, false, 2;
    /// HvCallFlushVirtualAddressSpaceEx: targets as a VP set, everything of an address space.
    FLUSH_VIRTUAL_ADDRESS_SPACE_EX = 0x0013, Flush, false, true, 4;
    /// HvCallFlushVirtualAddressListEx: targets as a VP set, a list of ranges.
    FLUSH_VIRTUAL_ADDRESS_LIST_EX = 0x0014, Flush, true, true, 4;
    /// HvCallSendSyntheticClusterIpiEx: an interrupt to targets as a VP set.
    SEND_SYNTHETIC_CLUSTER_IPI_EX = 0x0015, ClusterIpi, false, true, 3;
}

/// The layout of a call's input: a fixed header, an optional variable header, and an optional list
/// of 8-byte elements, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallShape {
    /// The call takes a list of elements; otherwise it is a simple call.
    pub rep: bool,
    /// A header of variable size follows the fixed one; the control word gives its size.
    pub variable_header: bool,
    /// Size of the fixed header in 8-byte words.
    pub header_words: usize,
    /// The part of the decoder that handles the call.
    pub(crate) kind: CallKind,
    /// Bits of the control word that must be zero.
    must_be_zero: u64,
}

impl CallShape {
    const fn new(kind: CallKind, rep: bool, variable_header: bool, header_words: usize) -> Self {
        let reserved = Control::new().with_reserved_27(0xf).with_reserved_44(0xf).with_reserved_60(0xf);
        let reps = Control::new().with_rep_count(0xfff).with_rep_start(0xfff).into_bits();
        let header = Control::new().with_variable_header_words(0x3ff).into_bits();
        let must_be_zero = reserved.with_nested(true).into_bits()
            | if rep { 0 } else { reps }
            | if variable_header { 0 } else { header };
        Self { rep, variable_header, header_words, kind, must_be_zero }
    }
}

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
    /// Index of the first element still to be done.
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

    /// Checks every rule that depends on the control word alone.
    ///
    /// The TLFS leaves the order in which errors are found to the implementation ("Ordering of
    /// Error Conditions"). An unknown call is reported as such whatever the other fields contain,
    /// so that a guest can probe for calls.
    ///
    /// # Errors
    ///
    /// `INVALID_HYPERCALL_CODE` for a call that `profile` does not offer. `INVALID_HYPERCALL_INPUT`
    /// for a reserved bit, for the nested bit (no nested hypervisor is offered), a variable header
    /// on a call without one or of more words than a VP set has banks, a rep count or start index
    /// on a simple call, and a start index that is not below the rep count on a rep call, which
    /// includes a rep count of 0.
    pub const fn check(self, profile: &Profile) -> Result<&'static CallShape, Status> {
        let Some(shape) = profile.shape(self.code()) else {
            return Err(Status::INVALID_HYPERCALL_CODE);
        };
        match self.fits(shape) {
            true => Ok(shape),
            false => Err(Status::INVALID_HYPERCALL_INPUT),
        }
    }

    /// The word that continues the same call at element `element`, counted from element 0. A
    /// hypervisor that has done part of a list writes it to the guest's register without advancing
    /// the instruction pointer, so that interrupts can be taken in between (TLFS, "Hypercall
    /// Continuation"). A guest makes the call again with it. Only the low 12 bits of the index are
    /// kept.
    pub const fn resumed_at(self, element: u16) -> Self {
        self.with_rep_start(element & 0xfff)
    }

    /// Words of input of the call: fixed header, variable header, list.
    pub(crate) const fn input_words(self, shape: &CallShape) -> usize {
        shape.header_words + self.variable_header_words() as usize + self.rep_count() as usize
    }

    /// Whether the other fields are valid for the call's shape.
    #[inline]
    pub(crate) const fn fits(self, shape: &CallShape) -> bool {
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
    /// element 0. Only the low 12 bits of the count are kept.
    pub const fn of(status: Status, reps_complete: u16) -> Self {
        Self::new().with_status_code(status.0).with_reps_complete(reps_complete & 0xfff)
    }

    /// How the call ended.
    pub const fn status(self) -> Status {
        Status(self.status_code())
    }
}

#[cfg(test)]
mod tests;
