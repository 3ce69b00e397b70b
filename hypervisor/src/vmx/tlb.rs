//! What CPUID says of the TLBs of Intel's processors.

/// Subleaves of leaf 18H that are looked at: there is one for each TLB.
const SUBLEAVES_MAX: u32 = 16;

/// Translations of 4 KiB pages that the largest TLB for data holds: by leaf 18H, or by the
/// descriptors of second-level TLBs in leaf 2 (SDM volume 2, CPUID). `cpuid` returns EAX, EBX, ECX
/// and EDX of a leaf and subleaf, or zeroes if there is no such leaf.
pub fn entries(cpuid: impl Fn(u32, u32) -> [u32; 4]) -> u64 {
    let [last, ..] = cpuid(0x18, 0);
    let described = (0..=last.min(SUBLEAVES_MAX)).filter_map(|subleaf| {
        let [_, ways, sets, kind] = cpuid(0x18, subleaf);
        let is_for_data = matches!(kind & 0x1f, 1 | 3);
        (ways & 1 != 0 && is_for_data).then_some(u64::from(ways >> 16) * u64::from(sets))
    });
    let [eax, ebx, ecx, edx] = cpuid(2, 0);
    let descriptors = [eax & !0xff, ebx, ecx, edx].into_iter().filter(|register| register >> 31 == 0);
    let second = descriptors.flat_map(u32::to_le_bytes).filter_map(|descriptor| match descriptor {
        0xca => Some(512),
        0xc1 => Some(1024),
        0xc3 => Some(1536),
        _ => None,
    });
    described.chain(second).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_tlb_for_data_counts() {
        assert_eq!(entries(|_, _| [0; 4]), 0, "nothing is known");
        // A Skylake names its TLBs by descriptors; a register whose last bit is set has none.
        let skylake =
            |leaf, _| if leaf == 2 { [0x7603_6301, 0x00f0_b5ff, 0x80ca_0000, 0x00c3_0000] } else { [0; 4] };
        assert_eq!(entries(skylake), 1536);
        // A Sapphire Rapids: for instructions, for loads of large pages, for data.
        let described = |leaf, subleaf| match (leaf, subleaf) {
            (2, _) => [0x00fe_ff01, 0xf0, 0, 0],
            (0x18, 0) => [3, 0, 0, 0],
            (0x18, 1) => [0, 8 << 16 | 1, 32, 0x22],
            (0x18, 2) => [0, 4 << 16 | 2, 8, 0x21],
            (0x18, 3) => [0, 8 << 16 | 3, 128, 0x43],
            _ => [u32::MAX; 4],
        };
        assert_eq!(entries(described), 1024);
    }
}
