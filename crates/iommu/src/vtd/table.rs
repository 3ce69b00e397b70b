//! Entries of the root and context tables. Source: D51397, 9.1 and 9.3.

use crate::DomainId;

/// The bits of a physical address of a table.
pub(super) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const PRESENT: u64 = 1 << 0;
/// Requests for translations by the device itself (ATS) are answered.
const ATS: u64 = 1 << 2;
/// In the second double word: four levels.
const FOUR_LEVELS: u64 = 2;
const DOMAIN_SHIFT: u32 = 8;

/// The entry of the root table for a bus: two double words, of which the first has the address of
/// the bus's context table, a page. `None` if it does not fit.
#[must_use]
pub const fn root_entry(contexts: u64) -> Option<u64> {
    if contexts & !ADDRESS != 0 { None } else { Some(contexts | PRESENT) }
}

/// An entry of a context table: two double words, for one device.
///
/// The IOMMU may keep an entry that is present. A CPU writes it in two stores, the first double
/// word last when it becomes present, and first when it is blocked. What is kept by the former one
/// goes by [`device`](crate::Invalidations::device) with its domain, then by
/// [`pages`](crate::Invalidations::pages).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextEntry(pub [u64; 2]);

impl ContextEntry {
    /// All DMA of the device is aborted, and recorded.
    pub const BLOCKED: Self = Self([0; 2]);

    /// DMA is translated by the second-level table at `root` (host physical, a multiple of 4096),
    /// which has four levels as the processor's. `None` if the address does not fit, or for domain
    /// 0.
    #[must_use]
    pub const fn translated(root: u64, domain: DomainId) -> Option<Self> {
        if root & !ADDRESS != 0 || domain.0 == 0 {
            return None;
        }
        Some(Self([root | PRESENT, FOUR_LEVELS | (domain.0 as u64) << DOMAIN_SHIFT]))
    }

    /// The same, for a device that may keep translations itself: it has to be told, too.
    #[must_use]
    pub const fn with_ats(self) -> Self {
        let Self([first, second]) = self;
        Self([first | ATS, second])
    }

    /// Whether the IOMMU translates by it.
    #[must_use]
    pub const fn is_translated(self) -> bool {
        self.0[0] & PRESENT != 0
    }
}
