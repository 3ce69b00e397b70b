//! One CPU's queue: the waiting vCPUs, the running vCPU, and the pending timers. Pure state; times
//! are ticks of the clock.
//!
//! There are two lines. A vCPU that an interrupt wakes, or that was running, waits among the vCPUs
//! with work, ordered by virtual time. A vCPU that only its timer wakes waits in the timer line,
//! first come, first served. While neither line is empty, each gets half of the CPU.
//!
//! The reason is the behaviour of many idle vCPUs that tick: Linux ticks on every CPU until it has
//! a better clock source. Where all the ticks take longer than the available time, they would fill
//! any CPU time that fairness among vCPUs gives them, and a vCPU with work would get one part in as
//! many as there are vCPUs. A late tick, however, costs no more than one in time, and stands for
//! the ticks that it replaces. In a separate line the ticks become only as many as half of the CPU
//! can bear.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::QueueState;

/// Index of a vCPU in its virtual machine.
pub type VcpuIndex = u32;

/// Time spans that make up the policy, in ticks of the clock.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Longest run while others wait.
    pub slice: u64,
    /// How much longer than a waking vCPU the running one must have run to be preempted for it.
    pub wakeup_margin: u64,
}

impl Policy {
    /// The policy for a slice of `slice` ticks: a sleeper that wakes gets at most half a slice of
    /// credit, and the margin is a quarter of that, so that a wake-up preempts a vCPU that has run
    /// for longer than this.
    pub const fn new(slice: u64) -> Self {
        Self { slice, wakeup_margin: slice / 8 }
    }

    /// How long a vCPU runs, while others wait, before the first check whether it spins.
    pub const fn spin_look(&self) -> u64 {
        self.slice / 32
    }

    /// The maximum time for which a vCPU that waits for memory to change is skipped.
    pub const fn passive_max(&self) -> u64 {
        self.slice.saturating_mul(32)
    }

    const fn sleeper_credit(&self) -> i64 {
        (self.slice / 2).cast_signed()
    }
}

/// Where in a queue a vCPU waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Line {
    /// Among the vCPUs that have work.
    #[default]
    Work,
    /// Among the vCPUs that their timers have woken.
    Timer,
}

/// The state that a vCPU carries from one queue to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Its virtual time beyond the floor of the queue that it comes from; negative if it was owed
    /// time.
    lag: i64,
    line: Line,
}

impl Standing {
    /// Whether it goes into the timer line.
    pub fn is_expired(self) -> bool {
        self.line == Line::Timer
    }
}

/// A vCPU with the time that it has run, on the queue's own scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    virtual_time: u64,
    vcpu: VcpuIndex,
    /// It waits for memory to change, and is skipped until it may go on. Always false in the timer
    /// line.
    is_passive: bool,
}

/// The vCPU that runs.
#[derive(Clone, Copy, Debug)]
struct Running {
    vcpu: VcpuIndex,
    virtual_time: u64,
    since: u64,
    /// The line that it waited in.
    line: Line,
}

/// Why a vCPU is put back into the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutBack {
    /// Its slice is over, or another vCPU has a stronger claim.
    Preempted,
    /// It spins, and goes behind all waiting vCPUs.
    Yielded,
    /// It waits for a word in memory to change, and is skipped until the word may have changed.
    Passive,
}

/// A CPU's queue.
#[derive(Debug, Default)]
pub struct RunQueue {
    /// The vCPUs with work, sorted by falling virtual time: the next to run is the last.
    waiting: Vec<Waiting>,
    /// The timer line.
    expired: VecDeque<Waiting>,
    /// How much more the timer line's vCPUs have run than those with work.
    lead: i64,
    /// Sorted by falling deadline: the next to expire is the last.
    timers: Vec<(u64, VcpuIndex)>,
    running: Option<Running>,
    /// How many of the vCPUs with work wait for memory to change.
    passive: usize,
    /// No vCPU with work has a lower virtual time, except for what sleepers are owed. Only grows.
    floor: u64,
}

impl RunQueue {
    /// An empty queue with room for `vcpus`, so that it never allocates later.
    pub fn with_capacity(vcpus: usize) -> Self {
        Self {
            waiting: Vec::with_capacity(vcpus),
            expired: VecDeque::with_capacity(vcpus),
            timers: Vec::with_capacity(vcpus),
            ..Self::default()
        }
    }

    /// Number of vCPUs that wait or run here.
    pub fn load(&self) -> usize {
        self.waiting.len() + self.expired.len() + usize::from(self.running.is_some())
    }

    /// Whether nothing runs or waits here.
    pub fn is_idle(&self) -> bool {
        self.load() == 0
    }

    /// Whether any vCPU waits.
    pub fn has_waiting(&self) -> bool {
        self.waits_in(Line::Work) || self.waits_in(Line::Timer)
    }

    /// The vCPU that runs here.
    pub fn running(&self) -> Option<VcpuIndex> {
        self.running.map(|running| running.vcpu)
    }

