//! Choosing instructions for the translations that a change has made stale.

use super::cover::{Pages, Ranges, granules};
use super::errata::Errata;
use super::operand::{Granule, LeafLevel};

/// Translations that a change has removed or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// First address that is translated: at stage 2 an intermediate physical one.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Level of the leaves; of the smallest possible leaves if `tables` is set. `None` if it is not
    /// known.
    pub leaf: Option<LeafLevel>,
    /// An entry above a leaf was removed or replaced, so walk-cache entries must be dropped: no
    /// hint is right (P18).
    pub tables: bool,
}

impl Stale {
    /// The level that may be given as a hint.
    const fn hint(&self, features: Features) -> Option<LeafLevel> {
        if self.tables || !features.ttl { None } else { self.leaf }
    }
}

/// Features that all processors have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// FEAT_TLBIRANGE: RIPAS2E1IS.
    pub range: bool,
    /// FEAT_TTL: level hints. Without it the field is reserved.
    pub ttl: bool,
    /// FEAT_S2FWB: stage 2 forces write-back, so that no data cache needs to be cleaned.
    pub forces_write_back: bool,
    /// The instruction cache is tagged by VMID and physical address (VPIPT): its lines are dropped
    /// with the translations (P21).
    pub instructions_by_vmid: bool,
}

impl Features {
    /// From the registers of one processor: ID_AA64ISAR0_EL1, ID_AA64MMFR2_EL1, CTR_EL0.
    pub const fn from_id(isar0: u64, mmfr2: u64, ctr: u64) -> Self {
        Self {
            range: isar0 >> 56 & 0xf >= 2,
            ttl: mmfr2 >> 48 & 0xf >= 1,
            forces_write_back: mmfr2 >> 40 & 0xf >= 1,
            instructions_by_vmid: ctr >> 14 & 0b11 == 0b10,
        }
    }

    /// The features that both have, and the care that either needs.
    #[must_use]
    pub const fn common(self, other: Self) -> Self {
        Self {
            range: self.range && other.range,
            ttl: self.ttl && other.ttl,
            forces_write_back: self.forces_write_back && other.forces_write_back,
            instructions_by_vmid: self.instructions_by_vmid || other.instructions_by_vmid,
        }
    }
}

/// The numbers up to which single instructions are worthwhile, compared with the guest's loss if
/// all of its entries are dropped. To be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Instructions for single pages.
    pub pages_max: u32,
    /// Range instructions.
    pub ranges_max: u32,
}

/// Properties that do not change while a machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// VTCR_EL2.TG0.
    pub granule: Granule,
    /// Features that all processors have.
    pub features: Features,
    /// Errata that any processor has.
    pub errata: Errata,
    /// How much to invalidate individually before invalidating everything.
    pub limits: Limits,
}

/// The instructions to use; `I` iterates over the stale ranges.
///
/// Exhaustive: a caller that overlooks one invalidates too little.
#[derive(Clone, Debug)]
pub enum Plan<I> {
    /// None: nothing changed that a processor could hold.
    Nothing,
    /// RIPAS2E1IS, or IPAS2E1IS for a single leaf, and VMALLE1IS.
    Ranges(I),
    /// IPAS2E1IS and VMALLE1IS.
    Pages(I),
    /// VMALLS12E1IS.
    Whole,
}

/// Chooses the instructions. Invalidates by range if range instructions are available and few of
/// them suffice; otherwise page by page; the whole VMID beyond the limits, and where addresses are
/// beyond what operands can name.
///
/// The number of steps is bounded by the number of ranges and the limits.
pub fn plan<I>(setup: &Setup, stale: I) -> Plan<I::IntoIter>
where
    I: IntoIterator<Item = Stale>,
    I::IntoIter: Clone,
{
    let stale = stale.into_iter();
    if stale.clone().all(|stale| stale.len == 0) {
        return Plan::Nothing;
    }
    if setup.features.range && is_within(stale.clone(), setup.limits.ranges_max, |stale| ranges(setup, stale))
    {
        return Plan::Ranges(stale);
    }
    if is_within(stale.clone(), setup.limits.pages_max, |stale| pages(setup, stale)) {
        return Plan::Pages(stale);
    }
    Plan::Whole
}

/// Whether all of `stale` together takes at most `most` instructions, by `count` of each.
fn is_within(stale: impl Iterator<Item = Stale>, most: u32, count: impl Fn(&Stale) -> Option<u64>) -> bool {
    let mut left = u64::from(most);
    for stale in stale {
        match count(&stale).and_then(|count| left.checked_sub(count)) {
            Some(rest) => left = rest,
            None => return false,
        }
    }
    true
}

/// Instructions for single pages.
fn pages(setup: &Setup, stale: &Stale) -> Option<u64> {
    Some(by_page(setup, stale)?.count_left())
}

/// Range instructions; `None` above 64.
fn ranges(setup: &Setup, stale: &Stale) -> Option<u64> {
    granules(setup.granule, stale.start, stale.len)?;
    let count = Ranges::new(setup.granule, stale.start, stale.len, None)?.take(65).count();
    (count <= 64).then_some(count as u64)
}

pub(super) fn by_page(setup: &Setup, stale: &Stale) -> Option<Pages> {
    let only_leaves = stale.hint(setup.features).is_some();
    Pages::new(setup.granule, stale.start, stale.len, stale.leaf, only_leaves)
}

pub(super) fn by_range(setup: &Setup, stale: &Stale) -> Option<Ranges> {
    Ranges::new(setup.granule, stale.start, stale.len, stale.hint(setup.features))
}
