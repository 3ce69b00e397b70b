//! The kind of an instruction, by its encoding.
//!
//! Source: Arm ARM DDI 0487, C4.1 "A64 instruction set encoding" (hints, barriers, system
//! instructions, exception returns) and C5.3–C5.6 (the TLB and cache maintenance instructions).

/// A kind of instruction that is counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TLB maintenance: op1, `CRm` and op2 packed, as [`tlbi_name`] reads them.
    Tlbi(u16),
    /// A data synchronization barrier, by `CRm`: domain and accesses.
    Dsb(u8),
    /// DSB with nXS.
    DsbNxs,
    /// An instruction synchronization barrier.
    Isb,
    /// Maintenance of data or unified caches by virtual address.
    DcByAddress,
    /// The same by set and way.
    DcBySetWay,
    /// Maintenance of instruction caches.
    Ic,
    /// An exception return.
    Eret,
    /// INVLPGA, of AMD64.
    Invlpga,
}

/// Number of different [`Kind`]s, as [`Kind::index`] numbers them.
pub const KINDS: usize = TLBI + (1 << 12);
const TLBI: usize = 32;

impl Kind {
    /// An AMD64 instruction's kind, if it is counted separately. APM volume 3 (24594), INVLPGA.
    pub fn of_amd64(bytes: [u8; 3]) -> Option<Self> {
        (bytes == [0x0f, 0x01, 0xdf]).then_some(Self::Invlpga)
    }

    /// The kind of an encoded Arm64 instruction; `None` if it is not counted separately.
    pub fn of(word: u32) -> Option<Self> {
        let crm = ((word >> 8) & 0xf) as u8;
        match word {
            0xd69f_03e0 | 0xd69f_0bff | 0xd69f_0fff => Some(Self::Eret),
            _ if word & 0xffff_f0ff == 0xd503_309f => Some(Self::Dsb(crm)),
            _ if word & 0xffff_f3ff == 0xd503_323f => Some(Self::DsbNxs),
            _ if word & 0xffff_f0ff == 0xd503_30df => Some(Self::Isb),
            _ if word & 0xfff8_0000 == 0xd508_0000 => Self::of_system(word, crm),
            _ => None,
        }
    }

    /// The kind of a SYS instruction.
    fn of_system(word: u32, crm: u8) -> Option<Self> {
        let op1 = (word >> 16) & 7;
        let op2 = (word >> 5) & 7;
        // DC by address has op2 1; ISW, CSW and CISW, of EL1, have op2 2.
        match ((word >> 12) & 0xf, crm) {
            (8 | 9, _) => {
                let nxs = u16::from((word >> 12) & 0xf == 9) << 11;
                Some(Self::Tlbi(nxs | (op1 << 7) as u16 | u16::from(crm) << 3 | op2 as u16))
            }
            (7, 1 | 5) if matches!((op1, op2), (0, 0) | (3, 1)) => Some(Self::Ic),
            (7, 6 | 10..=14) if op2 == 1 => Some(Self::DcByAddress),
            (7, 6 | 10 | 14) if op1 == 0 && op2 == 2 => Some(Self::DcBySetWay),
            _ => None,
        }
    }

    /// A number below [`KINDS`], different for each kind.
    pub fn index(self) -> usize {
        match self {
            Self::Dsb(crm) => usize::from(crm & 0xf),
            Self::DsbNxs => 16,
            Self::Isb => 17,
            Self::DcByAddress => 18,
            Self::DcBySetWay => 19,
            Self::Ic => 20,
            Self::Eret => 21,
            Self::Invlpga => 22,
            Self::Tlbi(operation) => TLBI + usize::from(operation & 0xfff),
        }
    }
}

/// The name of a barrier's domain and accesses, in assembler syntax.
pub fn dsb_name(crm: u8) -> String {
    let domain = ["osh", "nsh", "ish", "sy"][usize::from(crm >> 2 & 3)];
    match (crm & 3, domain) {
        (1, "sy") => "ld".to_owned(),
        (2, "sy") => "st".to_owned(),
        (1, _) => format!("{domain}ld"),
        (2, _) => format!("{domain}st"),
        (3, _) => domain.to_owned(),
        _ => format!("#{crm}"),
    }
}

/// The name of a TLB maintenance instruction in assembler, or its fields.
pub fn tlbi_name(operation: u16) -> String {
    let (op1, crm, op2) = (operation >> 7 & 7, operation >> 3 & 0xf, operation & 7);
    let nxs = if operation >> 11 != 0 { "nxs" } else { "" };
    match stem(op1, crm, op2) {
        Some((stem, domain)) => format!("{stem}{domain}{nxs}"),
        None => format!("op1={op1} crm={crm} op2={op2}{nxs}"),
    }
}

