//! The ID registers as a guest sees them: what the processor says, without what the guest does not get.
//!
//! Reads are trapped (HCR_EL2.TID3). Source: Arm DDI 0487, D24.2, the ID_AA64* registers' fields.

/// A guest's ID register S3_0_C0_C`crm`_`op2`, `value` being the processor's.
#[must_use]
pub fn shown(crm: u32, op2: u32, value: u64) -> u64 {
    match (crm, op2) {
        // AArch32's, and what is reserved among them.
        (1..=3, _) => value,
        (4, 0) => features0(value),
        // Branch targets and speculative store bypass.
        (4, 1) => value & 0xff,
        // Debug: its version and breakpoints.
        (5, 0) => value & (nibble(0) | nibble(12) | nibble(20) | nibble(28)),
        // Without transactions.
        (6, 0) => value & !nibble(24),
        // Without 64-byte accelerator stores.
        (6, 1) => value & !nibble(60),
        // Without WFIT and memory copies.
        (6, 2) => value & !(nibble(0) | nibble(16)),
        (7, 0) => memory0(value),
        (7, 1) => {
            value & !(nibble(4) | nibble(8) | nibble(16) | nibble(24) | nibble(28) | nibble(32) | nibble(40))
        }
        (7, 2) => value & !(nibble(24) | nibble(40) | nibble(56)),
        _ => 0,
    }
}

const fn nibble(shift: u32) -> u64 {
    0xf << shift
}

/// ID_AA64PFR0_EL1: EL0 and EL1, floating point, the GIC's registers, data-independent timing, and what is said about
/// speculation, of which only the first step is shown: the next has registers of its own.
fn features0(value: u64) -> u64 {
    let kept = nibble(0) | nibble(4) | nibble(16) | nibble(20) | nibble(48) | nibble(60);
    let speculation = (value >> 56 & 0xf).min(1);
    value & kept | 1 << 24 | speculation << 56
}

/// ID_AA64MMFR0_EL1: at most 40 bits of physical address, no fine-grained traps, no further counters.
fn memory0(value: u64) -> u64 {
    let range = (value & 0xf).min(2);
    value & !(nibble(0) | nibble(32) | nibble(36) | nibble(40) | nibble(56) | nibble(60)) | range
}
