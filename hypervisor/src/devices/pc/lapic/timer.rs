//! The local APIC's timer, computed from the TSC: it stores its deadline and never counts.

use migration::frame::is_same_rate;
use migration::{Archive, Described, Flaw, described};

/// The rates that the timer is computed with, in Hz. The guest is told the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerClock {
    /// Rate of the TSC values that the local APIC is given.
    pub tsc_hz: u64,
    /// Rate of the timer's input, before the divide configuration.
    pub apic_hz: u64,
}

/// Shortest period in periodic mode, in microseconds: shorter ones are stretched to it. A shorter
/// one could not be served anyway, and the guest would see nothing but timer interrupts.
pub const PERIOD_US_MIN: u64 = 50;

/// Timer mode, bits 18:17 of the LVT entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    OneShot,
    Periodic,
    TscDeadline,
}

impl Mode {
    /// The mode of an LVT entry; `None` for the reserved encoding.
    pub(super) const fn of(lvt: u32) -> Option<Self> {
        match lvt >> 17 & 3 {
            0 => Some(Self::OneShot),
            1 => Some(Self::Periodic),
            2 => Some(Self::TscDeadline),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// Counts down. It is due `due` input ticks after the TSC was `start`, which is at TSC value
    /// `deadline`. Each period that ends adds to `due`, so rounding errors do not accumulate.
    Counting {
        start: u64,
        due: u64,
        deadline: u64,
    },
    /// Waits until the TSC has this value.
    Deadline(u64),
}

/// The timer without its LVT entry, which belongs to the local APIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timer {
    clock: TimerClock,
    divide: u32,
    initial: u32,
    state: State,
}

// A guest that has come from elsewhere goes on with the rate of the TSC that it was told.
described!(TimerClock: tsc_hz (told_rate); same apic_hz);

/// The rate of the TSC, which [may differ](is_same_rate) a little from that of the machine.
///
/// # Errors
///
/// [`Flaw::Rates`], or that it cannot be read.
pub fn told_rate(hz: &mut u64, archive: &mut Archive<'_>) -> Result<(), Flaw> {
    let (here, mut there) = (*hz, *hz);
    there.describe(archive)?;
    if archive.is_random() {
        return Ok(());
    }
    if !is_same_rate(here, there) {
        return Err(Flaw::Rates("the rate of the TSC", here, there));
    }
    *hz = there;
    Ok(())
}

/// By the guest's TSC, which goes on.
impl Described for State {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let out = |state: &Self| match *state {
            Self::Idle => (0_u8, [0; 3]),
            Self::Counting { start, due, deadline } => (1, [start, due, deadline]),
            Self::Deadline(deadline) => (2, [deadline, 0, 0]),
        };
        archive.through(self, out, |(kind, [first, due, deadline])| match kind {
            0 => Some(Self::Idle),
            1 => Some(Self::Counting { start: first, due, deadline }),
            2 => Some(Self::Deadline(first)),
            _ => None,
        })
    }
}

described!(Timer: clock, divide & 0b1011, initial, state);

impl Timer {
    pub(super) fn new(clock: TimerClock) -> Self {
        let clock = TimerClock { tsc_hz: clock.tsc_hz.max(1), apic_hz: clock.apic_hz.max(1) };
        Self { clock, divide: 0, initial: 0, state: State::Idle }
    }

    #[cfg(test)]
    pub(super) const fn clock(&self) -> TimerClock {
        self.clock
    }

    pub(super) fn reset(&mut self) {
        *self = Self::new(self.clock);
    }

    /// The divide configuration register: bits 3, 1 and 0.
    pub(super) const fn divide(&self) -> u32 {
        self.divide
    }

    pub(super) const fn initial_count(&self) -> u32 {
        self.initial
    }

    /// Input ticks per count: 111b divides by 1, n by 2^(n+1) (SDM vol. 3 figure 12-10).
    const fn divisor(&self) -> u64 {
        let code = (self.divide >> 1 & 4) | (self.divide & 3);
        if code == 7 { 1 } else { 2 << code }
    }

    fn period(&self) -> u64 {
        let least = self.clock.apic_hz / (1_000_000 / PERIOD_US_MIN);
        (u64::from(self.initial) * self.divisor()).max(least).max(1)
    }

    fn elapsed(&self, start: u64, now: u64) -> u64 {
        scale(now.saturating_sub(start), self.clock.apic_hz, self.clock.tsc_hz)
    }

    fn count_from(&mut self, start: u64, due: u64) {
        let deadline = start.saturating_add(scale_up(due, self.clock.tsc_hz, self.clock.apic_hz));
        self.state = State::Counting { start, due, deadline };
    }

    /// Writes the initial count: starts over, or stops if it is 0.
    pub(super) fn set_initial_count(&mut self, count: u32, mode: Mode, now: u64) {
        self.initial = count;
        self.state = State::Idle;
        match mode {
            _ if count == 0 => {}
            Mode::OneShot => self.count_from(now, u64::from(count) * self.divisor()),
            Mode::Periodic => self.count_from(now, self.period()),
            Mode::TscDeadline => {}
        }
    }

