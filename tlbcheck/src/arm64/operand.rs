//! Operands of TLBI by address (DDI 0487 M.b, C5.5: `VAE1`, `RVAE1`). Granule 4 KiB, 48 bits.

/// `VA[55:12]`, from bit 0 on.
const PAGE_NUMBER: u64 = (1 << 44) - 1;
/// BaseADDR of a range: `VA[48:12]`.
const BASE: u64 = (1 << 37) - 1;
const ASID_SHIFT: u32 = 48;
const TTL_SHIFT: u32 = 44;
/// TTL: the granule is 4 KiB; with the level below.
const TTL_4K: u64 = 0b01 << 2;
/// TG of a range: 4 KiB.
const GRANULE_4K: u64 = 0b01 << 46;
const SCALE_SHIFT: u32 = 44;
const NUM_SHIFT: u32 = 39;
const SCALES: u64 = 4;
const NUMS: u64 = 32;

/// Number of pages of the longest range.
pub const PAGES_MAX: u64 = NUMS << (5 * (SCALES - 1) + 1);

/// The operand for a page or block, with the level of its entry if that is known (FEAT_TTL).
pub const fn page(address: u64, asid: u16, level: Option<u8>) -> u64 {
    let hint = match level {
        Some(level) => (TTL_4K | (level & 3) as u64) << TTL_SHIFT,
        None => 0,
    };
    address >> 12 & PAGE_NUMBER | hint | (asid as u64) << ASID_SHIFT
}

/// The number of pages of a range, as encoded in an operand: `(num + 1) << (5 * scale + 1)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    num: u64,
    scale: u64,
}

impl Range {
    /// NUM below 32 and SCALE below 4, or `None`.
    pub const fn new(num: u64, scale: u64) -> Option<Self> {
        if num < NUMS && scale < SCALES { Some(Self { num, scale }) } else { None }
    }

    /// Its number of pages.
    pub const fn pages(self) -> u64 {
        (self.num + 1) << (5 * self.scale + 1)
    }

    /// The operand, for the pages from `address` on.
    pub const fn operand(self, address: u64, asid: u16) -> u64 {
        let length = self.scale << SCALE_SHIFT | self.num << NUM_SHIFT;
        address >> 12 & BASE | length | GRANULE_4K | (asid as u64) << ASID_SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p17_a_range_has_as_many_pages_as_its_operand_says() {
        assert_eq!(Range::new(32, 0), None);
        assert_eq!(Range::new(0, 4), None);
        for (num, scale, pages) in [(0, 0, 2), (31, 0, 64), (0, 1, 64), (7, 1, 512), (31, 3, PAGES_MAX)] {
            let range = Range::new(num, scale).expect("both are in range");
            assert_eq!(range.pages(), pages);
            let operand = range.operand(0x0000_1234_5678_9000, 0xabcd);
            assert_eq!(operand >> 39 & 31, num);
            assert_eq!(operand >> 44 & 3, scale);
            assert_eq!((operand >> 46 & 3, operand >> 48), (1, 0xabcd));
            assert_eq!((operand & BASE, operand >> 37 & 3), (0x1_2345_6789, 0), "address, and no level");
        }
    }

    #[test]
    fn p18_a_hint_is_of_granule_and_level() {
        assert_eq!(page(0xffff_1234_5678_9abc, 0, None), 0xff1_2345_6789);
        assert_eq!(page(0x1000, 0x12, None), 0x0012_0000_0000_0001);
        assert_eq!(page(0x1000, 0, Some(3)) >> 44, 0b0111);
        assert_eq!(page(0x1000, 0, Some(2)) >> 44, 0b0110);
    }
}
