//! Limits a guest's share of the log.

/// Number of lines that a guest can cause in a burst. After that it gets one line per period.
pub const BURST: u32 = 64;

/// The remaining lines of a guest.
#[derive(Debug)]
pub struct Quota {
    lines: u32,
    since: u64,
    /// Lines left out since the last one was written.
    left_out: u64,
}

/// The answer to a request to write a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It may be written, after this many that were left out.
    Write {
        /// Their number.
        left_out: u64,
    },
    /// It is left out.
    LeaveOut,
}

impl Quota {
    /// A full quota.
    pub const FULL: Self = Self { lines: BURST, since: 0, left_out: 0 };

    /// Requests a line at `now`. A line is added back every `period`, in the same unit.
    pub fn ask(&mut self, now: u64, period: u64) -> Answer {
        let given_back = now.saturating_sub(self.since) / period.max(1);
        if given_back >= u64::from(BURST - self.lines) {
            (self.lines, self.since) = (BURST, now);
        } else {
            self.lines += given_back as u32;
            self.since += given_back * period;
        }
        if self.lines == 0 {
            self.left_out += 1;
            return Answer::LeaveOut;
        }
        self.lines -= 1;
        Answer::Write { left_out: core::mem::take(&mut self.left_out) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 100;

    fn written(quota: &mut Quota, times: impl IntoIterator<Item = u64>) -> u64 {
        let answers = times.into_iter().map(|now| quota.ask(now, PERIOD));
        answers.filter(|answer| matches!(answer, Answer::Write { .. })).count() as u64
    }

    #[test]
    fn u5_a_guest_fills_no_log() {
        let mut quota = Quota::FULL;
        assert_eq!(written(&mut quota, [7; 10_000]), BURST.into(), "at once");
        assert_eq!(written(&mut quota, 8..8 + 50 * PERIOD), 50, "and one in a period from then on");
        let later = 1000 * PERIOD;
        assert_eq!(written(&mut quota, [later; 10_000]), BURST.into(), "after a silence, as at first");
    }

    #[test]
    fn lines_that_are_left_out_are_counted_once() {
        let mut quota = Quota::FULL;
        assert_eq!(quota.ask(1, PERIOD), Answer::Write { left_out: 0 });
        written(&mut quota, [1; 70]);
        let left_out = 71 - u64::from(BURST);
        assert_eq!(quota.ask(1 + PERIOD, PERIOD), Answer::Write { left_out });
        assert_eq!(quota.ask(1 + 2 * PERIOD, PERIOD), Answer::Write { left_out: 0 });
    }

    #[test]
    fn strange_clocks_are_survived() {
        let mut quota = Quota::FULL;
        written(&mut quota, [u64::MAX, 0, u64::MAX, 1]);
        for period in [0, 1, u64::MAX] {
            let _ = quota.ask(u64::MAX, period);
            let _ = quota.ask(0, period);
        }
    }
}