    /// Writes the divide configuration; a count in progress continues from its present value, at
    /// the new rate.
    pub(super) fn set_divide(&mut self, divide: u32, mode: Mode, now: u64) {
        let left = self.current_count(mode, now);
        self.divide = divide;
        if let State::Counting { .. } = self.state {
            self.count_from(now, u64::from(left) * self.divisor());
        }
    }

    /// Remaining counts, 0 when it does not count. A one-shot count stops at 0 (APM vol. 2 section
    /// 16.4.1), whether or not its end has been collected, which it is not while the timer is
    /// masked.
    pub(super) fn current_count(&self, mode: Mode, now: u64) -> u32 {
        let State::Counting { start, due, .. } = self.state else { return 0 };
        let elapsed = self.elapsed(start, now);
        let left = match due.checked_sub(elapsed) {
            Some(left) => left,
            None if mode != Mode::Periodic => 0,
            // The end has not been collected: the count is in a later period already.
            None => (self.period() - (elapsed - due) % self.period()) % self.period(),
        };
        u32::try_from(left.div_ceil(self.divisor())).unwrap_or(u32::MAX).min(self.initial)
    }

    /// Writes the TSC deadline; 0 disarms.
    pub(super) fn set_deadline(&mut self, deadline: u64) {
        self.state = if deadline == 0 { State::Idle } else { State::Deadline(deadline) };
    }

    /// The guest's value of the TSC deadline: 0 once it has passed.
    pub(super) const fn deadline(&self, now: u64) -> u64 {
        match self.state {
            State::Deadline(deadline) if deadline > now => deadline,
            _ => 0,
        }
    }

    /// Stops, for a change between TSC-deadline and the counting modes.
    pub(super) fn disarm(&mut self) {
        self.initial = 0;
        self.state = State::Idle;
    }

    /// The TSC value at which [`Self::expire`] has something to collect.
    pub(super) const fn next_deadline(&self) -> Option<u64> {
        match self.state {
            State::Idle => None,
            State::Counting { deadline, .. } | State::Deadline(deadline) => Some(deadline),
        }
    }

    /// Collects an end that has passed, and arms the next period. Periods that were missed entirely
    /// yield one interrupt; the next end stays on the grid of the first.
    pub(super) fn expire(&mut self, mode: Mode, now: u64) -> bool {
        if self.next_deadline().is_none_or(|deadline| now < deadline) {
            return false;
        }
        match self.state {
            State::Counting { start, due, .. } if mode == Mode::Periodic => {
                let missed = self.elapsed(start, now).saturating_sub(due) / self.period();
                let step = self.period().saturating_mul(missed.saturating_add(1));
                self.count_from(start, due.saturating_add(step));
            }
            _ => self.state = State::Idle,
        }
        true
    }

    /// The TSC of `now` jumped by `delta`: a count in progress ends when it would have ended, a TSC
    /// deadline is a value of the new TSC.
    pub(super) fn tsc_jumped(&mut self, delta: i64) {
        if let State::Counting { start, deadline, .. } = &mut self.state {
            *start = start.wrapping_add_signed(delta);
            *deadline = deadline.wrapping_add_signed(delta);
        }
    }
}

/// `value * to / from`, rounded down and saturating.
fn scale(value: u64, to: u64, from: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(to) / u128::from(from)).unwrap_or(u64::MAX)
}

