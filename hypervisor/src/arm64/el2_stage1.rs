//! The format of the hypervisor's own page tables: stage 1 of EL2.

use paging::{Arm64Stage1, Format, Level, Permissions, PhysAddr, format_like};

/// Stage 1 of a regime with one exception level. It is like that of EL1&0, except that there is one
/// execute-never bit, at the position of EL0's, and no bit for global entries (Arm DDI 0487, D8.4.1
/// and D8.3.1.2).
pub struct El2Stage1;

/// PXN and nG, which are reserved here.
const RESERVED: u64 = 1 << 53 | 1 << 11;

impl Format for El2Stage1 {
    format_like! { Arm64Stage1:
        INPUT_BITS SIGN_EXTENDED OUTPUT_BITS ROOT LARGEST REPLACES_IN_PLACE SETTLED
        admits is_present is_leaf table address is_dirty dirtied cleaned
    }

    fn leaf(pa: PhysAddr, level: Level, permissions: Permissions) -> u64 {
        // AP[1], "user", is always one here.
        Arm64Stage1::leaf(pa, level, permissions | Permissions::USER) & !RESERVED
    }

    fn permissions(leaf: u64) -> Permissions {
        Arm64Stage1::permissions(leaf | RESERVED) - Permissions::USER
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
