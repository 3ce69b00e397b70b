//! When a guest that runs while it is sent is stopped for the last round, and how fast it is sent.

use crate::prelude::*;

/// What a round says that it has sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Round {
    /// Its number, from 0.
    pub(crate) round: u64,
    /// Pages that were not zero.
    pub(crate) pages: u64,
    /// Pages of zeros.
    pub(crate) zeros: u64,
    pub(crate) seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Another round, while the guest is slowed down by so many percent.
    Next { slower: u64 },
    /// The guest stands still for the last one.
    Finish,
    /// It writes faster than it is sent.
    GiveUp,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The guest may stand still for so long.
    pub(crate) downtime: Duration,
    /// After so many rounds it is given up, or slowed down more and more.
    pub(crate) rounds: u32,
    pub(crate) throttle: bool,
    /// It is stopped after the last of the rounds, whatever is left.
    pub(crate) at_any_cost: bool,
}

impl Wanted {
    /// The guest stands still from the beginning.
    pub(crate) const STILL: Self =
        Self { downtime: Duration::MAX, rounds: 0, throttle: false, at_any_cost: true };
}

/// A round is worth while if it is to be shorter than this part of the one before.
const WORTH_WHILE: f64 = 0.75;
/// A round that is so short is short enough, in seconds.
const SHORT: f64 = 0.001;
/// A guest is slowed down by so many percent more after each round.
const SLOWER: u64 = 10;
const SLOWEST: u64 = 90;

#[derive(Clone, Debug)]
pub(super) struct Policy {
    wanted: Wanted,
    before: Option<f64>,
    rounds: u32,
    slower: u64,
}

impl Policy {
    pub(super) const fn new(wanted: Wanted) -> Self {
        Self { wanted, before: None, rounds: 0, slower: 0 }
    }

    /// What follows a round. Its time is the estimate for what was written meanwhile: it is too
    /// long while rounds become shorter, and as long as the last one once they do not.
    pub(super) fn decide(&mut self, round: &Round) -> Step {
        let Wanted { downtime, rounds, throttle, at_any_cost } = self.wanted;
        self.rounds += 1;
        // The first one sends all pages, those that nobody writes, too.
        let before = self.before.replace(round.seconds).unwrap_or(f64::INFINITY);
        let gains = round.seconds > SHORT && round.seconds < before * WORTH_WHILE;
        let fits = round.seconds <= downtime.as_secs_f64();
        let is_last = self.rounds > rounds;
        match (fits, gains, is_last) {
            (true, false, _) | (true, true, true) => Step::Finish,
            (false, _, true) if at_any_cost => Step::Finish,
            (false, _, true) if !throttle || self.slower >= SLOWEST => Step::GiveUp,
            (false, false, _) if throttle => {
                self.slower = (self.slower + SLOWER).min(SLOWEST);
                Step::Next { slower: self.slower }
            }
            _ => Step::Next { slower: self.slower },
        }
    }
}

/// So many bytes per second, or as many as there are.
pub(super) struct Bandwidth {
    limit: Option<u64>,
    begun: Instant,
    bytes: u64,
}

/// What was not used for so long is lost: otherwise a burst would follow.
const SAVED_UP: Duration = Duration::from_millis(20);

impl Bandwidth {
    pub(super) fn new(limit: Option<u64>) -> Self {
        Self { limit, begun: Instant::now(), bytes: 0 }
    }

    /// How long to wait before more is sent.
    pub(super) fn wait(&mut self, now: Instant) -> Duration {
        let Some(limit) = self.limit else { return Duration::ZERO };
        let due = Duration::from_nanos(
            u64::try_from(u128::from(self.bytes) * 1_000_000_000 / u128::from(limit)).unwrap_or(u64::MAX),
        );
        let passed = now.saturating_duration_since(self.begun);
        if passed > due + SAVED_UP {
            (self.begun, self.bytes) = (now, 0);
        }
        due.saturating_sub(passed)
    }