/// `value * to / from`, rounded up and saturating: a timer is never early.
fn scale_up(value: u64, to: u64, from: u64) -> u64 {
    u64::try_from((u128::from(value) * u128::from(to)).div_ceil(u128::from(from))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2.6 GHz and 1 GHz: a count is 2.6 TSC ticks, so rounding shows.
    fn timer() -> Timer {
        let mut timer = Timer::new(TimerClock { tsc_hz: 2_600_000_000, apic_hz: 1_000_000_000 });
        timer.set_divide(0b1011, Mode::OneShot, 0);
        timer
    }

    #[test]
    fn divide_configuration_codes() {
        let mut timer = timer();
        for (code, divisor) in [(0, 2), (1, 4), (2, 8), (3, 16), (8, 32), (9, 64), (10, 128), (11, 1)] {
            timer.set_divide(code, Mode::OneShot, 0);
            assert_eq!(timer.divisor(), divisor, "code {code:#b}");
        }
    }

    #[test]
    fn one_shot_is_never_early_and_fires_once() {
        let mut timer = timer();
        timer.set_initial_count(1001, Mode::OneShot, 5000);
        let deadline = timer.next_deadline().unwrap();
        assert_eq!(deadline, 5000 + 2603, "1001 * 2.6 rounded up");
        assert!(!timer.expire(Mode::OneShot, deadline - 1));
        assert_eq!(timer.current_count(Mode::OneShot, 5000), 1001);
        assert_eq!(timer.current_count(Mode::OneShot, deadline - 1), 1);
        assert!(timer.expire(Mode::OneShot, deadline));
        assert!(!timer.expire(Mode::OneShot, u64::MAX));
        assert_eq!((timer.current_count(Mode::OneShot, deadline), timer.initial_count()), (0, 1001));
    }

    #[test]
    fn periodic_does_not_drift() {
        let mut timer = timer();
        let count = 100_001;
        timer.set_initial_count(count, Mode::Periodic, 0);
        for n in 1..=1000_u64 {
            let deadline = timer.next_deadline().unwrap();
            assert_eq!(deadline, (n * u64::from(count) * 26).div_ceil(10));
            // Collected late by varying amounts: the grid does not move.
            assert!(timer.expire(Mode::Periodic, deadline + n * 7));
        }
    }

    #[test]
    fn periodic_far_behind_catches_up_in_one_step() {
        let mut timer = timer();
        timer.set_initial_count(100_000, Mode::Periodic, 0);
        let now = u64::MAX / 8;
        assert!(timer.expire(Mode::Periodic, now));
        let next = timer.next_deadline().unwrap();
        assert!(next > now && next - now <= 260_000);
        assert_eq!(next % 260_000, 0);
        assert!(!timer.expire(Mode::Periodic, now));
    }

    #[test]
    fn count_that_is_not_collected_is_read_from_the_later_period() {
        let mut timer = timer();
        timer.set_initial_count(100_000, Mode::Periodic, 0);
        assert_eq!(timer.current_count(Mode::Periodic, 260_000 * 3 + 26), 99_990);
    }

    /// Masked, so the end is not collected: the count must not wrap around.
    #[test]
    fn u21_a_one_shot_count_stops_at_0() {
        let mut timer = timer();
        timer.set_initial_count(1000, Mode::OneShot, 0);
        let end = timer.next_deadline().unwrap();
        for late in [0, 1, 26, 1300, 2600, 10 * 2600, u64::MAX - end] {
            assert_eq!(timer.current_count(Mode::OneShot, end + late), 0, "{late} ticks late");
        }
        timer.set_divide(0b0000, Mode::OneShot, end + 1300);
        assert_eq!(timer.current_count(Mode::OneShot, end + 1300), 0, "another rate starts nothing");
    }

    #[test]
    fn shortest_period_is_stretched() {
        let mut timer = timer();
        timer.set_initial_count(1, Mode::Periodic, 0);
        assert_eq!(timer.next_deadline(), Some(PERIOD_US_MIN * 2600));
        assert!(timer.current_count(Mode::Periodic, 0) <= 1);
        timer.set_initial_count(1, Mode::OneShot, 0);
        assert_eq!(timer.next_deadline(), Some(3));
    }

    #[test]
    fn divide_change_keeps_what_is_left() {
        let mut timer = timer();
        timer.set_initial_count(1000, Mode::OneShot, 0);
        timer.set_divide(0b0000, Mode::OneShot, 1300);
        assert_eq!(timer.current_count(Mode::OneShot, 1300), 500);
        assert_eq!(timer.next_deadline(), Some(1300 + 2600));
    }

    #[test]
    fn tsc_jump_moves_a_count_but_not_a_deadline() {
        let mut timer = timer();
        timer.set_initial_count(1000, Mode::OneShot, 10_000);
        timer.tsc_jumped(-10_000);
        assert_eq!(timer.next_deadline(), Some(2600));
        timer.set_deadline(7777);
        timer.tsc_jumped(100);
        assert_eq!(timer.next_deadline(), Some(7777));
    }

    #[test]
    fn deadline_reads_zero_once_passed() {
        let mut timer = timer();
        timer.set_deadline(100);
        assert_eq!((timer.deadline(99), timer.deadline(100)), (100, 0));
        assert!(timer.expire(Mode::TscDeadline, 100));
        assert_eq!(timer.next_deadline(), None);
        timer.set_deadline(100);
        timer.set_deadline(0);
        assert_eq!(timer.next_deadline(), None);
    }

    #[test]
    fn extremes_do_not_overflow() {
        let mut timer = Timer::new(TimerClock { tsc_hz: u64::MAX, apic_hz: 1 });
        timer.set_divide(10, Mode::OneShot, 0);
        timer.set_initial_count(u32::MAX, Mode::Periodic, u64::MAX - 1);
        assert_eq!(timer.next_deadline(), Some(u64::MAX));
        assert!(timer.expire(Mode::Periodic, u64::MAX));
        let mut timer = Timer::new(TimerClock { tsc_hz: 0, apic_hz: 0 });
        timer.set_initial_count(1, Mode::Periodic, 0);
        assert!(timer.expire(Mode::Periodic, u64::MAX));
        assert!(timer.current_count(Mode::Periodic, u64::MAX) <= 1);
    }
}