/// The name without its domain, and the domain.
fn stem(op1: u16, crm: u16, op2: u16) -> Option<(&'static str, &'static str)> {
    const EL1: [&str; 8] = ["vmalle1", "vae1", "aside1", "vaae1", "", "vale1", "", "vaale1"];
    const RANGE_EL1: [&str; 8] = ["", "rvae1", "", "rvaae1", "", "rvale1", "", "rvaale1"];
    const EL2: [&str; 8] = ["alle2", "vae2", "", "", "alle1", "vale2", "vmalls12e1", ""];
    const RANGE_EL2: [&str; 8] = ["", "rvae2", "", "", "", "rvale2", "", ""];
    let op2 = usize::from(op2);
    let found = match (op1, crm) {
        (0, 1) => (EL1[op2], "os"),
        (0, 2) => (RANGE_EL1[op2], "is"),
        (0, 3) => (EL1[op2], "is"),
        (0, 5) => (RANGE_EL1[op2], "os"),
        (0, 6) => (RANGE_EL1[op2], ""),
        (0, 7) => (EL1[op2], ""),
        (4, 0) => (["", "ipas2e1", "ripas2e1", "", "", "ipas2le1", "ripas2le1", ""][op2], "is"),
        (4, 1) => (EL2[op2], "os"),
        (4, 2) => (RANGE_EL2[op2], "is"),
        (4, 3) => (EL2[op2], "is"),
        (4, 4) => {
            let names =
                ["ipas2e1os", "ipas2e1", "ripas2e1", "ripas2e1os", "ipas2le1os", "ipas2le1", "ripas2le1"];
            (names.get(op2).copied().unwrap_or("ripas2le1os"), "")
        }
        (4, 5) => (RANGE_EL2[op2], "os"),
        (4, 6) => (RANGE_EL2[op2], ""),
        (4, 7) => (EL2[op2], ""),
        _ => return None,
    };
    (!found.0.is_empty()).then_some(found)
}

/// The phase that a hint instruction begins; `None` for other instructions.
pub fn phase(word: u32) -> Option<usize> {
    const HINT: u32 = 0xd503_201f;
    let number = ((word >> 5) & 0x7f).checked_sub(hostlink::phase::HINT_FIRST)?;
    (word & 0xffff_f01f == HINT && number < 8).then_some(number as usize)
}

