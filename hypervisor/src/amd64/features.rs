//! The SVM features of a processor: CPUID Fn8000_000A.

/// EDX.
const NESTED_PAGING: u32 = 1 << 0;
const NEXT_RIP: u32 = 1 << 3;
const CLEAN_BITS: u32 = 1 << 5;
const FLUSH_BY_ASID: u32 = 1 << 6;
const DECODE_ASSISTS: u32 = 1 << 7;
const PAUSE_FILTER: u32 = 1 << 10;

/// SVM features of a machine. Each one is used where present and not required elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features(pub u32);

impl Features {
    /// Features that an auditing image [pretends](super::processor::Amd64::pretend) to have. On a
    /// machine that caches nothing from one VMRUN to the next both are harmless.
    pub const PRETENDED: Self = Self(CLEAN_BITS | FLUSH_BY_ASID);

    /// The processor translates guest physical addresses.
    #[must_use]
    pub const fn nested_paging(self) -> bool {
        self.0 & NESTED_PAGING != 0
    }

    /// The processor reports the address of the next instruction.
    #[must_use]
    #[inline(always)]
    pub const fn next_rip(self) -> bool {
        self.0 & NEXT_RIP != 0
    }

    /// The processor caches the parts of the VMCB that are marked clean.
    #[must_use]
    #[inline(always)]
    pub const fn clean_bits(self) -> bool {
        self.0 & CLEAN_BITS != 0
    }

    /// VMRUN can flush one ASID.
    #[must_use]
    pub const fn flush_by_asid(self) -> bool {
        self.0 & FLUSH_BY_ASID != 0
    }

    /// The processor reports instruction bytes and operands.
    #[must_use]
    pub const fn decode_assists(self) -> bool {
        self.0 & DECODE_ASSISTS != 0
    }

    /// The processor counts PAUSEs before it exits.
    #[must_use]
    pub const fn pause_filter(self) -> bool {
        self.0 & PAUSE_FILTER != 0
    }
}
