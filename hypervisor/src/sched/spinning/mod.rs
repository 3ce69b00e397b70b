//! Detects from outside that a vCPU spins.
//!
//! Suppose `n` vCPUs on a CPU wait for one lock in turn. Each that spins for its whole slice keeps
//! the next holder from running: the lock is handed on once in `n` slices, and all of them have had
//! it after `n²`. A vCPU that spins must yield at once. A processor that traps the instruction in
//! the loop (PAUSE, WFE) reports it. This does not always happen: a guest may spin without it, and
//! under QEMU's multi-threaded emulation WFE does nothing and is never trapped.
//!
//! A processor that is in the same state as before, with all registers equal, has gone around a
//! loop and only read memory, or its actions left no trace in a register. So a vCPU that runs while
//! others wait is checked now and then, and is taken to spin if its state was seen twice among the
//! last few. Twice, because a loop of system calls may pass the same place with the same registers,
//! but seldom. A wrong guess costs such a vCPU its turn, and nothing else.

/// Number of states remembered: more than the places at which a waiting loop is interrupted.
const REMEMBERED: usize = 8;
/// A vCPU is said to spin if its state has been seen this often before.
const SEEN_BEFORE: usize = 2;

/// A state that stays unchanged for this many times the first check's delay counts as a repeated
/// state.
const WHILE: u64 = 4;

/// The result of a check of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It spins.
    Spins,
    /// No evidence. Check again at this time, if it still runs and others still wait.
    Again(u64),
}

/// The observations of one vCPU. Times are clock ticks.
#[derive(Clone, Debug, Default)]
pub struct SpinWatch {
    /// Digests of the states at the last checks, no two in a row the same; 0 for none.
    seen: [u64; REMEMBERED],
    /// Index of the next one.
    place: usize,
    /// The next check in this turn; none if it has not been scheduled yet.
    next: Option<NextLook>,
}

#[derive(Clone, Copy, Debug)]
struct NextLook {
    due: u64,
    interval: u64,
    /// Since when every check has found the same state.
    same_since: u64,
}

impl SpinWatch {
    /// The vCPU's turn on a CPU begins. Observations from earlier turns count: if it spun then, it
    /// very likely still does.
    pub fn begin_turn(&mut self) {
        self.next = None;
    }

    /// The vCPU has done something: it waits for an interrupt.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Whether it is time for a [`look`](Self::look).
    pub fn is_due(&self, now: u64) -> bool {
        self.next.is_some_and(|next| now >= next.due)
    }

    /// Checks the vCPU if it is time to: `state` is everything except memory that its next
    /// instructions depend on. The first check of a turn is due `first` after the first call. As
    /// long as no state repeats, each interval is twice the one before, so that a vCPU that does
    /// not spin is not held up.
    ///
    /// Finding the previous check's state again proves nothing before the vCPU has run for a while.
    /// It may not have executed one instruction since, and never would if it were put aside for
    /// that.
    pub fn look<'s>(&mut self, now: u64, first: u64, state: impl IntoIterator<Item = &'s u64>) -> Look {
        let Some(next) = self.next else { return self.again(now, first, now) };
        if now < next.due {
            return Look::Again(next.due);
        }
        let digest = digest(state);
        let last = self.seen[(self.place + REMEMBERED - 1) % REMEMBERED];
        let proof = next.same_since.saturating_add(first * WHILE);
        if digest == last && now < proof {
            return self.again(now, proof - now, next.same_since);
        }
        let times = self.seen.iter().filter(|&&seen| seen == digest).count();
        self.seen[self.place] = digest;
        self.place = (self.place + 1) % REMEMBERED;
        match times {
            SEEN_BEFORE.. => Look::Spins,
            0 => self.again(now, next.interval.saturating_mul(2), now),
            _ => self.again(now, first, now),
        }
    }

    fn again(&mut self, now: u64, interval: u64, same_since: u64) -> Look {
        let due = now.saturating_add(interval);
        self.next = Some(NextLook { due, interval, same_since });
        Look::Again(due)
    }
}

/// Hashes a state into one number, never 0. Collisions are too rare to matter.
fn digest<'s>(state: impl IntoIterator<Item = &'s u64>) -> u64 {
    // An odd number without a pattern: the fraction of the golden ratio.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |sum: u64, word: &u64| (sum.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    state.into_iter().fold(0, mix) | 1
}

#[cfg(test)]
mod tests;
