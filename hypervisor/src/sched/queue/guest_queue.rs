//! The vCPUs of one guest that wait on one CPU.
//!
//! There are two classes. A vCPU that an interrupt wakes, or that was running, waits among the
//! vCPUs with work, ordered by virtual time. A vCPU that only its timer wakes waits in the timer
//! class, first come, first served. While neither class is empty, each gets half of the CPU.
//!
//! The reason is the behaviour of many idle vCPUs that tick: Linux ticks on every CPU until it has
//! a better clock source. Where all the ticks take longer than the available time, they would fill
//! any CPU time that fairness among vCPUs gives them, and a vCPU with work would get one part in as
//! many as there are vCPUs. A late tick, however, costs no more than one in time, and stands for
//! the ticks that it replaces. In a separate class the ticks become only as many as half of the CPU
//! can bear.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

use super::{Policy, PutBack, QueueClass, Running, Standing, VcpuIndex};
use crate::sched::GroupIndex;

/// The virtual time of a vCPU that has not run yet.
pub(in crate::sched) const VIRTUAL_EPOCH: u64 = 1 << 62;

/// A vCPU with the time that it has run, on the queue's own scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) virtual_time: u64,
    pub(super) vcpu: VcpuIndex,
    /// It waits for memory to change, and is skipped until it may go on. Always false in the timer
    /// line.
    is_passive: bool,
}

#[derive(Debug, Default)]
pub(in crate::sched) struct GuestQueue {
    /// The vCPUs with work, sorted by falling virtual time: the next to run is the last.
    pub(super) waiting: Vec<Waiting>,
    pub(super) expired: VecDeque<Waiting>,
    /// How much more the timer class's vCPUs have run than those with work.
    lead: i64,
    /// How many of the vCPUs with work wait for memory to change.
    passive: usize,
    /// No vCPU with work has a lower virtual time, except for what sleepers are owed. Only grows,
    /// from [`VIRTUAL_EPOCH`] on, which leaves room for what they are owed.
    floor: u64,
    pub(super) group: GroupIndex,
    /// Its vCPUs, all of them, here or not.
    pub(super) vcpus: Range<VcpuIndex>,
    /// How many of those that wait or run here are in the guest's account.
    pub(super) counted: u32,
    /// One has come since the CPU last ran a vCPU of this guest.
    pub(super) has_news: bool,
}

impl GuestQueue {
    /// An empty queue with room for all of a guest's vCPUs, so that it never allocates later.
    pub(in crate::sched) fn new(group: GroupIndex, vcpus: Range<VcpuIndex>) -> Self {
        let count = VcpuIndex::each(vcpus.clone()).len();
        Self {
            waiting: Vec::with_capacity(count),
            expired: VecDeque::with_capacity(count),
            floor: VIRTUAL_EPOCH,
            group,
            vcpus,
            ..Self::default()
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        // None is here twice, so there is nothing to wrap, and no check to pay for in each switch.
        self.waiting.len().wrapping_add(self.expired.len())
    }

    #[inline]
    pub(super) fn waits_in(&self, class: QueueClass) -> bool {
        match class {
            QueueClass::Work => !self.waiting.is_empty(),
            QueueClass::Timer => !self.expired.is_empty(),
        }
    }

    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        self.waits_in(QueueClass::Work) || self.waits_in(QueueClass::Timer)
    }

    /// Whether all that wait, wait for memory to change.
    pub(super) fn is_passive(&self) -> bool {
        self.passive == self.waiting.len() && self.expired.is_empty()
    }

    /// Puts a vCPU among those with work. If there was none, the timer class owes them at most a
    /// sleeper's credit. `running` is the class of this guest's vCPU that runs here.
    #[inline(always)]
    fn insert(&mut self, waiting: Waiting, running: Option<QueueClass>, policy: &Policy) {
        if self.waiting.is_empty() && running != Some(QueueClass::Work) {
            self.lead = self.lead.min(policy.sleeper_credit());
        }
        // Behind vCPUs with the same virtual time: first come, first served.
        let place = self.waiting.partition_point(|other| other.virtual_time > waiting.virtual_time);
        self.waiting.insert(place, waiting);
    }

    /// Puts a vCPU into the timer class, likewise.
    #[inline]
    fn insert_expired(&mut self, waiting: Waiting, running: Option<QueueClass>, policy: &Policy) {
        if self.expired.is_empty() && running != Some(QueueClass::Timer) {
            self.lead = self.lead.max(-policy.sleeper_credit());
        }
        self.expired.push_back(waiting);
    }

    /// Adds a vCPU that woke up or came from another queue. A sleeper is owed at most the credit.
    ///
    /// Returns whether a vCPU of this guest that runs here must make room sooner than it was told.
    #[inline(always)]
    pub(super) fn enqueue(
        &mut self,
        vcpu: VcpuIndex,
        standing: Standing,
        running: Option<QueueClass>,
        policy: &Policy,
    ) -> bool {
        let lag = standing.lag.min(policy.slice.cast_signed()).max(-policy.sleeper_credit());
        let waiting = Waiting { virtual_time: self.floor.wrapping_add_signed(lag), vcpu, is_passive: false };
        match standing.class {
            QueueClass::Work => {
                self.insert(waiting, running, policy);
                // It may preempt at once.
                true
            }
            QueueClass::Timer => {
                // One more makes no difference.
                let is_first = self.expired.is_empty();
                self.insert_expired(waiting, running, policy);
                is_first
            }
        }
    }

