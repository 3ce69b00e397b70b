//! Determines when the next page is written to, and the duration of the longest stop.

use crate::command::PAGE;
use baremetal::stops::Stops;

/// A schedule that is this late, in milliseconds, is restarted: missed stores are not made up for.
const LATE_MS: u64 = 10;

/// Stores at a given rate, by a clock that is read all the time.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Ticks from one store to the next.
    interval: u64,
    /// Ticks by which a schedule may be late.
    late: u64,
    next: u64,
    stops: Stops,
}

impl Pace {
    /// Starts at `now`, in ticks of `hz` a second. `rate`: 10^6 bytes a second, or 0 for no pauses.
    pub fn new(now: u64, hz: u64, rate: u64) -> Self {
        let bytes = u128::from(rate) * 1_000_000;
        let interval = (u128::from(hz) * u128::from(PAGE)).checked_div(bytes).unwrap_or(0);
        let late = hz / 1000 * LATE_MS;
        let stops = Stops::new(now, 1);
        Self { interval: u64::try_from(interval).unwrap_or(u64::MAX), late, next: now, stops }
    }

    /// Takes a reading of the clock; returns whether a store is due.
    pub fn look(&mut self, now: u64) -> bool {
        self.stops.look(now, 0);
        if now < self.next {
            return false;
        }
        let next = self.next.saturating_add(self.interval);
        let is_late = now.saturating_sub(next) > self.late;
        self.next = if is_late { now.saturating_add(self.interval) } else { next };
        true
    }

    /// Excludes the time since the last reading from the stops.
    pub fn resume(&mut self, now: u64) {
        self.stops.skip(now);
    }

    /// Returns and clears the longest time between two readings, in ticks.
    pub fn take_longest(&mut self) -> u64 {
        core::mem::take(&mut self.stops.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HZ: u64 = 1_000_000;

    /// Number of stores between these microseconds, with a reading at each one.
    fn stores(pace: &mut Pace, from: u64, to: u64) -> usize {
        (from..to).filter(|now| pace.look(*now)).count()
    }

    #[test]
    fn the_rate_is_kept() {
        // 4.096 * 10^6 bytes per second would be 1,000 pages; 4 are 976.
        assert_eq!(stores(&mut Pace::new(0, HZ, 4), 0, 1_000_000), 977);
        assert_eq!(stores(&mut Pace::new(0, HZ, 0), 0, 1000), 1000, "no rests");
        assert_eq!(stores(&mut Pace::new(0, HZ, u64::MAX), 0, 1000), 1000);
    }

    #[test]
    fn a_long_stop_is_told_once_and_not_made_up_for() {
        let mut pace = Pace::new(0, HZ, 4);
        stores(&mut pace, 0, 10_000);
        let after = stores(&mut pace, 60_000, 70_000);
        assert!(after < 12, "{after} stores in 10 ms at 976 a second");
        assert_eq!((pace.take_longest(), pace.take_longest()), (60_000 - 9_999, 0));
    }

    #[test]
    fn what_was_done_on_purpose_is_no_stop() {
        let mut pace = Pace::new(0, HZ, 4);
        pace.look(10);
        pace.resume(5000);
        pace.look(5001);
        assert_eq!(pace.take_longest(), 10);
    }
}
