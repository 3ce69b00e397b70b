//! Hypercall status codes.

/// Status of a hypercall, HV_STATUS. An open set: unknown values are kept.
///
/// TLFS, "Hypercall Status Codes". The published tables name the codes without their numbers; the
/// numbers are the ones that guests and other hypervisors use.
///
/// Exhaustive: it is just the number, and a hypervisor may return any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u16);

impl Status {
    /// The call did what was requested.
    pub const SUCCESS: Self = Self(0x0000);
    /// No such call.
    pub const INVALID_HYPERCALL_CODE: Self = Self(0x0002);
    /// A reserved bit, the header size, the rep count or the rep start index is wrong.
    pub const INVALID_HYPERCALL_INPUT: Self = Self(0x0003);
    /// The parameters' address is not a multiple of 8, they cross a page, or they lie outside the
    /// GPA space.
    pub const INVALID_ALIGNMENT: Self = Self(0x0004);
    /// A parameter has an invalid value.
    pub const INVALID_PARAMETER: Self = Self(0x0005);
    /// The partition lacks the privilege.
    pub const ACCESS_DENIED: Self = Self(0x0006);
    /// The operation is not allowed in the current state.
    pub const OPERATION_DENIED: Self = Self(0x0008);
    /// Not enough memory.
    pub const INSUFFICIENT_MEMORY: Self = Self(0x000b);
    /// No such virtual processor.
    pub const INVALID_VP_INDEX: Self = Self(0x000e);
    /// The virtual processor is in the wrong state.
    pub const INVALID_VP_STATE: Self = Self(0x0015);
}