    #[inline]
    fn waits_in(&self, line: Line) -> bool {
        match line {
            Line::Work => !self.waiting.is_empty(),
            Line::Timer => !self.expired.is_empty(),
        }
    }

    /// Puts a vCPU into a line. If the line was empty, the other line owes it at most a sleeper's
    /// credit.
    #[inline(always)]
    fn insert(&mut self, line: Line, waiting: Waiting, policy: &Policy) {
        if !self.waits_in(line) && self.running.is_none_or(|running| running.line != line) {
            self.lead = match line {
                Line::Work => self.lead.min(policy.sleeper_credit()),
                Line::Timer => self.lead.max(-policy.sleeper_credit()),
            };
        }
        match line {
            Line::Work => {
                // Behind vCPUs with the same virtual time: first come, first served.
                let place = self.waiting.partition_point(|other| other.virtual_time > waiting.virtual_time);
                self.waiting.insert(place, waiting);
            }
            Line::Timer => self.expired.push_back(waiting),
        }
    }

    /// Adds a vCPU that woke up or came from another queue. A sleeper is owed at most the credit.
    ///
    /// Returns whether the vCPU that runs here must make room sooner than it was told.
    #[inline(always)]
    #[must_use = "the running vCPU does not know yet"]
    pub fn enqueue(&mut self, vcpu: VcpuIndex, standing: Standing, policy: &Policy) -> bool {
        let lag = standing.lag.clamp(-policy.sleeper_credit(), policy.slice.cast_signed());
        let virtual_time = self.floor.saturating_add_signed(lag);
        // In the timer line one more makes no difference. A vCPU with work may preempt at once.
        let sooner = standing.line == Line::Work || !self.waits_in(Line::Timer);
        self.insert(standing.line, Waiting { virtual_time, vcpu, is_passive: false }, policy);
        sooner
    }

    /// Moves a vCPU from the timer line to those with work: it has been interrupted.
    ///
    /// Returns whether it was there. If so, the vCPU that runs here may have to make room.
    pub fn promote(&mut self, vcpu: VcpuIndex, policy: &Policy) -> bool {
        let place = self.expired.iter().position(|waiting| waiting.vcpu == vcpu);
        let Some(waiting) = place.and_then(|place| self.expired.remove(place)) else { return false };
        self.insert(Line::Work, waiting, policy);
        true
    }

    /// The standing of a vCPU that blocked here, from its virtual time then.
    #[inline]
    pub fn standing(&self, virtual_time: u64, line: Line) -> Standing {
        Standing { lag: virtual_time.wrapping_sub(self.floor).cast_signed(), line }
    }

    /// Takes the next vCPU of the line that has run less, and lets it run. A vCPU that waits for
    /// memory to change is skipped while `may_go` returns false for it. If all are skipped, the
    /// next of them runs anyway.
    #[inline(always)] // A part of each switch.
    pub fn pick(&mut self, now: u64, may_go: impl FnMut(VcpuIndex) -> bool) -> Option<VcpuIndex> {
        debug_assert!(self.running.is_none());
        let timer_first = self.waits_in(Line::Timer) && (!self.waits_in(Line::Work) || self.lead < 0);
        let (line, next) = if timer_first {
            (Line::Timer, self.expired.pop_front()?)
        } else {
            let next = if self.passive == 0 { self.waiting.pop()? } else { self.take_active(may_go)? };
            self.floor = self.floor.max(next.virtual_time);
            (Line::Work, next)
        };
        self.running = Some(Running { vcpu: next.vcpu, virtual_time: next.virtual_time, since: now, line });
        Some(next.vcpu)
    }

    /// Takes the next vCPU with work that is not passive or may go on.
    #[cold]
    #[inline(never)]
    fn take_active(&mut self, mut may_go: impl FnMut(VcpuIndex) -> bool) -> Option<Waiting> {
        let place = self.waiting.iter().rposition(|waiting| !waiting.is_passive || may_go(waiting.vcpu));
        let taken = self.remove(place.or(self.waiting.len().checked_sub(1))?);
        Some(taken)
    }

    fn remove(&mut self, place: usize) -> Waiting {
        let waiting = self.waiting.remove(place);
        self.passive -= usize::from(waiting.is_passive);
        waiting
    }

    /// Ends the turn of the running vCPU: charges the time to it and to its line.
    #[inline]
    fn end_turn(&mut self, now: u64) -> Option<Waiting> {
        let running = self.running.take()?;
        let had = now.saturating_sub(running.since);
        self.lead = match running.line {
            Line::Work => self.lead.saturating_sub_unsigned(had),
            Line::Timer => self.lead.saturating_add_unsigned(had),
        };
        Some(Waiting { virtual_time: running.virtual_time + had, vcpu: running.vcpu, is_passive: false })
    }

