//! The effect of control registers on translations.

use coherence::Space;

/// The bits of CR3 with the address of the root, with 4 levels.
const CR3_ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const CR4_PCIDE: u64 = 1 << 17;
const EFER_NXE: u64 = 1 << 11;
const EFER_LMA: u64 = 1 << 10;
/// CR4: PSE, PAE, PGE, PCIDE, SMEP.
const CR4_TRANSLATIONS: u64 = 1 << 4 | 1 << 5 | 1 << 7 | CR4_PCIDE | 1 << 20;

/// Control registers of a guest, as far as translations depend on them and a hypervisor sees them
/// change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TranslationControls {
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// EFER.
    pub efer: u64,
    /// PAT.
    pub pat: u64,
}

impl TranslationControls {
    /// The only address space of which the guest's TLB can hold non-global entries, for a vCPU that
    /// halts. With PCIDs it is not known, and without long mode CR3 does not determine it. Loading
    /// CR3 drops all others (APM volume 2, section 5.5.2).
    #[inline(always)]
    pub const fn space(&self) -> Space {
        let is_known = self.efer & EFER_LMA != 0 && self.cr4 & CR4_PCIDE == 0;
        if is_known { Space::only(self.cr3 & CR3_ADDRESS) } else { Space::UNKNOWN }
    }

    /// The address space that a flush call names. The low bits may be a PCID or flags, and bit 63
    /// means "no flush" (pitfall A11).
    #[inline(always)]
    pub const fn named_space(address_space: u64) -> u64 {
        address_space & CR3_ADDRESS
    }
}

/// Whether TLB entries made under `old` must not be used under `new`: translations include the
/// effect of these bits, and the memory types of PAT (APM volume 2, section 5.5.2; pitfall A13).
/// The processor drops them when a guest writes these registers itself; a hypervisor that writes
/// them on its behalf must flush.
#[inline(always)]
pub const fn changes_translations(old: TranslationControls, new: TranslationControls) -> bool {
    (old.cr4 ^ new.cr4) & CR4_TRANSLATIONS != 0 || (old.efer ^ new.efer) & EFER_NXE != 0 || old.pat != new.pat
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: TranslationControls = TranslationControls {
        cr3: 0x5000 | 0x18,
        cr4: 1 << 5 | 1 << 7,
        efer: EFER_LMA | 1 << 8,
        pat: 0x0007_0406_0007_0406,
    };

    #[test]
    fn a22_a_halted_vcpu_names_its_space_only_where_the_tlb_can_hold_no_other() {
        assert_eq!(LONG.space(), Space::only(0x5000), "flags are no address");
        assert_eq!(TranslationControls { cr4: LONG.cr4 | CR4_PCIDE, ..LONG }.space(), Space::UNKNOWN);
        assert_eq!(TranslationControls { efer: 0, ..LONG }.space(), Space::UNKNOWN);
        assert_eq!(TranslationControls { cr3: 1 << 63 | 0x7fff, ..LONG }.space(), Space::only(0x7000));
        assert_eq!(TranslationControls::named_space(1 << 63 | 0x5fff), 0x5000);
    }

    #[test]
    fn a13_each_bit_that_translations_hold_owes_a_flush_either_way() {
        for bit in 0..64 {
            let other = TranslationControls { cr4: LONG.cr4 ^ 1 << bit, ..LONG };
            let owes = matches!(bit, 4 | 5 | 7 | 17 | 20);
            assert_eq!(changes_translations(LONG, other), owes, "CR4 bit {bit}");
            assert_eq!(changes_translations(other, LONG), owes, "CR4 bit {bit}");
            let other = TranslationControls { efer: LONG.efer ^ 1 << bit, ..LONG };
            assert_eq!(changes_translations(LONG, other), bit == 11, "EFER bit {bit}");
            let other = TranslationControls { pat: LONG.pat ^ 1 << bit, ..LONG };
            assert!(changes_translations(LONG, other), "PAT bit {bit}");
        }
        assert!(!changes_translations(LONG, LONG));
        assert!(
            !changes_translations(LONG, TranslationControls { cr3: 0, ..LONG }),
            "the processor's own affair"
        );
    }
}