    pub(super) const fn sent(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest of so many bytes that writes to some of them, each second so many, and is sent at a
    /// rate: the rounds, and the seconds of the last one; `None` if it is given up.
    fn sent(memory: f64, hot: f64, writes: f64, rate: f64, wanted: Wanted) -> (u32, Option<f64>) {
        let mut policy = Policy::new(wanted);
        let (mut left, mut rounds, mut speed) = (memory, 0, 1.0);
        loop {
            let seconds = left / rate;
            let step = policy.decide(&Round { round: rounds.into(), pages: 0, zeros: 0, seconds });
            rounds += 1;
            left = (writes * speed * seconds).min(hot);
            match step {
                Step::Next { slower } => speed = 1.0 - f64::from(u32::try_from(slower).unwrap()) / 100.0,
                Step::Finish => return (rounds, Some(left / rate)),
                Step::GiveUp => return (rounds, None),
            }
            assert!(rounds < 1000, "it never ends");
        }
    }

    const MB: f64 = 1e6;
    const USUAL: Wanted =
        Wanted { downtime: Duration::from_millis(50), rounds: 30, throttle: false, at_any_cost: false };

    #[test]
    fn the_stop_is_as_short_as_rounds_can_make_it() {
        // 64 MB/s, at 320 MB/s: each round is a fifth of the one before.
        let (rounds, stop) = sent(1e9, 5e8, 64.0 * MB, 320.0 * MB, USUAL);
        assert!(rounds < 9 && stop.expect("ends") < 0.001, "{rounds} {stop:?}");
        // It writes the same 8 MB all the time: no round is shorter than 25 ms.
        let (rounds, stop) = sent(1e9, 8.0 * MB, 1e9, 320.0 * MB, USUAL);
        assert!(rounds < 5 && (stop.expect("ends") - 0.025).abs() < 1e-6, "{rounds} {stop:?}");
        // An idle guest needs one round more.
        let (rounds, stop) = sent(1e9, 4096.0, 10.0 * MB, 320.0 * MB, USUAL);
        assert!(rounds <= 3 && stop.expect("ends") < 0.001, "{rounds} {stop:?}");
    }

    #[test]
    fn a_guest_that_writes_too_fast_is_given_up_slowed_down_or_stopped() {
        let fast = |wanted| sent(1e9, 5e8, 400.0 * MB, 320.0 * MB, wanted);
        assert_eq!(fast(USUAL), (31, None));
        let (_, stop) = fast(Wanted { throttle: true, ..USUAL });
        assert!(stop.expect("ends") <= 0.05, "{stop:?}");
        let (rounds, stop) = fast(Wanted { at_any_cost: true, ..USUAL });
        assert!(rounds == 31 && stop.expect("ends") > 1.0, "{stop:?}");
        assert_eq!(fast(Wanted::STILL).0, 1);
        // The second is shorter than the first; then it is slowed down nine times, and given up.
        let hopeless = |throttle| sent(1e9, 5e8, 1e12, 320.0 * MB, Wanted { throttle, rounds: 3, ..USUAL });
        assert_eq!((hopeless(true), hopeless(false)), ((12, None), (4, None)));
    }

    #[test]
    fn rounds_go_on_while_each_is_much_shorter_and_longer_than_a_millisecond() {
        for (before, seconds, expected) in [
            (1.0, 0.05, Step::Next { slower: 0 }),
            (0.05, 0.05, Step::Finish),
            (0.05, 0.0501, Step::Next { slower: 0 }),
            // Three quarters of it.
            (0.0625, 0.046_875, Step::Finish),
            (0.0625, 0.046, Step::Next { slower: 0 }),
            (1.0, 0.001, Step::Finish),
            (1.0, 0.0011, Step::Next { slower: 0 }),
        ] {
            let mut policy = Policy::new(USUAL);
            let mut decide = |seconds| policy.decide(&Round { round: 0, pages: 0, zeros: 0, seconds });
            decide(before);
            assert_eq!(decide(seconds), expected, "{before}, {seconds}");
        }
    }

    #[test]
    fn bytes_are_sent_at_their_rate_and_without_bursts() {
        let mut bandwidth = Bandwidth::new(Some(1_000_000));
        let begun = bandwidth.begun;
        let at = |ms| begun + Duration::from_millis(ms);
        assert_eq!(bandwidth.wait(at(20)), Duration::ZERO);
        bandwidth.sent(50_000);
        assert_eq!(bandwidth.wait(at(20)), Duration::from_millis(30), "20 ms may be saved up");
        assert_eq!(bandwidth.wait(at(1000)), Duration::ZERO);
        bandwidth.sent(50_000);
        let wait = bandwidth.wait(at(1000));
        assert_eq!(wait, Duration::from_millis(50), "nothing was saved up");
        assert_eq!(Bandwidth::new(None).wait(at(0)), Duration::ZERO);
    }
}