    /// Takes the running vCPU off the CPU and puts it back among the vCPUs that have work.
    pub fn put_back(&mut self, now: u64, why: PutBack, policy: &Policy) {
        let Some(mut waiting) = self.end_turn(now) else { return };
        match (why, self.waiting.first()) {
            (PutBack::Preempted, _) => {}
            // It leaves its line's turn to the other line.
            (_, None) => self.lead = self.lead.min(-policy.sleeper_credit()),
            (PutBack::Yielded, Some(last)) => {
                waiting.virtual_time = waiting.virtual_time.max(last.virtual_time);
            }
            (PutBack::Passive, Some(_)) => {}
        }
        waiting.is_passive = why == PutBack::Passive;
        self.passive += usize::from(waiting.is_passive);
        self.insert(Line::Work, waiting, policy);
    }

    /// Takes the running vCPU off the CPU because it blocks or stops; returns its virtual time.
    pub fn take_off(&mut self, now: u64) -> u64 {
        self.end_turn(now).map_or(0, |waiting| waiting.virtual_time)
    }

    /// Removes, for another queue, the waiting vCPU that would run last here.
    pub fn steal(&mut self) -> Option<(VcpuIndex, Standing)> {
        let (stolen, line) = match self.expired.pop_back() {
            Some(stolen) => (stolen, Line::Timer),
            None if self.waiting.is_empty() => return None,
            // A passive vCPU becomes active there: that CPU has nothing else to do.
            None => (self.remove(0), Line::Work),
        };
        Some((stolen.vcpu, self.standing(stolen.virtual_time, line)))
    }

    /// The queue's state as it concerns the CPU.
    #[inline(always)]
    pub fn queue_state(&self, now: u64, policy: &Policy) -> QueueState {
        let timer = self.next_timer();
        let (should_switch, next_event) = match self.running {
            Some(running) if self.has_waiting() => {
                let turn_end = running.since.saturating_add(self.turn(&running, policy));
                let should_switch = now >= turn_end || self.is_preempted(&running, now, policy);
                (should_switch, turn_end.min(self.useful_timer(&running, timer, policy)))
            }
            _ => (false, timer),
        };
        QueueState { should_switch, has_waiting: self.has_waiting(), timer_expired: timer <= now, next_event }
    }

    /// How long the running vCPU may run while others wait.
    #[inline]
    fn turn(&self, running: &Running, policy: &Policy) -> u64 {
        match running.line {
            Line::Work if !self.waits_in(Line::Timer) => policy.slice,
            Line::Work => {
                // Those with work get ahead by the credit, so that the lines do not alternate at
                // every turn.
                let turn = self.lead.saturating_add(policy.sleeper_credit());
                turn.clamp(policy.wakeup_margin.cast_signed(), policy.slice.cast_signed()).cast_unsigned()
            }
            // A turn longer than a tick is work, and the others in the timer line must not wait for
            // it.
            Line::Timer => policy.wakeup_margin,
        }
    }

    /// Whether a waiting vCPU with work has run less than the running one by more than the margin.
    #[inline]
    fn is_preempted(&self, running: &Running, now: u64, policy: &Policy) -> bool {
        let ran = now.saturating_sub(running.since);
        ran >= policy.wakeup_margin
            && running.line == Line::Work
            && self.first_active().is_some_and(|next| {
                running.virtual_time + ran > next.virtual_time.saturating_add(policy.wakeup_margin)
            })
    }

    /// The next vCPU with work that waits for nothing but the CPU.
    #[inline(always)]
    fn first_active(&self) -> Option<&Waiting> {
        if self.passive == 0 { self.waiting.last() } else { self.search_active() }
    }

    #[cold]
    fn search_active(&self) -> Option<&Waiting> {
        self.waiting.iter().rfind(|waiting| !waiting.is_passive)
    }

    /// When the next timer, at `timer`, is worth an interruption while others wait.
    #[inline]
    fn useful_timer(&self, running: &Running, timer: u64, policy: &Policy) -> u64 {
        if self.waits_in(Line::Timer) {
            // It would only make the line longer.
            u64::MAX
        } else {
            // No vCPU is preempted before the end of the margin.
            timer.max(running.since.saturating_add(policy.wakeup_margin))
        }
    }

    /// Remembers to wake a vCPU that blocks here.
    pub fn add_timer(&mut self, deadline: u64, vcpu: VcpuIndex) {
        let place = self.timers.partition_point(|&(other, _)| other > deadline);
        self.timers.insert(place, (deadline, vcpu));
    }

    /// Forgets a vCPU's timer, if it has one here.
    pub fn remove_timer(&mut self, vcpu: VcpuIndex) {
        self.timers.retain(|&(_, other)| other != vcpu);
    }

    /// Takes one vCPU whose timer has expired.
    pub fn pop_expired(&mut self, now: u64) -> Option<VcpuIndex> {
        let &(deadline, vcpu) = self.timers.last()?;
        if deadline > now {
            return None;
        }
        self.timers.pop();
        Some(vcpu)
    }

    /// Deadline of the next timer; `u64::MAX` if there is none.
    pub fn next_timer(&self) -> u64 {
        self.timers.last().map_or(u64::MAX, |&(deadline, _)| deadline)
    }
}

#[cfg(test)]
mod tests;