    /// Moves a vCPU from the timer class to those with work. Returns whether it was there.
    pub(super) fn promote(&mut self, vcpu: VcpuIndex, running: Option<QueueClass>, policy: &Policy) -> bool {
        let place = self.expired.iter().position(|waiting| waiting.vcpu == vcpu);
        let Some(waiting) = place.and_then(|place| self.expired.remove(place)) else { return false };
        self.insert(waiting, running, policy);
        true
    }

    /// The standing of a vCPU that blocked here, from its virtual time then.
    #[inline]
    pub(super) fn standing(&self, virtual_time: u64, class: QueueClass) -> Standing {
        Standing { lag: virtual_time.wrapping_sub(self.floor).cast_signed(), class }
    }

    /// Takes the next vCPU of the class that has run less.
    #[inline(always)] // A part of each switch.
    pub(super) fn take(&mut self, may_go: impl FnMut(VcpuIndex) -> bool) -> Option<(QueueClass, Waiting)> {
        let timer_first =
            self.waits_in(QueueClass::Timer) && (!self.waits_in(QueueClass::Work) || self.lead < 0);
        if timer_first {
            return Some((QueueClass::Timer, self.expired.pop_front()?));
        }
        let next = if self.passive == 0 { self.waiting.pop()? } else { self.take_active(may_go)? };
        self.floor = self.floor.max(next.virtual_time);
        Some((QueueClass::Work, next))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = VcpuIndex> {
        self.waiting.iter().chain(&self.expired).map(|waiting| waiting.vcpu)
    }

    /// Takes this vCPU, whenever its turn would be.
    pub(super) fn take_this(&mut self, vcpu: VcpuIndex) -> Option<(QueueClass, Waiting)> {
        if let Some(place) = self.waiting.iter().position(|waiting| waiting.vcpu == vcpu) {
            return Some((QueueClass::Work, self.remove(place)));
        }
        let place = self.expired.iter().position(|waiting| waiting.vcpu == vcpu)?;
        Some((QueueClass::Timer, self.expired.remove(place)?))
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

    #[inline]
    pub(super) fn charge(&mut self, class: QueueClass, had: u64) {
        self.lead = match class {
            // Ticks of one CPU's time: they do not overflow in a century.
            QueueClass::Work => self.lead.wrapping_sub_unsigned(had),
            QueueClass::Timer => self.lead.wrapping_add_unsigned(had),
        };
    }

    /// Puts a vCPU that has run back among those that have work. A vCPU that ran while none waited
    /// owes the others nothing for it: one that came later would have the CPU for as long.
    #[inline]
    pub(super) fn put_back(&mut self, vcpu: VcpuIndex, mut virtual_time: u64, why: PutBack, policy: &Policy) {
        if let Some(last) = self.waiting.first() {
            virtual_time = virtual_time.min(last.virtual_time.saturating_add(policy.slice));
        }
        match (why, self.waiting.first()) {
            (PutBack::Preempted, _) => {}
            // It leaves its class' turn to the other.
            (_, None) => self.lead = self.lead.min(-policy.sleeper_credit()),
            (PutBack::Yielded, Some(last)) => virtual_time = virtual_time.max(last.virtual_time),
            (PutBack::Passive, Some(_)) => {}
        }
        let is_passive = why == PutBack::Passive;
        self.passive += usize::from(is_passive);
        self.insert(Waiting { virtual_time, vcpu, is_passive }, None, policy);
    }

    /// The waiting vCPU that would run last here.
    pub(super) fn last(&self) -> Option<VcpuIndex> {
        self.expired.back().or(self.waiting.first()).map(|waiting| waiting.vcpu)
    }

    /// Removes, for another queue, the waiting vCPU that would run last here.
    pub(super) fn steal(&mut self) -> Option<(VcpuIndex, Standing)> {
        let (stolen, class) = match self.expired.pop_back() {
            Some(stolen) => (stolen, QueueClass::Timer),
            None if self.waiting.is_empty() => return None,
            // A passive vCPU becomes active there: that CPU has nothing else to do.
            None => (self.remove(0), QueueClass::Work),
        };
        Some((stolen.vcpu, self.standing(stolen.virtual_time, class)))
    }

    /// How long this guest's vCPU may run while others of its vCPUs wait.
    #[inline]
    pub(super) fn turn(&self, class: QueueClass, policy: &Policy) -> u64 {
        match class {
            QueueClass::Work if !self.waits_in(QueueClass::Timer) => policy.slice,
            QueueClass::Work => {
                // Those with work get ahead by the credit, so that the classes do not alternate at
                // every turn.
                let turn = self.lead.wrapping_add(policy.sleeper_credit());
                turn.min(policy.slice.cast_signed()).max(policy.wakeup_margin.cast_signed()).cast_unsigned()
            }
            // A turn longer than a tick is work, and the others in the timer class must not wait
            // for it.
            QueueClass::Timer => policy.wakeup_margin,
        }
    }

    /// Whether a waiting vCPU with work has run less than the running one by more than the margin.
    #[inline]
    pub(super) fn is_preempted(&self, running: &Running, now: u64, policy: &Policy) -> bool {
        let ran = now.saturating_sub(running.since);
        ran >= policy.wakeup_margin
            && running.class == QueueClass::Work
            && self.first_active().is_some_and(|next| {
                running.virtual_time.wrapping_add(ran) > next.virtual_time.wrapping_add(policy.wakeup_margin)
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
}
