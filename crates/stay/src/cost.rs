//! When a flush of single pages is cheaper than one of everything.
//!
//! To invalidate a page costs `page` ticks, at once. To invalidate everything costs next to nothing at once, and the
//! guest pays afterwards: each translation that it uses again is walked for, `refill` ticks each, for at most as many as
//! the TLB holds. A guest that has just been asked to flush is not using all of them; it is taken to want half of them
//! back. So single pages are cheaper up to
//!
//! ```text
//! pages = entries / 2 × refill / page
//! ```
//!
//! and never more than half of what one step may take. Both costs are measured when the hypervisor starts, on the machine that it runs on.

use crate::amd64::{RANGES_MAX, STEP_MAX_US};

/// How many times a translation through nested tables takes as long as the one through the hypervisor's own tables that
/// was measured. A nested walk reads up to 24 entries instead of 4 (APM volume 2, section 15.25.6), most of which the
/// walk caches know.
const NESTED_FACTOR: u64 = 2;

/// What was measured, in TSC ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// One INVLPGA.
    pub page: u64,
    /// One access that misses the TLB, beyond one that hits it.
    pub miss: u64,
    /// Translations of 4 KiB that the TLB holds.
    pub entries: u64,
    /// TSC ticks in a microsecond.
    pub ticks_per_us: u64,
}

/// The cost model of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    measured: Measured,
    page_limit: u64,
}

impl Cost {
    /// The model for what was measured.
    pub const fn new(measured: Measured) -> Self {
        let page = if measured.page == 0 { 1 } else { measured.page };
        let worth = (measured.entries / 2).saturating_mul(measured.miss.saturating_mul(NESTED_FACTOR)) / page;
        let step = STEP_MAX_US.saturating_mul(measured.ticks_per_us) / 2 / page;
        let limit = if worth < step { worth } else { step };
        // A mailbox full of single pages is always worth it: were it not, the measurement would be of nothing.
        let page_limit = if limit < RANGES_MAX as u64 { RANGES_MAX as u64 } else { limit };
        Self { measured, page_limit }
    }

    /// The same with another limit, if there is one.
    #[must_use]
    pub fn limited_to(self, pages: Option<u32>) -> Self {
        Self { page_limit: pages.map_or(self.page_limit, u64::from), ..self }
    }

    /// Most pages that are flushed one by one.
    pub const fn page_limit(&self) -> u64 {
        self.page_limit
    }

    /// What the model was made from.
    pub const fn measured(&self) -> Measured {
        self.measured
    }
}
