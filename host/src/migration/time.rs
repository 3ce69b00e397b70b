//! A machine's counter, beside the time of day: guests' clocks go on from one machine to the next.

use super::port::Frame;
use crate::prelude::*;
use migration::frame::{Clock, Kind};
use std::time::{SystemTime, UNIX_EPOCH};
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

/// When a guest stopped at its source, by this machine's clock: within this time. And what is to
/// be said if the other machine's clock makes it another one.
pub(super) fn stopped_at(at: u64, within: Range<u64>) -> (u64, Option<String>) {
    let bounded = at.clamp(within.start, within.end.max(within.start));
    let is_off = bounded.abs_diff(at) > Duration::from_secs(1).as_nanos() as u64;
    let told = || {
        let off = Duration::from_nanos(bounded.abs_diff(at));
        let way = if at < bounded { "behind" } else { "ahead of" };
        format!(
            "the other machine's clock is {way} this one's by {off:.1?} or more: the guest's time goes on \
             as if it had stopped {:.1?} ago",
            Duration::from_nanos(within.end.saturating_sub(bounded))
        )
    };
    (bounded, is_off.then(told))
}

/// It was off: its counter goes on where it was, and its date is today's.
pub(super) fn goes_on_now(clock: &mut Clock) -> Result<()> {
    clock.wall_ns = clock.wall_ns.saturating_add(now_ns().saturating_sub(clock.at));
    clock.at = Clock::NOW;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m4_a_guest_stopped_between_its_request_and_now_whatever_its_sources_clock_says() {
        const SECOND: u64 = 1_000_000_000;
        let within = 5 * SECOND..9 * SECOND;
        for (at, expected, told) in [
            (5 * SECOND, 5, None),
            (9 * SECOND, 9, None),
            (9 * SECOND + SECOND / 2, 9, None),
            (0, 5, Some(["behind", "5.0s", "4.0s"])),
            (4 * SECOND, 5, None),
            (10 * SECOND, 9, None),
            (4 * SECOND - 1, 5, Some(["behind", "1.0s", "4.0s"])),
            (12 * SECOND, 9, Some(["ahead of", "3.0s", "0.0ns"])),
        ] {
            let (found, said) = stopped_at(at, within.clone());
            let told = told.map(|[way, off, ago]| {
                format!(
                    "the other machine's clock is {way} this one's by {off} or more: the guest's time goes \
                     on as if it had stopped {ago} ago"
                )
            });
            assert_eq!((found, said), (expected * SECOND, told), "{at}");
        }
        assert_eq!(stopped_at(u64::MAX, within).0, 9 * SECOND);
        // The time of the request is later than now: this machine's clock was set.
        assert_eq!(stopped_at(7, Range { start: 9, end: 8 }), (9, None));
    }

    #[test]
    fn m4_the_date_of_a_guest_from_a_file_is_todays() {
        let before = now_ns();
        let at = before - 5_000_000_000;
        let mut clock = Clock { ticks: 77, wall_ns: 1000, at, hz: 1 };
        goes_on_now(&mut clock).expect("goes on");
        let passed = before - at..=now_ns() - at;
        assert!(passed.contains(&(clock.wall_ns - 1000)), "{} in {passed:?}", clock.wall_ns);
        assert_eq!((clock.ticks, clock.at), (77, Clock::NOW));
    }

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
