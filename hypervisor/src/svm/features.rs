//! The SVM features of a processor: CPUID Fn8000_000A.

use core::num::NonZeroU32;

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
    /// Features that an auditing image [pretends](super::processor::Svm::pretend) to have. On a
    /// machine that caches nothing from one VMRUN to the next both are harmless.
    pub const PRETENDED: Self = Self(CLEAN_BITS | FLUSH_BY_ASID);

    /// What a guest that has guests is shown: nested paging, flushes of one ASID, and the address
    /// of the next instruction, which is the processor's.
    pub const fn offered(self) -> Self {
        Self(self.0 & NEXT_RIP | NESTED_PAGING | FLUSH_BY_ASID)
    }

    /// The processor translates guest physical addresses.
    pub const fn nested_paging(self) -> bool {
        self.0 & NESTED_PAGING != 0
    }

    /// The processor reports the address of the next instruction.
    #[inline(always)]
    pub const fn next_rip(self) -> bool {
        self.0 & NEXT_RIP != 0
    }

    /// The processor caches the parts of the VMCB that are marked clean.
    #[inline(always)]
    pub const fn clean_bits(self) -> bool {
        self.0 & CLEAN_BITS != 0
    }

    /// VMRUN can flush one ASID.
    pub const fn flush_by_asid(self) -> bool {
        self.0 & FLUSH_BY_ASID != 0
    }

    /// The processor reports instruction bytes and operands.
    pub const fn decode_assists(self) -> bool {
        self.0 & DECODE_ASSISTS != 0
    }

    /// The processor counts PAUSEs before it exits.
    pub const fn pause_filter(self) -> bool {
        self.0 & PAUSE_FILTER != 0
    }
}

/// Number of ASIDs for guests on a processor that has `count` of them (EBX, NASID): 0 is the
/// host's, so the largest is one less than the number. `None` if there are none for guests.
pub const fn guest_asids(count: u32) -> Option<NonZeroU32> {
    match count.checked_sub(1) {
        Some(left) => NonZeroU32::new(left),
        None => None,
    }
}

/// Whether the processor has SVM: CPUID Fn8000_0001_ECX, which is there if Fn8000_0000_EAX, the
/// number of the last leaf, is that of SVM's own at least.
pub const fn has_svm(last_leaf: u32, ecx: u32) -> bool {
    last_leaf >= 0x8000_000a && ecx & 1 << 2 != 0
}

/// Entries of the second-level data TLB for pages of 4 KiB: CPUID Fn8000_0006_EBX\[27:16\].
pub const fn tlb_entries(ebx: u32) -> u64 {
    (ebx >> 16 & 0xfff) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u63_the_last_asid_is_one_less_than_their_number() {
        assert_eq!((guest_asids(0), guest_asids(1)), (None, None));
        for count in [2, 16, 0x8000, u32::MAX] {
            assert_eq!(guest_asids(count).map(NonZeroU32::get), Some(count - 1));
        }
    }

    #[test]
    fn u63_svm_is_where_its_leaf_is() {
        assert!(has_svm(0x8000_000a, 4) && has_svm(0x8000_001f, u32::MAX));
        assert!(!has_svm(0x8000_0009, 4) && !has_svm(0x8000_000a, !4) && !has_svm(0, u32::MAX));
    }

    #[test]
    fn u63_features_are_where_the_manual_has_them() {
        type Has = fn(Features) -> bool;
        let all: [(u32, Has); 6] = [
            (0, Features::nested_paging),
            (3, Features::next_rip),
            (5, Features::clean_bits),
            (6, Features::flush_by_asid),
            (7, Features::decode_assists),
            (10, Features::pause_filter),
        ];
        for (bit, has) in all {
            assert!(has(Features(1 << bit)) && !has(Features(!(1 << bit))), "bit {bit}");
        }
        assert_eq!(tlb_entries(0x6468_6468), 0x468, "ways are no entries");
        assert_eq!(tlb_entries(0x0fff_0000), 4095);
    }
}
