//! Processors whose TLB maintenance does less than it should.
//!
//! * *Repeat*: broadcast TLBI and DSB may complete before accesses through the removed entry are
//!   observed; one more broadcast TLBI with its DSB, of any kind, waits for them. 4118414 and its
//!   siblings (CVE-2025-10263, Xen's XSA-493); 1286807, 2441007, 2441009 and Qualcomm's 1009.
//! * *Speculative AT*: an address translation instruction that is executed speculatively at EL2
//!   walks for EL1 with whatever registers are loaded: 1165522, 1319367, 1319537, 1530923.
//!
//! Source: Linux's table of Arm64 errata, and Arm's notices for each processor. Part numbers from
//! the technical reference manuals, MIDR_EL1.

/// Workarounds that a processor needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errata {
    /// A sequence ends with one more broadcast TLBI and DSB.
    pub repeat_tlbi: bool,
    /// VTTBR_EL2 is changed only while stage-1 walks are forbidden.
    pub speculative_at: bool,
}

impl Errata {
    /// For the processor with this MIDR_EL1.
    pub fn of(midr: u64) -> Self {
        let has = |table: &[Affected]| table.iter().any(|affected| affected.includes(midr));
        Self { repeat_tlbi: has(REPEAT_TLBI), speculative_at: has(SPECULATIVE_AT) }
    }

    /// For a machine with processors of both kinds: a broadcast reaches all of them, whichever CPU
    /// sends it.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self {
            repeat_tlbi: self.repeat_tlbi || other.repeat_tlbi,
            speculative_at: self.speculative_at || other.speculative_at,
        }
    }
}

/// Versions of one part.
struct Affected {
    /// Implementer and part number: MIDR_EL1\[31:24\] and \[15:4\].
    implementer: u8,
    part: u16,
    /// Variant and revision, rXpY as 0xXY: first and last.
    first: u8,
    last: u8,
}

impl Affected {
    const fn includes(&self, midr: u64) -> bool {
        let (variant, revision) = (midr >> 20 & 0xf, midr & 0xf);
        let version = (variant << 4 | revision) as u8;
        (midr >> 24) as u8 == self.implementer
            && (midr >> 4 & 0xfff) as u16 == self.part
            && self.first <= version
            && version <= self.last
    }
}

const ARM: u8 = 0x41;
const NVIDIA: u8 = 0x4e;
const QUALCOMM: u8 = 0x51;

const fn all(implementer: u8, part: u16) -> Affected {
    Affected { implementer, part, first: 0, last: 0xff }
}

const fn from_to(implementer: u8, part: u16, first: u8, last: u8) -> Affected {
    Affected { implementer, part, first, last }
}

const REPEAT_TLBI: &[Affected] = &[
    all(ARM, 0xd0b),                      // Cortex-A76; up to r3p0 for 1286807 as well
    all(ARM, 0xd0e),                      // Cortex-A76AE
    all(ARM, 0xd0d),                      // Cortex-A77
    all(ARM, 0xd41),                      // Cortex-A78
    all(ARM, 0xd42),                      // Cortex-A78AE
    all(ARM, 0xd4b),                      // Cortex-A78C
    all(ARM, 0xd47),                      // Cortex-A710
    all(ARM, 0xd44),                      // Cortex-X1
    all(ARM, 0xd4c),                      // Cortex-X1C
    all(ARM, 0xd48),                      // Cortex-X2
    all(ARM, 0xd4e),                      // Cortex-X3
    all(ARM, 0xd82),                      // Cortex-X4
    all(ARM, 0xd85),                      // Cortex-X925
    all(ARM, 0xd90),                      // C1-Premium
    all(ARM, 0xd8c),                      // C1-Ultra
    all(ARM, 0xd0c),                      // Neoverse N1
    all(ARM, 0xd49),                      // Neoverse N2
    all(ARM, 0xd40),                      // Neoverse V1
    all(ARM, 0xd4f),                      // Neoverse V2
    all(ARM, 0xd84),                      // Neoverse V3
    all(ARM, 0xd83),                      // Neoverse V3AE
    all(NVIDIA, 0x010),                   // Olympus
    all(ARM, 0xd05),                      // Cortex-A55: 2441007
    from_to(ARM, 0xd46, 0x00, 0x11),      // Cortex-A510: 2441009
    from_to(QUALCOMM, 0xc00, 0x00, 0x00), // Falkor: 1009
    from_to(QUALCOMM, 0x804, 0xce, 0xfe), // Kryo 4xx Gold: 1286807
];

const SPECULATIVE_AT: &[Affected] = &[
    all(ARM, 0xd07),                      // Cortex-A57: 1319537
    all(ARM, 0xd08),                      // Cortex-A72: 1319367
    from_to(ARM, 0xd0b, 0x00, 0x20),      // Cortex-A76: 1165522
    from_to(ARM, 0xd05, 0x00, 0x20),      // Cortex-A55: 1530923
    from_to(QUALCOMM, 0x805, 0xde, 0xde), // Kryo 4xx Silver: 1530923
];

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const fn midr(implementer: u8, part: u16, version: u8) -> u64 {
        let (variant, revision) = ((version >> 4) as u64, (version & 0xf) as u64);
        (implementer as u64) << 24 | variant << 20 | 0xf << 16 | (part as u64) << 4 | revision
    }

    const NONE: Errata = Errata { repeat_tlbi: false, speculative_at: false };
    const REPEAT: Errata = Errata { repeat_tlbi: true, speculative_at: false };
    const AT: Errata = Errata { repeat_tlbi: false, speculative_at: true };
    const BOTH: Errata = Errata { repeat_tlbi: true, speculative_at: true };

    #[test]
    fn registers_of_real_processors_and_of_their_neighbours() {
        let known = [
            (0x413f_d0c1, REPEAT), // Neoverse N1 r3p1: Graviton 2
            (0x411f_d401, REPEAT), // Neoverse V1 r1p1: Graviton 3
            (0x410f_d4f0, REPEAT), // Neoverse V2 r0p0
            (0x410f_d083, AT),     // Cortex-A72 r0p3: Raspberry Pi 4, QEMU's cortex-a72
            (0x414f_d0b1, REPEAT), // Cortex-A76 r4p1: Raspberry Pi 5
            (0x412f_d0b0, BOTH),   // Cortex-A76 r2p0
            (0x412f_d050, BOTH),   // Cortex-A55 r2p0
            (0x410f_d034, NONE),   // Cortex-A53 r0p4
            (0x000f_0510, NONE),   // QEMU's max
            (0x611f_0221, NONE),   // Apple M1
        ];
        for (midr, expected) in known {
            assert_eq!(Errata::of(midr), expected, "{midr:#x}");
        }
    }

    #[test]
    fn versions_end_where_the_list_says() {
        assert_eq!(Errata::of(midr(ARM, 0xd46, 0x11)), REPEAT);
        assert_eq!(Errata::of(midr(ARM, 0xd46, 0x12)), NONE);
        assert_eq!(Errata::of(midr(ARM, 0xd0b, 0x20)), BOTH);
        assert_eq!(Errata::of(midr(ARM, 0xd0b, 0x21)), REPEAT);
        assert_eq!(Errata::of(midr(QUALCOMM, 0xc00, 0x00)), REPEAT);
        assert_eq!(Errata::of(midr(QUALCOMM, 0xc00, 0x01)), NONE);
    }

    #[test]
    fn one_affected_processor_is_enough() {
        assert_eq!(REPEAT.or(AT), BOTH);
        assert_eq!(NONE.or(NONE), NONE);
    }
}
