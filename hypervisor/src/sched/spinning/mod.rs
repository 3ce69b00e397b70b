//! Who spins, told from outside.
//!
//! Of vCPUs that wait for one lock in turn, each that spins for its whole slice keeps the next
//! holder from running: with `n` of them on a CPU the lock is handed on once in `n` slices, and all
//! of them have had it after `n²`. A vCPU that spins has to give way at once. A processor that
//! traps the instruction in the loop (PAUSE, WFE) says so. Not all do: a guest may spin without it,
//! and under QEMU's multi-threaded emulation WFE does nothing and is never trapped.
//!
//! A processor in a state in which it was before, its registers being all the same, has gone around
//! a loop and done nothing but look at memory, or what it did left no trace in a register. So a
//! vCPU that runs while others wait is looked at now and then, and spins if its state was seen
//! twice among the last few. Twice, because a loop of system calls may come by the same place with
//! the same registers, but seldom. To be wrong costs such a vCPU its turn, and nothing else.

/// States that are remembered. More than a loop that waits has places at which it is interrupted.
const REMEMBERED: usize = 8;
/// As often as this a state has been seen before when the vCPU is said to spin.
const SEEN_BEFORE: usize = 2;

/// So many times the first look's time, a state that does not change is taken for one that was come
/// back to.
const WHILE: u64 = 4;

/// What a look at a vCPU says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It spins.
    Spins,
    /// Nothing. Look again at this time, if it still runs and others still wait.
    Again(u64),
}

/// What was seen of one vCPU. Times are clock ticks.
#[derive(Clone, Debug, Default)]
pub struct SpinWatch {
    /// Digests of the states at the last looks, no two in a row the same; 0 for none.
    seen: [u64; REMEMBERED],
    /// Where the next one goes.
    place: usize,
    /// The next look in this turn; none if nothing has been said of it yet.
    next: Option<NextLook>,
}

#[derive(Clone, Copy, Debug)]
struct NextLook {
    due: u64,
    /// How long after the look before.
    interval: u64,
    /// Since when every look has found the same.
    same_since: u64,
}

impl SpinWatch {
    /// Nothing seen.
    #[must_use]
    pub const fn new() -> Self {
        Self { seen: [0; REMEMBERED], place: 0, next: None }
    }

    /// The vCPU comes to a CPU. What was seen in its turns before counts: if it spun, it does so
    /// still in all likelihood.
    pub const fn begin_turn(&mut self) {
        self.next = None;
    }

    /// The vCPU has done something: it waits for an interrupt.
    pub const fn forget(&mut self) {
        *self = Self::new();
    }

    /// Whether it is time for a [`look`](Self::look).
    #[must_use]
    pub fn is_due(&self, now: u64) -> bool {
        self.next.is_some_and(|next| now >= next.due)
    }

    /// Looks at the vCPU if it is time to: `state` is all that its next instructions depend on but
    /// memory. The first look of a turn comes `first` after the first call. As long as nothing is
    /// seen twice, each takes twice as long to come as the one before: a vCPU that does not spin is
    /// not held up.
    ///
    /// The state of the look before, found again, proves nothing before the vCPU has run for a
    /// while: it may not have executed one instruction since, and would never if it were put aside
    /// for it.
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

/// One number for many, never 0. Two that differ have the same one so seldom that it does not
/// matter.
fn digest<'s>(state: impl IntoIterator<Item = &'s u64>) -> u64 {
    // An odd number without a pattern: the fraction of the golden ratio.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |sum: u64, word: &u64| (sum.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    state.into_iter().fold(0, mix) | 1
}

#[cfg(test)]
mod tests;
