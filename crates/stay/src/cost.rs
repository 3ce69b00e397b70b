//! When a flush of single pages is cheaper than a flush of everything.
//!
//! Invalidating a page costs `page` ticks, at once. Invalidating everything costs almost nothing at
//! once, and the guest pays afterwards: each translation that it uses again is walked for, at
//! `refill` ticks each, for at most as many as the TLB holds. A guest that has just received a
//! flush request is not using all of them; the model assumes that it needs half of them again. So
//! single pages are cheaper up to
//!
//! ```text
//! pages = entries / 2 × refill / page
//! ```
//!
//! and never more than half of what one step may take. Where a page takes longer than all refills,
//! as where SVM or VMX is nested and it takes an exit, none is flushed alone. Both costs are
//! [measured](Cost::measure) when the hypervisor starts, on the machine that it runs on. The limit
//! applies to all architectures: on AMD64 and Intel 64 to the ranges that a guest requests
//! ([`tagged::plan()`](crate::tagged::plan()), [`tagged::obey`](crate::tagged::obey)), on Arm64 to
//! the translations that a change of stage 2 makes stale ([`limits`](Cost::limits)).

use core::fmt;

use coherence::tlbi::Limits;

use crate::tagged::{RANGES_MAX, STEP_MAX_US};

/// How much longer a translation through nested tables takes than the measured one through the
/// hypervisor's own tables. A nested walk reads up to 24 entries instead of 4 (APM volume 2,
/// section 15.25.6; Arm's two stages alike), most of which are in the walk caches.
const NESTED_FACTOR: u64 = 2;
/// The most range instructions on Arm64, above which the whole VMID is flushed.
const RANGE_INSTRUCTIONS_MAX: u32 = 16;

/// Repetitions that are timed together, since a counter's ticks may be coarse.
const REPETITIONS: u64 = 64;
/// Number of times that each is timed. The minimum counts, because interrupts and other
/// disturbances only add.
const TRIES: usize = 5;

/// Operations that only a processor can do, for the measurement. No vCPU has run yet.
pub trait Instruments {
    /// Ticks of a counter that never stops.
    fn now(&self) -> u64;
    /// Ticks of the counter in `us` microseconds.
    fn ticks_of_us(&self, us: u64) -> u64;
    /// Invalidates one page of a guest, and waits until that is complete.
    fn invalidate_page(&self);
    /// Drops the calling CPU's translation of the word that [`read`](Self::read) reads.
    fn drop_translation(&self);
    /// Reads a word of the hypervisor's memory.
    fn read(&self);
    /// Translations of 4 KiB pages that the TLB holds.
    fn entries(&self) -> u64;
}

/// Measured values, in ticks, all for the same number of repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// One invalidation of a page.
    pub page: u64,
    /// One access that misses the TLB, beyond one that hits it.
    pub miss: u64,
    /// Translations of 4 KiB that the TLB holds.
    pub entries: u64,
    /// Ticks in a microsecond.
    pub ticks_per_us: u64,
}

/// The cost model of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    measured: Measured,
    page_limit: u64,
}

impl Cost {
    /// The model for the machine of the calling CPU. Only the operations touch memory while they
    /// are timed: the stack may be in the page whose translation is dropped.
    pub fn measure(instruments: &impl Instruments) -> Self {
        let empty = least(instruments, || {});
        let hit = least(instruments, || instruments.read()).saturating_sub(empty);
        let drop = least(instruments, || instruments.drop_translation()).saturating_sub(empty);
        let both = least(instruments, || {
            instruments.drop_translation();
            instruments.read();
        });
        let page = least(instruments, || instruments.invalidate_page());
        Self::new(Measured {
            page: page.saturating_sub(empty),
            miss: both.saturating_sub(empty + hit + drop),
            entries: instruments.entries(),
            ticks_per_us: instruments.ticks_of_us(REPETITIONS),
        })
    }

    /// The model for the measured values.
    pub const fn new(measured: Measured) -> Self {
        let page = if measured.page == 0 { 1 } else { measured.page };
        let worth = (measured.entries / 2).saturating_mul(measured.miss.saturating_mul(NESTED_FACTOR)) / page;
        let step = STEP_MAX_US.saturating_mul(measured.ticks_per_us) / 2 / page;
        let limit = if worth < step { worth } else { step };
        // A miss that the counter does not show takes a tick at most.
        let miss = if measured.miss < REPETITIONS { REPETITIONS } else { measured.miss };
        // If one page is worthwhile, a mailbox full of them is: no measurement is so exact.
        let least = if page > measured.entries.saturating_mul(miss) { 0 } else { RANGES_MAX as u64 };
        let page_limit = if limit < least { least } else { limit };
        Self { measured, page_limit }
    }

