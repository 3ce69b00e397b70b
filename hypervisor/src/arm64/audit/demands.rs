//! What EL2's controls must be, read from the manual for the auditor alone: `controls`, which makes
//! their values, has no part in it.
//!
//! Source: Arm DDI 0487, D24.2, by the names of the registers; IHI 0069H, section 12.2.

use crate::arm64::controls::{Control, IdRegisters};

/// HCR_EL2: VM, SWIO, FMO, IMO, AMO, TWI, TID1, TID3, TSC, TIDCP, TACR, TSW, RW.
pub(super) const HCR_ONES: u64 = 0x807d_203b;
/// DC, TGE, CD, ID, E2H, NV, NV1, NV2.
const HCR_ZEROS: u64 = 1 << 12 | 1 << 27 | 1 << 32 | 1 << 33 | 1 << 34 | 1 << 42 | 1 << 43 | 1 << 45;
/// Both.
pub(super) const HCR: u64 = HCR_ONES | HCR_ZEROS;

/// The bits of a control on which a guest's confinement rests, and what they must be.
pub const fn demand(control: Control, processor: &IdRegisters) -> (u64, u64) {
    use Control as C;
    const ALL: u64 = u64::MAX;
    match control {
        C::Hcr => (HCR, HCR_ONES),
        C::Vtcr => (ALL, vtcr(processor)),
        C::Vpidr => (ALL, processor.midr),
        // SRE, DFB, DIB. Enable is 0, or always 1.
        C::IccSre2 => (!(1 << 3), 7),
        C::IccSre1 => (ALL, 7),
        // The bits that are RES1, TZ and TSM among them; TTA; TAM where there are such monitors.
        C::Cptr => (ALL, 0x0010_33ff | if processor.pfr0 >> 44 & 0xf == 0 { 0 } else { 1 << 30 }),
        // TPMCR, TPM, TDA, TDOSA, TDRA; HPME, TDE, E2PB, E2TB.
        C::Mdcr => (0x0e60 | 1 << 7 | 1 << 8 | 3 << 12 | 3 << 24, 0x0e60),
        // TALLINT.
        C::Hcrx => (!(1 << 6), 0),
        // PMBIDR_EL1, TRBIDR_EL1.
        C::Hdfgrtr => (!(1 << 63 | 1 << 56), 0),
        // TRAPMPAM1EL1, TRAPMPAM0EL1.
        C::Mpam2 => (3 << 48, 3 << 48),
        // TRAP_MPAMIDR_EL1.
        C::Mpamhcr => (ALL, 1 << 31),
        // IDS.
        C::Vsesr => (ALL, 1 << 24),
        // The guest has the counters itself, unless it was moved.
        C::Cnthctl => (!3, 0),
        // These vary with the vCPU.
        C::Cntvoff | C::Mdscr | C::Vdisr => (0, 0),
        _ => (ALL, 0),
    }
}

/// T0SZ 25, SL0 1, IRGN0 and ORGN0 write-back, SH0 inner shareable, TG0 4 KiB, bit 31 RES1; PS as
/// PARange says, of 48 bits at most; VS, HA and HD where ID_AA64MMFR1_EL1 has VMIDBits 2, HAFDBS 1
/// and 2.
const fn vtcr(processor: &IdRegisters) -> u64 {
    let (size, hafdbs) = (processor.mmfr0 & 0xf, processor.mmfr1 & 0xf);
    let vmid = if processor.mmfr1 >> 4 & 0xf == 2 { 0x8_0000 } else { 0 };
    let dirty = match hafdbs {
        0 => 0,
        1 => 0x20_0000,
        _ => 0x60_0000,
    };
    0x8000_3559 | (if size > 5 { 5 } else { size }) << 16 | vmid | dirty
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arm64::controls::at_start;

    #[test]
    fn what_is_written_is_what_is_demanded() {
        let none = IdRegisters { pfr0: 1 << 24, midr: 0x410f_d034, mmfr0: 4, ..IdRegisters::default() };
        let all = IdRegisters {
            pfr0: 0x1111_1111_1111_1111,
            pfr1: 0x1111_1111_1111_1211,
            dfr0: 0x1111_1111_1111_1111,
            mmfr0: 0x2211_1111_1111_1116,
            mmfr1: 0x1111_1111_1111_1122,
            mmfr2: 0x1111_1111_1111_1111,
            mpamidr: u64::MAX,
            counters: 6,
            ..none
        };
        for processor in [none, all] {
            for &control in Control::ALL {
                let (bits, should) = demand(control, &processor);
                assert_eq!(should & !bits, 0, "{}", control.name());
                if let Some(is) = at_start(control, &processor) {
                    assert_eq!(is & bits, should, "{}: {is:#x}", control.name());
                }
            }
        }
    }
}
