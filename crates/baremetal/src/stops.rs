//! Times in which a program did not run, found by reading a clock all the time.

/// The times between two readings that were longer than usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stops {
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
    /// Begins at `now`. A stop is at least `least` ticks.
    pub const fn new(now: u64, least: u64) -> Self {
        Self { least, last: now, count: 0, total: 0, longest: 0 }
    }

    /// Takes a reading of the clock. What the program did since the previous one usually takes
    /// `usual` ticks; the rest is a stop.
    #[inline(always)]
    pub fn look(&mut self, now: u64, usual: u64) {
        let stop = now.saturating_sub(self.last).saturating_sub(usual);
        self.last = now;
        if stop >= self.least {
            self.add(stop);
        }
    }

    /// Leaves out the time since the previous reading, in which the program did something else.
    pub fn skip(&mut self, now: u64) {
        self.last = now;
    }

    #[cold]
    fn add(&mut self, stop: u64) {
        self.count += 1;
        self.total += stop;
        self.longest = self.longest.max(stop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stops(readings: impl IntoIterator<Item = u64>) -> (u64, u64, u64) {
        let mut stops = Stops::new(100, 50);
        readings.into_iter().for_each(|now| stops.look(now, 7));
        (stops.count, stops.total, stops.longest)
    }

    #[test]
    fn what_takes_hardly_longer_than_usual_is_no_stop() {
        assert_eq!(stops([]), (0, 0, 0));
        assert_eq!(stops((1..1000).map(|reading| 100 + 7 * reading)), (0, 0, 0));
        assert_eq!(stops([107, 107 + 56]), (0, 0, 0));
    }

    #[test]
    fn stops_are_without_what_the_program_did() {
        assert_eq!(stops([107, 107 + 57]), (1, 50, 50));
        assert_eq!(stops([107, 1107, 1114, 1414, 1421]), (2, 993 + 293, 993));
        let mut stops = Stops::new(0, 50);
        stops.look(5000, 4960);
        assert_eq!(stops.count, 0);
        stops.look(10_000, 4950);
        assert_eq!((stops.count, stops.total), (1, 50), "a stop during other work");
    }

    #[test]
    fn what_is_left_out_is_no_stop() {
        let mut stops = Stops::new(0, 50);
        stops.skip(5000);
        stops.look(5049, 0);
        assert_eq!(stops.count, 0);
        stops.look(5099, 0);
        assert_eq!((stops.count, stops.longest), (1, 50));
    }

    #[test]
    fn a_clock_that_goes_back_is_no_stop() {
        assert_eq!(stops([90, 97, 104]), (0, 0, 0));
    }
}