    /// The same with another limit, if one is given.
    #[must_use]
    pub fn limited_to(self, pages: Option<u32>) -> Self {
        Self { page_limit: pages.map_or(self.page_limit, u64::from), ..self }
    }

    /// The most pages that are flushed one by one.
    pub const fn page_limit(&self) -> u64 {
        self.page_limit
    }

    /// The same for Arm64's instructions.
    pub fn limits(&self) -> Limits {
        let pages_max = u32::try_from(self.page_limit).unwrap_or(u32::MAX);
        Limits { pages_max, ranges_max: RANGE_INSTRUCTIONS_MAX }
    }
}

/// The minimum ticks of all repetitions of `operation`, including their loop.
#[inline(always)] // A call would use the stack, and the stack's page may share the word's translation.
fn least(instruments: &impl Instruments, operation: impl Fn()) -> u64 {
    let time = |_| {
        let start = instruments.now();
        (0..REPETITIONS).for_each(|_| operation());
        instruments.now() - start
    };
    (0..TRIES).map(time).min().unwrap_or(0)
}

/// The measured values and the resulting limit, in one line.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured { page, miss, entries, ticks_per_us } = self.measured;
        let ns = |ticks: u64| u128::from(ticks) * 1000 / u128::from(ticks_per_us.max(1));
        let (page, miss, limit) = (ns(page), ns(miss), self.page_limit);
        write!(
            f,
            "a page takes {page} ns to invalidate, a TLB miss {miss} ns, {entries} entries: up to {limit} pages go one by one"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::string::ToString;

    use super::*;

    /// A processor whose clock advances by the cost of each operation.
    #[derive(Default)]
    struct Timed {
        now: Cell<u64>,
        is_cached: Cell<bool>,
        reads: Cell<u64>,
    }

    impl Timed {
        fn take(&self, ticks: u64) {
            self.now.set(self.now.get() + ticks);
        }
    }

    impl Instruments for Timed {
        fn now(&self) -> u64 {
            self.take(3);
            self.now.get()
        }

        fn ticks_of_us(&self, us: u64) -> u64 {
            us * 2500
        }

        fn invalidate_page(&self) {
            self.take(400);
        }

        fn drop_translation(&self) {
            self.is_cached.set(false);
            self.take(50);
        }

        fn read(&self) {
            // Occasionally a disturbance adds time.
            let reads = self.reads.replace(self.reads.get() + 1);
            let disturbance = if reads % 200 == 7 { 100_000 } else { 0 };
            let miss = if self.is_cached.replace(true) { 0 } else { 100 };
            self.take(4 + miss + disturbance);
        }

        fn entries(&self) -> u64 {
            1536
        }
    }

    #[test]
    fn measures_what_a_page_and_a_miss_take() {
        let timed = Timed::default();
        let cost = Cost::measure(&timed);
        assert_eq!(timed.reads.get(), 2 * TRIES as u64 * REPETITIONS, "with a miss and without");
        let expected = Measured { page: 400 * 64, miss: 100 * 64, entries: 1536, ticks_per_us: 2500 * 64 };
        assert_eq!(cost, Cost::new(expected));
        assert_eq!(cost.page_limit(), 156, "as many as fit into half a step");
        assert_eq!(cost.limits(), Limits { pages_max: 156, ranges_max: 16 });
        assert!(cost.to_string().starts_with("a page takes 160 ns to invalidate, a TLB miss 40 ns"));
    }

    #[test]
    fn the_limit_is_where_the_costs_meet_and_below_half_a_step() {
        let measured = Measured { page: 400, miss: 100, entries: 1536, ticks_per_us: 2500 };
        // 768 × 200 / 400 = 384 pages would be worthwhile, 25 µs allow 156.
        assert_eq!(Cost::new(measured).page_limit(), 156);
        assert_eq!(Cost::new(Measured { miss: 20, ..measured }).page_limit(), 76);
        // 1536 × 100 for everything.
        for (page, limit) in [(153_600, RANGES_MAX as u64), (153_601, 0), (1 << 40, 0)] {
            assert_eq!(Cost::new(Measured { page, ..measured }).page_limit(), limit);
        }
        // Where the counter counts instructions: one each, and all of another hypervisor's.
        for (page, limit) in [(64, RANGES_MAX as u64), (512 * 64 + 1, 0)] {
            let coarse = Measured { page, miss: 0, entries: 512, ticks_per_us: 1000 * 64 };
            assert_eq!(Cost::new(coarse).page_limit(), limit);
        }
        assert_eq!(Cost::new(measured).limited_to(Some(1000)).page_limit(), 1000);
        assert_eq!(Cost::new(measured).limited_to(None), Cost::new(measured));
        let free = Measured { page: 0, miss: u64::MAX, entries: u64::MAX, ticks_per_us: u64::MAX };
        assert!(Cost::new(free).page_limit() > 1 << 30, "saturates");
    }
}