/// The phase that a NOP of AMD64 begins, by its bytes; `None` for other instructions.
pub fn phase_of_amd64(bytes: [u8; 7]) -> Option<usize> {
    // NOP with a 32-bit operand at RAX and a displacement of 32 bits.
    let [0x0f, 0x1f, 0x80, displacement @ ..] = bytes else { return None };
    let number = u32::from_le_bytes(displacement).checked_sub(hostlink::phase::NOP_FIRST)?;
    (number < 8).then_some(number as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The word of SYS op1, CRn, `CRm`, op2 with register `X1`.
    fn sys(op1: u32, crn: u32, crm: u32, op2: u32) -> u32 {
        0xd508_0001 | op1 << 16 | crn << 12 | crm << 8 | op2 << 5
    }

    fn tlbi(word: u32) -> String {
        match Kind::of(word) {
            Some(Kind::Tlbi(operation)) => tlbi_name(operation),
            other => panic!("{word:#x} is {other:?}"),
        }
    }

    #[test]
    fn neighbours_in_the_encoding_are_of_no_kind() {
        for word in [
            0xd503_201f,     // nop
            0xd503_3fbf,     // dmb sy
            0xd503_305f,     // clrex
            0xd65f_03c0,     // ret
            0xd528_8301,     // sysl, read form of tlbi
            0xd518_8301,     // msr
            sys(3, 7, 4, 1), // dc zva
            sys(0, 7, 8, 0), // at s1e1r
            sys(0, 7, 5, 1),
            0,
        ] {
            assert_eq!(Kind::of(word), None, "{word:#x}");
        }
    }

    #[test]
    fn barriers_are_told_apart_by_domain() {
        for (word, name) in [
            (0xd503_3f9f, "sy"),
            (0xd503_3e9f, "st"),
            (0xd503_3d9f, "ld"),
            (0xd503_3b9f, "ish"),
            (0xd503_3a9f, "ishst"),
            (0xd503_379f, "nsh"),
            (0xd503_369f, "nshst"),
            (0xd503_339f, "osh"),
        ] {
            let Some(Kind::Dsb(crm)) = Kind::of(word) else { panic!("{word:#x}") };
            assert_eq!(dsb_name(crm), name);
        }
        assert_eq!(Kind::of(0xd503_3e3f), Some(Kind::DsbNxs));
        assert_eq!(Kind::of(0xd503_3fdf), Some(Kind::Isb));
    }

    #[test]
    fn tlb_maintenance_has_its_assembler_names() {
        for (word, name) in [
            (0xd508_831f, "vmalle1is"),
            (0xd508_871f, "vmalle1"),
            (0xd508_8321, "vae1is"),
            (sys(4, 8, 0, 1), "ipas2e1is"),
            (sys(4, 8, 0, 2), "ripas2e1is"),
            (sys(4, 8, 0, 5), "ipas2le1is"),
            (sys(4, 8, 3, 6), "vmalls12e1is"),
            (sys(4, 8, 7, 6), "vmalls12e1"),
            (sys(4, 8, 3, 4), "alle1is"),
            (sys(4, 8, 3, 0), "alle2is"),
            (sys(4, 8, 4, 7), "ripas2le1os"),
            (sys(0, 9, 3, 0), "vmalle1isnxs"),
            (sys(6, 8, 3, 0), "op1=6 crm=3 op2=0"),
        ] {
            assert_eq!(tlbi(word), name, "{word:#x}");
        }
    }

    #[test]
    fn caches_and_returns() {
        assert_eq!(Kind::of(sys(3, 7, 14, 1)), Some(Kind::DcByAddress), "civac");
        assert_eq!(Kind::of(sys(3, 7, 10, 1)), Some(Kind::DcByAddress), "cvac");
        assert_eq!(Kind::of(sys(0, 7, 6, 1)), Some(Kind::DcByAddress), "ivac");
        assert_eq!(Kind::of(sys(0, 7, 14, 2)), Some(Kind::DcBySetWay), "cisw");
        assert_eq!(Kind::of(0xd508_751f), Some(Kind::Ic), "iallu");
        assert_eq!(Kind::of(0xd50b_7521), Some(Kind::Ic), "ivau");
        assert_eq!(Kind::of(0xd69f_03e0), Some(Kind::Eret));
    }

    #[test]
    fn numbers_are_different_and_below_the_bound() {
        let mut seen = std::collections::BTreeMap::new();
        // All system instructions and barriers, by their lower bits; Rt is always the same.
        for middle in 0..1u32 << 19 {
            let word = 0xd500_001f | middle << 5;
            if let Some(kind) = Kind::of(word) {
                assert!(kind.index() < KINDS);
                assert_eq!(*seen.entry(kind.index()).or_insert(kind), kind);
            }
        }
        assert!(seen.len() > 1000);
    }

    #[test]
    fn invlpga_is_three_bytes() {
        assert_eq!(Kind::of_amd64([0x0f, 0x01, 0xdf]), Some(Kind::Invlpga));
        // VMRUN, VMMCALL, INVLPG.
        for bytes in [[0x0f, 0x01, 0xd8], [0x0f, 0x01, 0xd9], [0x0f, 0x01, 0x38]] {
            assert_eq!(Kind::of_amd64(bytes), None);
        }
        assert!(Kind::Invlpga.index() < TLBI);
    }

    #[test]
    fn phases_are_eight_nops_of_amd64() {
        assert_eq!(phase_of_amd64([0x0f, 0x1f, 0x80, 0x60, 0x6c, 0x75, 0x51]), Some(0));
        assert_eq!(phase_of_amd64([0x0f, 0x1f, 0x80, 0x67, 0x6c, 0x75, 0x51]), Some(7));
        for bytes in [
            [0x0f, 0x1f, 0x80, 0x68, 0x6c, 0x75, 0x51],
            [0x0f, 0x1f, 0x80, 0x5f, 0x6c, 0x75, 0x51],
            // A compiler's padding, and another register.
            [0x0f, 0x1f, 0x80, 0, 0, 0, 0],
            [0x0f, 0x1f, 0x81, 0x60, 0x6c, 0x75, 0x51],
        ] {
            assert_eq!(phase_of_amd64(bytes), None, "{bytes:x?}");
        }
    }

    #[test]
    fn phases_are_eight_hints() {
        assert_eq!(phase(0xd503_2c1f), Some(0));
        assert_eq!(phase(0xd503_2cff), Some(7));
        for word in [0xd503_2bff, 0xd503_2d1f, 0xd503_201f, 0xd503_2c1e, 0xd503_309f] {
            assert_eq!(phase(word), None, "{word:#x}");
        }
    }
}
