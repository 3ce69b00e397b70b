//! Asynchronous aborts (SError) that end a stay in the guest: they belong to the guest.
//!
//! Source: Arm DDI 0487, D24.2.40 "ISS encoding for an SError exception", HCR_EL2.VSE; Arm DDI 0587
//! (RAS) for the types.

use crate::arm64::controls::hcr;
use crate::arm64::processor::Configuration;

/// The syndrome is implementation-defined (IDS).
const OWN: u64 = 1 << 24;
const STATUS: u64 = 0x3f;
/// The status: asynchronous SError.
const ASYNCHRONOUS: u64 = 0x11;
/// Its severity (AET).
const TYPE_SHIFT: u32 = 10;
const RESTARTABLE: u64 = 2;
const CORRECTED: u64 = 6;

/// What an SError means for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SErrorOutcome {
    /// Corrected, or no data in use is affected: the guest continues.
    Harmless,
    /// The guest gets a virtual one.
    Virtual,
}

/// Classifies an SError by its syndrome. Without FEAT_RAS nothing is known about it.
pub const fn outcome(syndrome: u64, has_ras: bool) -> SErrorOutcome {
    let is_told = has_ras && syndrome & OWN == 0 && syndrome & STATUS == ASYNCHRONOUS;
    match syndrome >> TYPE_SHIFT & 7 {
        RESTARTABLE | CORRECTED if is_told => SErrorOutcome::Harmless,
        _ => SErrorOutcome::Virtual,
    }
}

/// Updates the noted HCR_EL2 after a stay in the guest: the processor clears VSE when the guest
/// takes its SError.
pub const fn after_guest(noted: Configuration, processor: u64) -> Configuration {
    noted.with_serror(noted.has_serror() && processor & hcr::VSE != 0)
}

#[cfg(test)]
mod tests {
    use super::hcr::VSE;
    use super::*;

    const CLASS: u64 = 0x2f << 26;

    #[test]
    fn u8_an_serror_is_the_guests_whatever_it_says() {
        for kind in 0..8 {
            let syndrome = CLASS | kind << 10 | 0x11;
            let expected =
                if matches!(kind, 2 | 6) { SErrorOutcome::Harmless } else { SErrorOutcome::Virtual };
            assert_eq!(outcome(syndrome, true), expected, "{kind}");
            assert_eq!(outcome(syndrome, false), SErrorOutcome::Virtual);
            assert_eq!(outcome(syndrome | 1 << 24, true), SErrorOutcome::Virtual, "an implementer's own");
            for status in (0..0x40).filter(|&status| status != 0x11) {
                let syndrome = CLASS | kind << 10 | status;
                assert_eq!(outcome(syndrome, true), SErrorOutcome::Virtual, "not categorized: {status:#x}");
            }
        }
    }

    #[test]
    fn u8_a_virtual_serror_comes_once() {
        let without = Configuration::new(5, false);
        let with = without.with_serror(true);
        assert_eq!(with.bits(), VSE | 5);
        assert_eq!(after_guest(with, 5), without, "the guest has taken it");
        assert_eq!(after_guest(with, VSE | 5), with, "it pends still");
        assert_eq!(after_guest(without, VSE | 5), without, "it is another vCPU's");
    }
}
