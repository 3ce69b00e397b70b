//! The format of the hypervisor's own page tables: stage 1 of EL2.

use paging::{Arm64Stage1, Format, Level, Permissions, PhysAddr};

/// Stage 1 of a regime with one exception level. It is like that of EL1&0, except that there is one
/// execute-never bit, at the position of EL0's, and no bit for global entries (Arm DDI 0487, D8.4.1
/// and D8.3.1.2).
pub struct El2Stage1;

/// PXN and nG, which are reserved here.
const RESERVED: u64 = 1 << 53 | 1 << 11;

impl Format for El2Stage1 {
    const INPUT_BITS: u32 = Arm64Stage1::INPUT_BITS;
    const SIGN_EXTENDED: bool = Arm64Stage1::SIGN_EXTENDED;
    const OUTPUT_BITS: u32 = Arm64Stage1::OUTPUT_BITS;
    const ROOT: Level = Arm64Stage1::ROOT;
    const LARGEST: Level = Arm64Stage1::LARGEST;
    const REPLACES_IN_PLACE: bool = Arm64Stage1::REPLACES_IN_PLACE;
    const SETTLED: (u64, u64) = Arm64Stage1::SETTLED;

    fn admits(permissions: Permissions) -> bool {
        Arm64Stage1::admits(permissions)
    }

    fn is_present(entry: u64) -> bool {
        Arm64Stage1::is_present(entry)
    }

    fn is_leaf(entry: u64, level: Level) -> bool {
        Arm64Stage1::is_leaf(entry, level)
    }

    fn leaf(pa: PhysAddr, level: Level, permissions: Permissions) -> u64 {
        // AP[1], "user", is always one here.
        Arm64Stage1::leaf(pa, level, permissions | Permissions::USER) & !RESERVED
    }

    fn table(pa: PhysAddr, level: Level) -> u64 {
        Arm64Stage1::table(pa, level)
    }

    fn address(entry: u64, alignment: Level) -> PhysAddr {
        Arm64Stage1::address(entry, alignment)
    }

    fn permissions(leaf: u64) -> Permissions {
        Arm64Stage1::permissions(leaf | RESERVED) - Permissions::USER
    }

    fn is_dirty(leaf: u64) -> bool {
        Arm64Stage1::is_dirty(leaf)
    }

    fn dirtied(leaf: u64) -> u64 {
        Arm64Stage1::dirtied(leaf)
    }

    fn cleaned(leaf: u64) -> u64 {
        Arm64Stage1::cleaned(leaf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arm DDI 0487, D8.3.1.2 and D8.4.1: XN 54, PXN 53 and nG 11 RES0, AF 10, SH 9:8, AP 7:6 with
    /// AP[1] RES1, AttrIndx 4:2, type 1:0.
    #[test]
    fn leaves_and_tables_are_as_the_manual_says() {
        let device = Permissions::RW | Permissions::DEVICE;
        for (level, permissions, expected) in [
            (Level::Page2M, Permissions::RW, 1 << 54 | 0x8000_0741),
            (Level::Page2M, Permissions::R, 1 << 54 | 0x8000_07c1),
            (Level::Page2M, Permissions::RX, 0x8000_07c1),
            (Level::Page4K, Permissions::RX, 0x8000_07c3),
            (Level::Page4K, device, 1 << 54 | 0x8000_0447),
        ] {
            let leaf = El2Stage1::leaf(PhysAddr(0x8000_0000), level, permissions);
            assert_eq!(leaf, expected, "{level:?}, {permissions:?}: {leaf:#x}");
            assert_eq!(El2Stage1::permissions(leaf), permissions, "{level:?}");
            assert_eq!(El2Stage1::address(leaf, level), PhysAddr(0x8000_0000));
        }
        assert_eq!(El2Stage1::table(PhysAddr(0x1000), Level::Page2M), 0x1003);
    }
}
