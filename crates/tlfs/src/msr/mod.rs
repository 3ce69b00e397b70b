//! Synthetic model-specific registers: numbers and layouts.

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Identity of the guest's operating system; partition-wide. TLFS, "Reporting the Guest OS
/// Identity".
pub const GUEST_OS_ID: u32 = 0x4000_0000;
/// Location of the hypercall page, [`HypercallMsr`]; partition-wide.
pub const HYPERCALL: u32 = 0x4000_0001;
/// The reading virtual processor's index.
pub const VP_INDEX: u32 = 0x4000_0002;
/// Bit 0 resets the partition.
pub const RESET: u32 = 0x4000_0003;
/// The time for which the reading virtual processor has run, in units of 100 ns. TLFS, "Virtual
/// Processor Run Time Register".
pub const VP_RUNTIME: u32 = 0x4000_0010;
/// The partition's reference time in units of 100 ns.
pub const TIME_REF_COUNT: u32 = 0x4000_0020;
/// Location of the reference TSC page, [`PageMsr`]; partition-wide.
pub const REFERENCE_TSC: u32 = 0x4000_0021;
/// Frequency of the TSC in Hz.
pub const TSC_FREQUENCY: u32 = 0x4000_0022;
/// Frequency of the APIC timer's clock in Hz.
pub const APIC_FREQUENCY: u32 = 0x4000_0023;
/// End of interrupt.
pub const EOI: u32 = 0x4000_0070;
/// Interrupt command, the xAPIC's two registers in one.
pub const ICR: u32 = 0x4000_0071;
/// Task priority.
pub const TPR: u32 = 0x4000_0072;
/// Location of the virtual processor's assist page, [`PageMsr`].
pub const VP_ASSIST_PAGE: u32 = 0x4000_0073;
/// Configuration of synthetic timer 0, [`StimerConfig`]. Timer `n`'s is at `+ 2 * n`.
pub const STIMER0_CONFIG: u32 = 0x4000_00b0;
/// Count of synthetic timer 0. Timer `n`'s is at `+ 2 * n`.
pub const STIMER0_COUNT: u32 = 0x4000_00b1;
/// Count of the last synthetic timer.
pub const STIMER3_COUNT: u32 = 0x4000_00b7;
/// First of five parameters of a crash.
pub const CRASH_P0: u32 = 0x4000_0100;
/// Last of the five parameters.
pub const CRASH_P4: u32 = 0x4000_0104;
/// Reports a crash, [`CrashControl`].
pub const CRASH_CTL: u32 = 0x4000_0105;
/// Bit 0 makes CPUID show the invariant TSC.
pub const TSC_INVARIANT_CONTROL: u32 = 0x4000_0118;

/// Contents of [`HYPERCALL`]. TLFS, "Establishing the Hypercall Interface".
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct HypercallMsr {
    /// The page is enabled.
    pub enable: bool,
    /// The register keeps its value until the partition is reset.
    pub locked: bool,
    #[bits(10)]
    reserved: u16,
    /// Guest physical page number.
    #[bits(52)]
    pub page_number: u64,
}

impl HypercallMsr {
    /// Address of the page if it is enabled.
    pub fn gpa(self) -> Option<u64> {
        self.enable().then(|| self.page_number() << 12)
    }
}

/// Contents of [`REFERENCE_TSC`] and [`VP_ASSIST_PAGE`].
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct PageMsr {
    /// The page is enabled.
    pub enable: bool,
    #[bits(11)]
    reserved: u16,
    /// Guest physical page number.
    #[bits(52)]
    pub page_number: u64,
}

impl PageMsr {
    /// Address of the page if it is enabled.
    pub fn gpa(self) -> Option<u64> {
        self.enable().then(|| self.page_number() << 12)
    }
}

/// Contents of a synthetic timer's configuration register. TLFS, "Synthetic Timer Configuration
/// Register".
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct StimerConfig {
    /// The timer counts.
    pub enable: bool,
    /// The count is a period; otherwise it is the time of the one expiration.
    pub periodic: bool,
    /// An expiration may be skipped if the next one is near.
    pub lazy: bool,
    /// Writing a count other than 0 enables the timer.
    pub auto_enable: bool,
    /// Vector of the interrupt in direct mode.
    pub apic_vector: u8,
    /// The timer interrupts; otherwise it sends a message to a synthetic interrupt source.
    pub direct_mode: bool,
    #[bits(3)]
    reserved_13: u8,
    /// The synthetic interrupt source.
    #[bits(4)]
    pub sint: u8,
    #[bits(44)]
    reserved_20: u64,
}

impl StimerConfig {
    /// Whether a reserved bit is set.
    pub const fn has_reserved(self) -> bool {
        self.reserved_13() != 0 || self.reserved_20() != 0
    }
}

/// Contents of [`CRASH_CTL`], HV_CRASH_CTL_REG_CONTENTS. A read returns what is supported.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct CrashControl {
    #[bits(62)]
    __: u64,
    /// Parameter 3 is the guest physical address of a message, parameter 4 its length in bytes.
    pub message: bool,
    /// Report the parameters.
    pub notify: bool,
}

/// The head of the reference TSC page, HV_REFERENCE_TSC_PAGE; the rest of the page is reserved.
/// `time = ((tsc * scale) >> 64) + offset`, in units of 100 ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TscPage {
    /// Changes whenever scale or offset do; 0 tells the guest to read [`TIME_REF_COUNT`] instead.
    pub sequence: u32,
    /// Zero.
    pub reserved: u32,
    /// Units of 100 ns per tick of the TSC, as a fraction of 2^64.
    pub scale: u64,
    /// Added to the scaled TSC.
    pub offset: i64,
}

const _: () = assert!(size_of::<TscPage>() == 24);

#[cfg(test)]
mod tests;
