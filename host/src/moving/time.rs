//! A machine's counter, beside the time of day: guests' clocks go on from one machine to the next.

use super::port::Frame;
use crate::prelude::*;
use std::time::{SystemTime, UNIX_EPOCH};
use transfer::frame::{Clock, Kind};
use zerocopy::{FromBytes, IntoBytes};

const NANOS: i128 = 1_000_000_000;

/// Nanoseconds since the beginning of 1970.
pub(super) fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// How a counter goes with the time of day.
#[derive(Clone, Copy, Debug)]
pub(super) struct Relation {
    hz: u64,
    /// What the counter had passed at a time.
    freshest: Option<(u64, u64)>,
}

impl Relation {
    pub(super) const fn new(hz: u64) -> Self {
        Self { hz, freshest: None }
    }

    /// The counter that a machine has shown, read before `now`. It was right when it was shown, so
    /// it is behind by the time since then: the one that is behind least is the best.
    pub(super) fn look(&mut self, counter: u64, now: u64) {
        let ahead =
            |(counter, at): (u64, u64)| i128::from(counter) * NANOS - i128::from(at) * i128::from(self.hz);
        let is_better = self.freshest.is_none_or(|best| ahead((counter, now)) > ahead(best));
        if counter != 0 && is_better {
            self.freshest = Some((counter, now));
        }
    }

    /// The time of day when the counter was at `counter`.
    pub(super) fn time_of(&self, counter: u64) -> Option<u64> {
        let (then, at) = self.freshest?;
        let ticks = i128::from(counter) - i128::from(then);
        u64::try_from(i128::from(at) + ticks * NANOS / i128::from(self.hz)).ok()
    }

    /// The counter at a time of day.
    pub(super) fn counter_at(&self, time: u64) -> Option<u64> {
        let (then, at) = self.freshest?;
        let nanos = i128::from(time) - i128::from(at);
        u64::try_from(i128::from(then) + nanos * i128::from(self.hz) / NANOS).ok()
    }
}

/// The same frame with another clock.
pub(super) fn with_clock(frame: &Frame, change: impl FnOnce(&mut Clock) -> Result<()>) -> Result<Frame> {
    let clock = Clock::read_from_bytes(frame.content());
    let mut clock = clock.map_err(|_| anyhow!("the guest's clock has a wrong length"))?;
    change(&mut clock)?;
    Ok(Frame::new(Kind::Clock, frame.header.argument, clock.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m4_the_counter_that_is_behind_least_is_believed() {
        let mut relation = Relation::new(2_000_000_000);
        assert_eq!(relation.time_of(7), None, "nothing was seen yet");
        relation.look(0, 5);
        assert_eq!(relation.counter_at(7), None, "the machine has shown nothing yet");
        // At a time of 1000 the counter is 2000; it was shown 300, 20 and 100 ns before.
        for (at, behind) in [(1000, 300), (2000, 20), (3000, 100)] {
            relation.look(2 * at - 2 * behind, at);
        }
        assert_eq!((relation.time_of(9960), relation.counter_at(5000)), (Some(5000), Some(9960)));
        assert_eq!(relation.time_of(0), Some(20), "before it, too");
        let time = 1_800_000_000_000_000_000;
        let there = relation.counter_at(time).expect("fits");
        assert_eq!(relation.time_of(there), Some(time), "and back, in any year");
    }

    #[test]
    fn clocks_are_changed_and_flawed_ones_refused() {
        let frame = Frame::new(Kind::Clock, 0, &[1; 32]);
        let changed = with_clock(&frame, |clock| {
            clock.at = Clock::NOW;
            Ok(())
        });
        let at = changed.expect("is one").body[16..24].to_owned();
        assert_eq!(at, [0xff; 8]);
        assert!(with_clock(&Frame::new(Kind::Clock, 0, &[1; 31]), |_| Ok(())).is_err());
    }
}
