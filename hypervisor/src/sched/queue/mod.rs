//! One CPU's queue: the waiting vCPUs, the running vCPU, and the pending timers. Pure state, except
//! for the accounts that all queues share; times are ticks of the clock.
//!
//! The vCPUs of a guest wait in its queue. Which guest's turn it is, if there are several,
//! is decided in `groups`. The functions here are those of a machine with one guest: they are a
//! part of each switch, and branch to those there in one place each.

mod groups;
mod guest_queue;

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::ledger::Ledger;
use super::{CpuIndex, QueueState};
pub use crate::index::VcpuIndex;
pub(super) use groups::WATCHED;
pub(super) use guest_queue::{GuestQueue, VIRTUAL_EPOCH};

/// Time spans that make up the policy, in ticks of the clock.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Longest run while others of its guest wait.
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

    /// Longest run while another guest waits, or another vCPU of the guest beside guests elsewhere.
    /// It ends late, by the time of an exit and a switch; so the other one waits for about a slice.
    pub const fn turn_beside(&self) -> u64 {
        self.slice - self.slice / 8
    }

    /// How long a turn is at least that another guest ends, so that switches do not fill the CPU.
    pub(super) const fn turn_min(&self) -> u64 {
        self.wakeup_margin / 8
    }

    /// How long a vCPU runs, while others wait, before the first check whether it spins.
    pub const fn spin_look(&self) -> u64 {
        self.slice / 32
    }

    /// How long a vCPU waits for a CPU for which `load` vCPUs wait before it runs whatever its
    /// guest has had. That grows with the load, so that such turns do not fill the CPU.
    pub(super) const fn patience(&self, load: usize) -> u64 {
        self.slice.saturating_mul(24 + load as u64)
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
pub enum QueueClass {
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
    class: QueueClass,
}

impl Standing {
    /// Whether it goes into the timer class.
    pub fn is_expired(self) -> bool {
        self.class == QueueClass::Timer
    }

    /// The same of a vCPU that has waited for long: it is owed as much as a sleeper.
    pub(super) fn owed(self, policy: &Policy) -> Self {
        Self { lag: self.lag.min(-policy.sleeper_credit()), ..self }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    pub(super) vcpu: VcpuIndex,
    virtual_time: u64,
    since: u64,
    class: QueueClass,
}

impl Running {
    /// For how long it has had the CPU. Another CPU's clock may be a little ahead.
    #[inline]
    pub(super) fn had(&self, now: u64) -> u64 {
        now.saturating_sub(self.since)
    }
}

/// Why a vCPU is put back into the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutBack {
    /// Its slice is over, or another vCPU has a stronger claim.
    Preempted,
    /// It spins, and goes behind all waiting vCPUs of its guest.
    Yielded,
    /// It waits for a word in memory to change, and is skipped until the word may have changed.
    Passive,
}

/// A CPU's queue.
#[derive(Debug)]
pub struct RunQueue {
    /// The queue of the guest whose vCPU runs, or ran last.
    front: GuestQueue,
    /// Those of the other guests that may run here.
    others: Vec<GuestQueue>,
    /// The guests' accounts are kept: there are several guests, or one with a cap or a set of CPUs.
    has_accounts: bool,
    running: Option<Running>,
    /// Sorted by falling deadline: the next to expire is the last.
    timers: Vec<(u64, VcpuIndex)>,
    /// How many vCPUs wait in the other guests' queues, and [`WATCHED`].
    beside: usize,
    /// By how many ticks the guest of the vCPU that was put back stands back when the next one is
    /// chosen.
    stands_back: u64,
    /// When to look again for a vCPU that has waited too long.
    patience_ends: u64,
    cpu: CpuIndex,
    ledger: Arc<Ledger>,
}

impl RunQueue {
    /// The queue of `cpu`, with room for the timers of `vcpus`. No guest has a queue here yet.
    pub(super) fn new(cpu: CpuIndex, vcpus: usize, groups: usize, ledger: Arc<Ledger>) -> Self {
        Self {
            front: GuestQueue::default(),
            others: Vec::with_capacity(groups),
            has_accounts: false,
            running: None,
            timers: Vec::with_capacity(vcpus),
            beside: 0,
            stands_back: 0,
            patience_ends: 0,
            cpu,
            ledger,
        }
    }

    /// Number of vCPUs that wait or run here.
    #[inline]
    pub fn load(&self) -> usize {
        self.watched_load() & !WATCHED
    }

    /// The same with [`WATCHED`] if the vCPU that runs must look at the queue although none waits.
    #[inline]
    pub(super) fn watched_load(&self) -> usize {
        // A few hundred at most: no check to pay for in each switch.
        let waiting = self.front.len().wrapping_add(self.beside);
        waiting.wrapping_add(usize::from(self.running.is_some()))
    }

    /// Whether nothing runs or waits here.
    pub fn is_idle(&self) -> bool {
        self.load() == 0
    }

    /// The vCPU that runs here.
    pub fn running(&self) -> Option<VcpuIndex> {
        self.running.map(|running| running.vcpu)
    }

    /// The turn of the vCPU that runs here.
    #[inline]
    pub(super) fn turn(&self) -> Option<Running> {
        self.running
    }

    /// The class of the running vCPU, which is one of the front's guest.
    #[inline(always)]
    fn running_line(&self) -> Option<QueueClass> {
        self.running.map(|running| running.class)
    }

    /// Adds a vCPU that woke up or came from another queue. A sleeper is owed at most the credit.
    ///
    /// Returns whether the vCPU that runs here must make room sooner than it was told.
    #[inline(always)]
    #[must_use = "the running vCPU does not know yet"]
    pub fn enqueue(&mut self, vcpu: VcpuIndex, standing: Standing, policy: &Policy) -> bool {
        if self.has_accounts {
            return self.enqueue_in_group(vcpu, standing, policy);
        }
        let running = self.running_line();
        self.front.enqueue(vcpu, standing, running, policy)
    }

    /// Moves a vCPU from the timer class to those with work: it has been interrupted.
    ///
    /// Returns whether it was there. If so, the vCPU that runs here may have to make room.
    pub fn promote(&mut self, vcpu: VcpuIndex, policy: &Policy) -> bool {
        let (guest, running) = self.guest_of(vcpu);
        guest.promote(vcpu, running, policy)
    }

    /// The standing of a vCPU that blocked here and wakes, from its virtual time then.
    #[inline]
    pub fn standing(&mut self, vcpu: VcpuIndex, virtual_time: u64, class: QueueClass) -> Standing {
        if self.has_accounts {
            return self.standing_in_group(vcpu, virtual_time, class);
        }
        self.front.standing(virtual_time, class)
    }

    /// Takes the next vCPU and lets it run. A vCPU that waits for memory to change is skipped while
    /// `may_go` returns false for it. If all of its guest's are skipped, the next of them runs
    /// anyway. `since` is the time from which on a vCPU has waited.
    #[inline(always)] // A part of each switch.
    pub fn pick(
        &mut self,
        now: u64,
        may_go: impl FnMut(VcpuIndex) -> bool,
        since: impl Fn(VcpuIndex) -> u64,
    ) -> Option<VcpuIndex> {
        debug_assert!(self.running.is_none());
        let (class, next) = if self.has_accounts {
            self.take_among_groups(now, may_go, since)?
        } else {
            self.front.take(may_go)?
        };
        self.running = Some(Running { vcpu: next.vcpu, virtual_time: next.virtual_time, since: now, class });
        Some(next.vcpu)
    }

    /// Ends the turn of the running vCPU: charges the time to it and to its class. Returns its
    /// virtual time.
    #[inline(always)]
    fn end_turn(&mut self, running: &Running, now: u64) -> u64 {
        self.running = None;
        let had = running.had(now);
        self.front.charge(running.class, had);
        running.virtual_time.wrapping_add(had)
    }

    /// Takes the vCPU that runs off the CPU and puts it back among the vCPUs that have work.
    pub(super) fn put_back(&mut self, running: &Running, now: u64, why: PutBack, policy: &Policy) {
        if self.has_accounts {
            self.note_put_back(now, why);
        }
        let virtual_time = self.end_turn(running, now);
        self.front.put_back(running.vcpu, virtual_time, why, policy);
    }

    /// Takes the vCPU that runs off the CPU because it blocks or stops; returns its virtual time.
    #[inline(always)]
    pub(super) fn take_off(&mut self, running: &Running, now: u64) -> u64 {
        if self.has_accounts {
            self.note_taken_off(now);
        }
        self.end_turn(running, now)
    }

    /// Leaves the last `ticks` up to `now` out of the turn.
    pub(in crate::sched) fn leave_out(&mut self, ticks: u64, now: u64) {
        if let Some(running) = &mut self.running {
            running.since = running.since.saturating_add(ticks).min(now);
            if self.has_accounts {
                self.ledger.leave_out(self.cpu, ticks, now);
            }
        }
    }

    /// Removes, for another queue, the waiting vCPU that would run last here. With several guests
    /// see `groups`.
    pub fn steal(&mut self) -> Option<(VcpuIndex, Standing)> {
        self.front.steal()
    }

    /// The queue's state as it concerns the CPU.
    #[inline(always)]
    pub fn queue_state(&self, now: u64, policy: &Policy) -> QueueState {
        if self.has_accounts {
            return self.queue_state_among_groups(now, policy);
        }
        let timer = self.next_timer();
        let (should_switch, next_event) = match self.running {
            Some(running) if self.front.has_waiting() => {
                let turn_end = running.since.wrapping_add(self.front.turn(running.class, policy));
                let should_switch = now >= turn_end || self.front.is_preempted(&running, now, policy);
                (should_switch, turn_end.min(self.useful_timer(&running, timer, policy)))
            }
            _ => (false, timer),
        };
        let has_waiting = self.front.has_waiting();
        QueueState { should_switch, has_waiting, timer_expired: timer <= now, next_event }
    }

    /// When the next timer, at `timer`, is worth an interruption while others wait.
    #[inline]
    fn useful_timer(&self, running: &Running, timer: u64, policy: &Policy) -> u64 {
        if self.front.waits_in(QueueClass::Timer) {
            // It would only make the line longer.
            u64::MAX
        } else {
            // No vCPU is preempted before the end of the margin.
            timer.max(running.since.wrapping_add(policy.wakeup_margin))
        }
    }

    /// Remembers to wake a vCPU that blocks here.
    pub fn add_timer(&mut self, deadline: u64, vcpu: VcpuIndex) {
        let place = self.timers.partition_point(|&(other, _)| other > deadline);
        self.timers.insert(place, (deadline, vcpu));
    }

    /// Forgets a vCPU's timer; returns whether it has one here.
    #[inline]
    pub fn remove_timer(&mut self, vcpu: VcpuIndex) -> bool {
        let place = self.timers.iter().position(|&(_, other)| other == vcpu);
        place.map(|place| self.timers.remove(place)).is_some()
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
impl RunQueue {
    /// Ends the turn of the vCPU that runs, as the scheduler does.
    pub(in crate::sched) fn end_by(&mut self, now: u64, why: PutBack, policy: &Policy) {
        if let Some(running) = self.turn() {
            self.put_back(&running, now, why, policy);
        }
    }

    /// Takes the vCPU that runs off the CPU, as the scheduler does.
    pub(in crate::sched) fn block(&mut self, now: u64) -> u64 {
        self.turn().map_or(0, |running| self.take_off(&running, now))
    }

    /// [`pick`](Self::pick) where there is one guest, which has waited for no longer than others.
    pub(in crate::sched) fn pick_alone(
        &mut self,
        now: u64,
        may_go: impl FnMut(VcpuIndex) -> bool,
    ) -> Option<VcpuIndex> {
        self.pick(now, may_go, |_| now)
    }

    /// A queue for one guest with this many vCPUs.
    pub(in crate::sched) fn alone(vcpus: u32) -> Self {
        let mut queue =
            Self::new(CpuIndex(0), vcpus as usize, 1, Arc::new(Ledger::new(1, 1, 1, Policy::new(1000))));
        queue.add_guest(GuestQueue::new(0, VcpuIndex(0)..VcpuIndex(vcpus)));
        queue
    }
}

#[cfg(test)]
mod tests;
