//! A guest for fuzzing: its registers, and a page of memory that may be missing.

use arbitrary::Arbitrary;
use quell_tlfs::{CallRegisters, EmptyTargets, InputError, InputSource, PAGE_SIZE, Profile, VaWidth, XMM_WORDS};

/// Address of the guest's one page of input.
pub const PAGE: u64 = 0x1000;
/// End of its address space.
pub const GPA_END: u64 = 1 << 40;

/// The state of a guest when it calls.
#[derive(Arbitrary, Debug)]
pub struct Guest {
    /// The control word, by fields or as raw bits.
    pub control: ControlWord,
    /// Address of the input.
    pub input: Input,
    /// Second register.
    pub output: u64,
    /// XMM0 to XMM5.
    pub xmm: [u64; XMM_WORDS],
    /// The offered features.
    pub offers: Offers,
    /// The beginning of the page.
    pub memory: Vec<u8>,
}

/// A control word that often gets past the first checks.
#[derive(Arbitrary, Clone, Copy, Debug)]
#[expect(missing_docs, reason = "fields of the control word")]
pub enum ControlWord {
    Raw(u64),
    Fields { code: u8, fast: bool, header: u8, count: u16, start: u16 },
}

impl ControlWord {
    /// Its bits.
    pub fn bits(self) -> u64 {
        match self {
            Self::Raw(bits) => bits,
            Self::Fields { code, fast, header, count, start } => {
                const CODES: [u64; 10] = [0x02, 0x03, 0x08, 0x0b, 0x13, 0x14, 0x15, 0xaf, 0xb0, 0x00];
                CODES[usize::from(code % 8)]
                    | u64::from(fast) << 16
                    | u64::from(header) << 17
                    | u64::from(count % 600) << 32
                    | u64::from(start % 600) << 48
            }
        }
    }
}

/// The first register.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Input {
    /// Anything.
    Raw(u64),
    /// An address in the page.
    InPage(u16),
    /// The page's own address.
    Page,
}

/// A profile.
#[derive(Arbitrary, Clone, Copy, Debug)]
#[expect(missing_docs, reason = "fields of `Profile`")]
pub struct Offers {
    pub strict: bool,
    pub wide: bool,
    pub xmm_input: bool,
    pub cluster_ipi: bool,
    pub extended_ranges: bool,
    pub guest_physical: bool,
}

impl Offers {
    /// The profile.
    pub fn profile(self) -> Profile {
        Profile {
            empty_targets: if self.strict { EmptyTargets::Strict } else { EmptyTargets::Lenient },
            va_width: width(self.wide),
            xmm_input: self.xmm_input,
            cluster_ipi: self.cluster_ipi,
            extended_ranges: self.extended_ranges,
            guest_physical: self.guest_physical,
        }
    }
}

/// Width of addresses.
pub fn width(wide: bool) -> VaWidth {
    if wide { VaWidth::Bits57 } else { VaWidth::Bits48 }
}

impl Guest {
    /// The registers of the call.
    pub fn registers(&self) -> CallRegisters {
        let input = match self.input {
            Input::Raw(word) => word,
            Input::InPage(offset) => PAGE + u64::from(offset) % PAGE_SIZE as u64,
            Input::Page => PAGE,
        };
        CallRegisters { control: self.control.bits(), input, output: self.output }
    }
}

impl InputSource for Guest {
    fn read(&self, gpa: u64, into: &mut [u8]) -> Result<(), InputError> {
        assert!(gpa % 8 == 0 && gpa % 4096 + into.len() as u64 <= 4096, "{gpa:#x}+{}", into.len());
        if gpa >= GPA_END {
            return Err(InputError::OutsideGpaSpace);
        }
        let offset = gpa.checked_sub(PAGE).filter(|offset| *offset < 4096).ok_or(InputError::NotMemory)?;
        let from = self.memory.iter().copied().chain(std::iter::repeat(0)).skip(offset as usize);
        into.iter_mut().zip(from).for_each(|(to, byte)| *to = byte);
        Ok(())
    }

    fn xmm_words(&self) -> [u64; XMM_WORDS] {
        assert!(self.offers.xmm_input, "read although not offered");
        self.xmm
    }
}
