//! The partition's reference time.

use core::sync::atomic::{AtomicU64, Ordering};
use migration::{Archive, Described, Flaw};
use tlfs::msr::TscPage;

use crate::devices::pc::lapic::told_rate;

/// Units of reference time per second: it counts 100 ns.
pub const TICKS_PER_SECOND: u64 = 10_000_000;

/// The partition's reference time as a function of its TSC, in units of 100 ns since its creation.
///
/// The function is bit for bit the one that the guest evaluates from the reference TSC page (TLFS,
/// "Partition Reference TSC Mechanism"). So page and register can be mixed without time running
/// backwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferenceClock {
    /// The TSC's rate, as the guest was told.
    tsc_hz: u64,
    /// Units per TSC tick as a fraction of 2^64; never 0.
    scale: u64,
    /// Scaled TSC at the partition's creation.
    origin: u64,
}

impl ReferenceClock {
    /// A clock for a TSC of `tsc_hz` that reads 0 at `tsc`. `None` if the TSC ticks no faster than
    /// the clock: the page's scale cannot express that.
    pub const fn new(tsc_hz: u64, tsc: u64) -> Option<Self> {
        if tsc_hz <= TICKS_PER_SECOND {
            return None;
        }
        let scale = (((TICKS_PER_SECOND as u128) << 64) / tsc_hz as u128) as u64;
        Some(Self { tsc_hz, scale, origin: scaled(tsc, scale) })
    }

    /// The rate of its TSC.
    pub const fn tsc_hz(&self) -> u64 {
        self.tsc_hz
    }

    /// As numbers, for a [`SharedClock`].
    const fn words(&self) -> [u64; 3] {
        [self.tsc_hz, self.scale, self.origin]
    }

    /// Reference time at `tsc`. Monotonic; 0 before the partition's creation.
    pub const fn time_at(&self, tsc: u64) -> u64 {
        scaled(tsc, self.scale).saturating_sub(self.origin)
    }

    /// A number of TSC ticks in units of reference time.
    pub const fn duration(&self, ticks: u64) -> u64 {
        scaled(ticks, self.scale)
    }

    /// The first TSC value at which the reference time is `time` or later; `None` if the TSC never
    /// reaches it.
    pub const fn tsc_at(&self, time: u64) -> Option<u64> {
        let Some(scaled) = self.origin.checked_add(time) else { return None };
        let tsc = ((scaled as u128) << 64).div_ceil(self.scale as u128);
        if tsc > u64::MAX as u128 { None } else { Some(tsc as u64) }
    }

    /// The contents of the reference TSC page.
    pub const fn page(&self) -> TscPage {
        TscPage { sequence: 1, reserved: 0, scale: self.scale, offset: (self.origin as i64).wrapping_neg() }
    }
}

/// By the partition's TSC, which goes on.
impl Described for ReferenceClock {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let Self { mut tsc_hz, scale: _, mut origin } = *self;
        told_rate(&mut tsc_hz, archive)?;
        origin.describe(archive)?;
        let clock = Self::new(tsc_hz, 0).ok_or(Flaw::Value("the rate of the TSC"))?;
        *self = Self { origin, ..clock };
        Ok(())
    }
}

/// A clock that the virtual processors of a partition share. It changes only while none of them
/// runs.
#[derive(Debug)]
pub struct SharedClock([AtomicU64; 3]);

impl SharedClock {
    /// This clock.
    pub fn new(clock: ReferenceClock) -> Self {
        Self(clock.words().map(AtomicU64::new))
    }

    /// The clock.
    #[inline]
    pub fn get(&self) -> ReferenceClock {
        // Relaxed, here and below: see above.
        let [tsc_hz, scale, origin] = self.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        ReferenceClock { tsc_hz, scale, origin }
    }

    /// Replaces it.
    pub fn set(&self, clock: ReferenceClock) {
        for (word, value) in self.0.iter().zip(clock.words()) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// The scaled TSC: the high half of the product.
const fn scaled(tsc: u64, scale: u64) -> u64 {
    ((tsc as u128 * scale as u128) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREQUENCIES: [u64; 6] =
        [10_000_001, 12_500_000, 1_000_000_000, 2_599_999_917, 5_000_000_000, 1 << 40];

    /// The guest's side of the page: 64 by 64 bits multiply, wrapping addition.
    fn by_page(page: &TscPage, tsc: u64) -> u64 {
        ((u128::from(tsc) * u128::from(page.scale)) >> 64).wrapping_add_signed(page.offset.into()) as u64
    }

    #[test]
    fn a_tsc_no_faster_than_the_clock_is_refused() {
        assert_eq!((ReferenceClock::new(0, 0), ReferenceClock::new(TICKS_PER_SECOND, 0)), (None, None));
        assert!(ReferenceClock::new(TICKS_PER_SECOND + 1, 0).is_some());
    }

    #[test]
    fn page_and_register_never_differ() {
        for hz in FREQUENCIES {
            for created in [0, 1, 123_456_789_012, u64::MAX / 2, u64::MAX - 1000] {
                let clock = ReferenceClock::new(hz, created).unwrap();
                assert_eq!(clock.time_at(created), 0);
                let page = clock.page();
                assert_eq!((page.sequence, page.reserved), (1, 0), "0: the guest reads the register");
                for after in [0, 1, 259, 260, 1 << 20, 1 << 40, u64::MAX] {
                    let tsc = created.saturating_add(after);
                    assert_eq!(clock.time_at(tsc), by_page(&clock.page(), tsc), "{hz} {created} {after}");
                }
            }
        }
    }

    #[test]
    fn time_is_100_ns_and_does_not_run_backwards() {
        let clock = ReferenceClock::new(2_600_000_000, 5_000).unwrap();
        assert!((9_999_999..=10_000_000).contains(&clock.time_at(5_000 + 2_600_000_000)));
        let mut last = 0;
        for tsc in (5_000..105_000).step_by(7) {
            assert!(clock.time_at(tsc) >= last);
            last = clock.time_at(tsc);
        }
        assert_eq!(clock.time_at(4_999), 0, "before creation");
    }

    #[test]
    fn durations_do_not_depend_on_the_origin() {
        for hz in FREQUENCIES {
            let [early, late] = [0, u64::MAX / 2].map(|created| ReferenceClock::new(hz, created).unwrap());
            for ticks in [0, 1, 259, hz - 1, hz, 1 << 40] {
                let duration = early.duration(ticks);
                assert_eq!(duration, early.time_at(ticks));
                assert_eq!(duration, late.duration(ticks), "{hz} {ticks}");
            }
            assert!((9_999_999..=10_000_000).contains(&early.duration(hz)), "{hz}");
        }
    }

    #[test]
    fn a_deadline_is_the_first_tick_that_is_not_early() {
        for hz in FREQUENCIES {
            let clock = ReferenceClock::new(hz, 777_777).unwrap();
            for time in (1..5_000).chain([1 << 30, 1 << 40, 1 << 45]) {
                let Some(tsc) = clock.tsc_at(time) else { continue };
                assert!(clock.time_at(tsc) >= time, "{hz} {time}: early");
                assert!(clock.time_at(tsc - 1) < time, "{hz} {time}: late");
            }
        }
    }

    #[test]
    fn a_time_that_the_tsc_never_reaches_has_no_deadline() {
        let clock = ReferenceClock::new(2_600_000_000, 1 << 40).unwrap();
        assert_eq!((clock.tsc_at(u64::MAX), clock.tsc_at(u64::MAX / 2)), (None, None));
    }
}
