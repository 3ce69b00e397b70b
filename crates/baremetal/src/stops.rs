//! Times in which a program did not run, found by reading a clock all the time.

/// The times between two readings that were longer than usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stops {
    /// Ticks between two readings without a stop.
    usual: u64,
    /// At least this many ticks more than usual are a stop.
    least: u64,
    last: u64,
    /// How many there were.
    pub count: u64,
    /// The ticks of all of them.
    pub total: u64,
    /// The ticks of the longest one.
    pub longest: u64,
}

impl Stops {
    /// Begins at `now`, for a program whose readings are usually `usual` ticks apart. A stop is at
    /// least `least` ticks longer than that.
    pub const fn new(now: u64, usual: u64, least: u64) -> Self {
        Self { usual, least, last: now, count: 0, total: 0, longest: 0 }
    }

    /// Takes a reading of the clock.
    #[inline(always)]
    pub fn look(&mut self, now: u64) {
        let stop = now.saturating_sub(self.last).saturating_sub(self.usual);
        self.last = now;
        if stop >= self.least {
            self.add(stop);
        }
    }

    #[cold]
    fn add(&mut self, stop: u64) {
        self.count += 1;
        self.total += stop;
        self.longest = self.longest.max(stop);
    }

    /// Excludes the time since the last reading: the program did something else.
    pub fn resume(&mut self, now: u64) {
        self.last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stops(readings: impl IntoIterator<Item = u64>) -> (u64, u64, u64) {
        let mut stops = Stops::new(100, 7, 50);
        readings.into_iter().for_each(|now| stops.look(now));
        (stops.count, stops.total, stops.longest)
    }

    #[test]
    fn what_takes_hardly_longer_than_usual_is_no_stop() {
        assert_eq!(stops([]), (0, 0, 0));
        assert_eq!(stops((1..1000).map(|reading| 100 + 7 * reading)), (0, 0, 0));
        assert_eq!(stops([107, 107 + 56]), (0, 0, 0));
    }

    #[test]
    fn stops_are_without_what_a_reading_usually_takes() {
        assert_eq!(stops([107, 107 + 57]), (1, 50, 50));
        assert_eq!(stops([107, 1107, 1114, 1414, 1421]), (2, 993 + 293, 993));
    }

    #[test]
    fn what_was_done_on_purpose_and_a_clock_that_goes_back_are_no_stops() {
        let mut stops = Stops::new(100, 7, 50);
        stops.resume(9000);
        stops.look(9007);
        stops.look(8000);
        stops.look(8007);
        assert_eq!(stops, Stops { last: 8007, ..Stops::new(100, 7, 50) });
    }
}
