//! The sources of a hypercall's input, and the buffer for its one copy.

use crate::{Control, PAGE_SIZE};

/// Words in a page.
pub const PAGE_WORDS: usize = PAGE_SIZE / 8;
/// Words of input in the two general registers of a fast call.
pub const FAST_WORDS: usize = 2;
/// Words of input in the registers XMM0 to XMM5.
pub const XMM_WORDS: usize = 12;
/// Words of input in a fast call that uses the XMM registers too: 112 bytes.
pub const XMM_FAST_WORDS: usize = FAST_WORDS + XMM_WORDS;

/// The registers that a hypercall passes. TLFS, "Hypercall Inputs".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallRegisters {
    /// The control word: RCX, or EDX:EAX of a 32-bit caller.
    pub control: u64,
    /// Address of the input, or the first word of a fast call: RDX, or EBX:ECX.
    pub input: u64,
    /// Address of the output, or the second word of a fast call: R8, or EDI:ESI.
    pub output: u64,
}

impl CallRegisters {
    /// The registers that continue the same call at element `element`; see [`Control::resumed_at`].
    /// Only the control word differs; for a 32-bit caller, only EDX.
    pub const fn resumed_at(self, element: u16) -> Self {
        Self { control: Control::from_bits(self.control).resumed_at(element).into_bits(), ..self }
    }
}

/// The sources of a hypercall's input: guest memory, and registers that are expensive to read.
pub trait InputSource {
    /// Copies guest memory starting at `gpa` into `into`, reading each byte at most once. `gpa` is
    /// a multiple of 8 and the bytes lie within one page.
    ///
    /// # Errors
    ///
    /// Why nothing could be copied. The contents of `into` are then ignored.
    fn read(&self, gpa: u64, into: &mut [u8]) -> Result<(), InputError>;

    /// The guest's registers XMM0 to XMM5, the low word of each first. Called only for a call that
    /// passes input in them, and only if the [profile](crate::Profile::xmm_input) offers that.
    fn xmm_words(&self) -> [u64; XMM_WORDS];
}

/// Why a hypercall's input cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InputError {
    /// The address is beyond the partition's guest physical address space.
    OutsideGpaSpace,
    /// There is no readable memory at the address.
    NotMemory,
}

/// A buffer for the one copy of a hypercall's input.
#[derive(Clone, Debug)]
pub struct InputPage {
    pub(crate) words: [u64; PAGE_WORDS],
}

impl InputPage {
    /// An empty page.
    pub const fn new() -> Self {
        Self { words: [0; PAGE_WORDS] }
    }
}

impl Default for InputPage {
    fn default() -> Self {
        Self::new()
    }
}
