//! What the hardware calls a processor.

use core::fmt;

/// A processor as interrupt controllers and firmware name it: by the id of its local APIC, or by
/// its affinity in MPIDR_EL1. It is no processor's number: those are dense, and these have gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardwareId(pub u64);

impl HardwareId {
    /// The id of a local APIC: 32 bits.
    pub const fn apic(self) -> u32 {
        self.0 as u32
    }
}

impl From<u32> for HardwareId {
    /// From a local APIC's id.
    fn from(apic: u32) -> Self {
        Self(apic.into())
    }
}

impl fmt::Display for HardwareId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::LowerHex for HardwareId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}
