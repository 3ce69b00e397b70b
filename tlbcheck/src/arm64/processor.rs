//! An Arm64 processor's TLB features, from its registers, and the identity of the hypervisor.
//!
//! DDI 0487 M.b, D24.2: MIDR_EL1, ID_AA64ISAR0_EL1, ID_AA64MMFR0_EL1 to ID_AA64MMFR2_EL1. DEN 0028,
//! section 6.2: the UID of a hypervisor that serves its own calls.

use core::fmt;

/// Values of registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// MIDR_EL1.
    pub midr: u64,
    /// ID_AA64ISAR0_EL1.
    pub isar0: u64,
    /// ID_AA64MMFR0_EL1.
    pub mmfr0: u64,
    /// ID_AA64MMFR1_EL1.
    pub mmfr1: u64,
    /// ID_AA64MMFR2_EL1.
    pub mmfr2: u64,
}

/// The processor's TLB features, and the hypervisor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TlbFeatures {
    /// MIDR_EL1.
    midr: u64,
    /// TLBI by range (FEAT_TLBIRANGE).
    pub has_ranges: bool,
    /// TLBI for the outer shareable domain (FEAT_TLBIOS).
    pub has_outer: bool,
    /// Hints of the level in operands (FEAT_TTL).
    pub has_levels: bool,
    /// ASIDs have 16 bits, not 8.
    pub has_long_asids: bool,
    /// The processor sets access flags (FEAT_HAFDBS).
    pub sets_access_flag: bool,
    /// The processor manages the dirty state (FEAT_HAFDBS).
    pub sets_dirty_state: bool,
    /// The hypervisor's UID, if one answered.
    uid: Option<[u32; 4]>,
}

/// KVM's UID, 28b46fb6-2ec5-11e9-a9ca-4b564d003a74.
const UID_KVM: [u32; 4] = [0xb66f_b428, 0xe911_c52e, 0x564b_caa9, 0x743a_004d];
/// Quell's: the bytes of "quell hypervisor".
const UID_QUELL: [u32; 4] = [
    u32::from_le_bytes(*b"quel"),
    u32::from_le_bytes(*b"l hy"),
    u32::from_le_bytes(*b"perv"),
    u32::from_le_bytes(*b"isor"),
];
/// The result of an unknown call.
const NOT_SUPPORTED: u32 = u32::MAX;

/// A field of four bits.
const fn field(register: u64, shift: u32) -> u64 {
    register >> shift & 0xf
}

impl TlbFeatures {
    /// The function of the call that returns a hypervisor's UID.
    pub const UID_CALL: u32 = 0x8600_ff01;

    /// From the registers, and from the call's result.
    pub const fn new(identity: Identity, uid: [u32; 4]) -> Self {
        let Identity { midr, isar0, mmfr0, mmfr1, mmfr2 } = identity;
        let (tlb, dirty) = (field(isar0, 56), field(mmfr1, 0));
        Self {
            midr,
            has_outer: tlb >= 1,
            has_ranges: tlb >= 2,
            has_levels: field(mmfr2, 48) >= 1,
            has_long_asids: field(mmfr0, 4) == 2,
            sets_access_flag: dirty >= 1,
            sets_dirty_state: dirty >= 2,
            uid: if uid[0] == NOT_SUPPORTED { None } else { Some(uid) },
        }
    }

    /// A name for reports.
    pub const fn name(&self) -> &'static str {
        const fn is(uid: &[u32; 4], other: &[u32; 4]) -> bool {
            uid[0] == other[0] && uid[1] == other[1] && uid[2] == other[2] && uid[3] == other[3]
        }
        match &self.uid {
            None => "no hypervisor that shows itself",
            Some(uid) if is(uid, &UID_QUELL) => "quell",
            Some(uid) if is(uid, &UID_KVM) => "kvm",
            Some(_) => "another hypervisor",
        }
    }
}

impl fmt::Display for TlbFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, MIDR {:#x}", self.name(), self.midr)?;
        let offers = [
            (self.has_ranges, "TLBIRANGE"),
            (self.has_outer, "TLBIOS"),
            (self.has_levels, "TTL"),
            (self.has_long_asids, "ASID16"),
            (self.sets_dirty_state, "HAFDBS"),
        ];
        offers.iter().filter(|(has, _)| *has).try_for_each(|(_, name)| write!(f, ", {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: [u32; 4] = [NOT_SUPPORTED, 0, 0, 0];

    #[test]
    fn nothing_is_offered_that_a_register_does_not_say() {
        let machine = TlbFeatures::new(Identity::default(), NOBODY);
        assert_eq!(machine, TlbFeatures::default());
        let all_but =
            Identity { isar0: !(0xf << 56), mmfr1: !0xf, mmfr2: !(0xf << 48), ..Identity::default() };
        assert_eq!(TlbFeatures::new(all_but, NOBODY), TlbFeatures::default());
    }

    #[test]
    fn fields_are_found() {
        let with = |isar0, mmfr0, mmfr1, mmfr2| {
            TlbFeatures::new(Identity { midr: 0x410f_d083, isar0, mmfr0, mmfr1, mmfr2 }, NOBODY)
        };
        let outer = with(1 << 56, 0, 1, 0);
        assert!(outer.has_outer && !outer.has_ranges && outer.sets_access_flag && !outer.sets_dirty_state);
        let both = with(2 << 56, 2 << 4, 2, 1 << 48);
        assert!(both.has_ranges && both.has_outer && both.has_long_asids && both.has_levels);
        assert!(both.sets_access_flag && both.sets_dirty_state);
        let text = std::format!("{both}");
        let all = "no hypervisor that shows itself, MIDR 0x410fd083, TLBIRANGE, TLBIOS, TTL, ASID16, HAFDBS";
        assert_eq!(text, all);
    }

    #[test]
    fn hypervisors_are_told_apart() {
        let name = |uid| TlbFeatures::new(Identity::default(), uid).name();
        assert_eq!(name(UID_KVM), "kvm");
        assert_eq!(name(UID_QUELL), "quell");
        assert_eq!(name([1, 2, 3, 4]), "another hypervisor");
        assert_eq!(name(NOBODY), "no hypervisor that shows itself");
    }
}
