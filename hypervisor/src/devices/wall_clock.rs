//! The date: the machine's own clock, read once, and the counter since then.

/// Nanoseconds per second.
pub const NS: u64 = 1_000_000_000;

/// The machine's time of day, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallClock {
    unix: u64,
    ticks: u64,
    hz: u64,
}

impl WallClock {
    /// A clock that was `unix` seconds after the beginning of 1970 when a counter with rate `hz`
    /// read `ticks`.
    pub const fn new(unix: u64, ticks: u64, hz: u64) -> Self {
        Self { unix, ticks, hz: if hz == 0 { 1 } else { hz } }
    }

    /// Nanoseconds since the beginning of 1970 when the counter reads `ticks`. Saturates in 2554.
    pub fn ns(&self, ticks: u64) -> u64 {
        let passed = u128::from(ticks.saturating_sub(self.ticks)) * u128::from(NS) / u128::from(self.hz);
        let ns = u128::from(self.unix) * u128::from(NS) + passed;
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// What the counter reads first when it is `ns` nanoseconds after the beginning of 1970, or
    /// later.
    pub fn ticks(&self, ns: u64) -> u64 {
        let left = u128::from(ns).saturating_sub(u128::from(self.unix) * u128::from(NS));
        let ticks = (left * u128::from(self.hz)).div_ceil(u128::from(NS));
        u64::try_from(ticks).unwrap_or(u64::MAX).saturating_add(self.ticks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u25_a_time_is_a_reading_of_the_counter() {
        for hz in [1, 1000, 62_500_000, 1_000_000_000, 3_000_000_001] {
            let clock = WallClock::new(1_700_000_000, 5000, hz);
            assert_eq!((clock.ticks(0), clock.ticks(1_700_000_000 * NS)), (5000, 5000));
            for ns in [1, 7, NS - 1, NS, NS + 1, 86_400 * NS].map(|more| 1_700_000_000 * NS + more) {
                let ticks = clock.ticks(ns);
                assert!(clock.ns(ticks) >= ns && clock.ns(ticks - 1) < ns, "{hz} {ns}");
            }
        }
        assert_eq!(WallClock::new(0, 1, u64::MAX).ticks(u64::MAX), u64::MAX);
    }

    #[test]
    fn time_goes_on_with_the_counter_and_never_back() {
        let clock = WallClock::new(1_700_000_000, 5000, 1000);
        assert_eq!((clock.ns(5000), clock.ns(6500)), (1_700_000_000 * NS, 1_700_000_001 * NS + NS / 2));
        assert_eq!((clock.ns(0), WallClock::new(u64::MAX, 0, 0).ns(u64::MAX)), (clock.ns(5000), u64::MAX));
    }
}
