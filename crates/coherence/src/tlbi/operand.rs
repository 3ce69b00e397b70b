//! The register operand of a TLBI by intermediate physical address.
//!
//! | | 63 | 47:46 | 45:44 | 43:39 | 38:37 | 36:0 |
//! |---|---|---|---|---|---|---|
//! | RIPAS2E1IS | NS | TG | SCALE | NUM | TTL | base, in granules |
//!
//! | | 63 | 47:44 | 39:0 |
//! |---|---|---|---|
//! | IPAS2E1IS | NS | TTL | `IPA[51:12]` |
//!
//! NS is 0: it has a meaning in Secure state only. A range has `(NUM + 1) << (5 * SCALE + 1)`
//! granules.
//!
//! A TTL promises that **only leaves of that level** need to be dropped; a processor may keep
//! everything else (P18). 0 promises nothing.

/// Translation granule: of stage 2 here, as VTCR_EL2.TG0 says.
///
/// Exhaustive: the architecture has these three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granule {
    /// 4 KiB.
    Size4K,
    /// 16 KiB.
    Size16K,
    /// 64 KiB.
    Size64K,
}

impl Granule {
    /// Binary logarithm of the size in bytes.
    pub const fn shift(self) -> u32 {
        match self {
            Self::Size4K => 12,
            Self::Size16K => 14,
            Self::Size64K => 16,
        }
    }

    /// Size in bytes.
    pub const fn bytes(self) -> u64 {
        1 << self.shift()
    }

    /// The granule's encoding in operands, and in commands of an SMMU: TG, and the upper half of a
    /// page's TTL. 0 is no granule. The tables' TG fields have another encoding.
    pub const fn tg(self) -> u64 {
        match self {
            Self::Size4K => 0b01,
            Self::Size16K => 0b10,
            Self::Size64K => 0b11,
        }
    }
}

/// Level of a leaf, as Arm counts: 3 is the last.
///
/// Exhaustive: the levels that have leaves with VTCR_EL2.DS = 0, or in an SMMU IDR5.DS = 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LeafLevel {
    /// Blocks of 1 GiB with the granule of 4 KiB, of 4 TiB with 64 KiB.
    One = 1,
    /// Blocks of 2, 32 or 512 MiB.
    Two = 2,
    /// Pages.
    Three = 3,
}

impl LeafLevel {
    /// Binary logarithm of a leaf's size in bytes.
    pub const fn shift(self, granule: Granule) -> u32 {
        // A table fills a granule with entries of 8 bytes.
        granule.shift() + (3 - self as u32) * (granule.shift() - 3)
    }
}

/// The level in a TTL field, or 0 where that level's encoding is reserved: with 16 KiB granules
/// there are no blocks at level 1.
pub const fn level_hint(granule: Granule, leaf: Option<LeafLevel>) -> u64 {
    match (leaf, granule) {
        (None, _) | (Some(LeafLevel::One), Granule::Size16K) => 0,
        (Some(level), _) => level as u64,
    }
}

const PAGE_TTL_SHIFT: u32 = 44;
const PAGE_ADDRESS: u64 = (1 << 40) - 1;

/// Operand of IPAS2E1IS: everything that translates `ipa`, or with a `leaf` only the leaf of that
/// level.
///
/// One instruction is enough for a block, even if a processor holds it in pieces.
pub const fn page(granule: Granule, ipa: u64, leaf: Option<LeafLevel>) -> u64 {
    let ttl = match level_hint(granule, leaf) {
        0 => 0,
        level => granule.tg() << 2 | level,
    };
    ttl << PAGE_TTL_SHIFT | ipa >> 12 & PAGE_ADDRESS
}

const TG_SHIFT: u32 = 46;
const SCALE_SHIFT: u32 = 44;
const NUM_SHIFT: u32 = 39;
const RANGE_TTL_SHIFT: u32 = 37;
/// Width of a range's base, in granules.
pub(super) const BASE_BITS: u32 = 37;
/// Largest SCALE.
pub(super) const SCALE_MAX: u32 = 3;
/// Largest NUM, plus 1.
pub(super) const UNITS_MAX: u64 = 32;

/// Granules in one unit of NUM.
pub(super) const fn unit(scale: u32) -> u64 {
    1 << (5 * scale + 1)
}

/// Operand of RIPAS2E1IS: `units << (5 * scale + 1)` granules from `base`, which is a multiple of
/// [`base_alignment`](super::base_alignment) below `2^37` granules. With a `leaf`, only leaves of
/// that level.
///
/// Values that do not fit their field are truncated: `scale` to 0–3, `units` to 1–32.
pub const fn range(granule: Granule, base: u64, scale: u32, units: u64, leaf: Option<LeafLevel>) -> u64 {
    let address = base >> granule.shift() & ((1 << BASE_BITS) - 1);
    let num = units.wrapping_sub(1) & (UNITS_MAX - 1);
    let scale = (scale & SCALE_MAX) as u64;
    let (tg, ttl) = (granule.tg(), level_hint(granule, leaf));
    tg << TG_SHIFT | scale << SCALE_SHIFT | num << NUM_SHIFT | ttl << RANGE_TTL_SHIFT | address
}

const _: () = {
    assert!(BASE_BITS == RANGE_TTL_SHIFT && RANGE_TTL_SHIFT + 2 == NUM_SHIFT);
    assert!(NUM_SHIFT + 5 == SCALE_SHIFT && SCALE_SHIFT + 2 == TG_SHIFT);
    assert!(UNITS_MAX == 1 << (SCALE_SHIFT - NUM_SHIFT));
    assert!(unit(SCALE_MAX) * UNITS_MAX == 1 << 21, "the most that one operand covers, in granules");
    assert!(PAGE_ADDRESS < 1 << PAGE_TTL_SHIFT);
    assert!(LeafLevel::Two.shift(Granule::Size4K) == 21 && LeafLevel::One.shift(Granule::Size4K) == 30);
    assert!(LeafLevel::Two.shift(Granule::Size16K) == 25 && LeafLevel::Two.shift(Granule::Size64K) == 29);
};
