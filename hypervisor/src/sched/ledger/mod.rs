//! What each guest has had: the level of the scheduler above vCPUs.
//!
//! A guest has one *virtual time* for all its vCPUs on all CPUs: the time that they have had,
//! divided by the guest's weight. A CPU picks, of the guests that have vCPUs waiting there, the one
//! with the least. So a guest's share depends neither on the number of its vCPUs nor on how they
//! sleep or spin.
//!
//! What a guest is due may be less than its weight says, because it has few vCPUs, or a set of few
//! CPUs, or a cap; then the others have more for their weights, and their virtual times run away
//! from the guest's own. So guests come to be on levels, and within each level all have the same
//! for their weights. [`align`] bounds the gaps between them, without a change of their order.
//!
//! A guest that returns from a sleep is at most a slice behind all that want more: that much it may
//! have been owed when it went to sleep. A guest that has all that it can use is no further behind
//! than all CPUs together could have made it ([`Ledger::bound`]).
//!
//! All of it is in atomics without an order, written under different queues' locks. See the table
//! of hints in [`notify`](super::notify).

mod align;
mod cap;
mod group;

use alloc::vec::Vec;
use core::ops::Range;

use super::{CpuIndex, GroupIndex, Policy, Share, VcpuIndex};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
pub(super) use group::Group;

/// The time up to which no turn is charged.
const NEVER: u64 = u64::MAX;

/// What other CPUs may know of a CPU's turn.
#[derive(Debug)]
pub(super) struct Seat {
    /// The guest whose vCPU runs, plus one; 0 if none runs. Written before `charged`.
    group: AtomicU32,
    /// Up to when the turn is in the guest's account; [`NEVER`] if none runs. Any CPU may move it,
    /// and then charges the guest.
    charged: AtomicU64,
    /// How many vCPUs waited when the CPU found that the guests of all of them are held.
    held: AtomicU32,
    /// When a vCPU was last moved here for its guest's sake.
    given_at: AtomicU64,
}

impl Seat {
    fn new() -> Self {
        Self {
            group: AtomicU32::new(0),
            charged: AtomicU64::new(NEVER),
            held: AtomicU32::new(0),
            given_at: AtomicU64::new(0),
        }
    }

    /// Whether a vCPU of this guest runs there. It may be another one's turn already.
    pub(super) fn runs(&self, group: GroupIndex) -> bool {
        self.group.load(Ordering::Relaxed) == group + 1
    }

    /// The guest whose vCPU runs there. It may be another one's turn already.
    pub(super) fn running(&self) -> Option<GroupIndex> {
        self.group.load(Ordering::Relaxed).checked_sub(1)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.group.load(Ordering::Relaxed) == 0
    }

    /// How many vCPUs of held guests wait for the CPU, which runs none.
    pub(super) fn held(&self) -> u32 {
        self.held.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub(super) struct Ledger {
    policy: Policy,
    /// How many CPUs run vCPUs.
    cpus: u64,
    groups: Vec<Group>,
    /// Indexed by CPU.
    seats: Vec<Seat>,
    /// The weighted average of the virtual times.
    average: AtomicU64,
    /// The least virtual time of a guest that wants more than it has; the average if that is less.
    floor: AtomicU64,
    /// When both are to be taken again.
    due: AtomicU64,
    /// There are several guests, or one that may not use all the time of all CPUs.
    is_in_use: AtomicU32,
}

impl Ledger {
    /// Room for `groups` guests. `seats` is one more than the highest index of a CPU; `cpus` of
    /// them run vCPUs.
    pub(super) fn new(groups: u32, seats: u32, cpus: usize, policy: Policy) -> Self {
        Self {
            policy,
            cpus: cpus as u64,
            groups: (0..groups).map(|_| Group::default()).collect(),
            seats: (0..seats).map(|_| Seat::new()).collect(),
            average: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            due: AtomicU64::new(0),
            is_in_use: AtomicU32::new(0),
        }
    }

    pub(super) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// A guest's account. The index is one that [`Scheduler::add_group`] was called with.
    ///
    /// [`Scheduler::add_group`]: super::Scheduler::add_group
    pub(super) fn group(&self, group: GroupIndex) -> &Group {
        &self.groups[group as usize]
    }

    pub(super) fn seat(&self, cpu: CpuIndex) -> &Seat {
        &self.seats[cpu.place()]
    }

    /// Opens an account; returns whether the ledger is needed from now on. The guest may use so
    /// many of the CPUs.
    pub(super) fn open(
        &self,
        group: GroupIndex,
        vcpus: Range<VcpuIndex>,
        share: &Share,
        usable: u32,
    ) -> bool {
        let is_everywhere = u64::from(usable) == self.cpus;
        self.group(group).open(vcpus, share, usable, is_everywhere, self.average.load(Ordering::Relaxed));
        self.is_needed()
    }

    /// Closes an account; returns whether the ledger is still needed.
    pub(super) fn close(&self, group: GroupIndex) -> bool {
        self.group(group).close();
        self.is_needed()
    }

    fn is_needed(&self) -> bool {
        let mut open = self.groups.iter().filter(|group| group.is_open());
        open.next().is_some_and(Group::is_bounded) || open.next().is_some()
    }

    /// Whether queues keep accounts: what [`open`](Self::open) and [`close`](Self::close)
    /// returned, once all queues know it.
    pub(super) fn is_in_use(&self) -> bool {
        self.is_in_use.load(Ordering::Relaxed) != 0
    }

    pub(super) fn set_in_use(&self, is_in_use: bool) {
        self.is_in_use.store(is_in_use.into(), Ordering::Relaxed);
    }

    /// The most that a guest can be ahead or behind by its own doing, in ticks: a slice on each
    /// CPU, twice, for a CPU learns of it when its own slice is over.
    fn bound(&self) -> u64 {
        self.policy.slice.saturating_mul(2 * self.cpus + 2)
    }

    /// How much a capped guest may use at once.
    const fn burst(&self) -> u64 {
        self.policy.slice.saturating_mul(2)
    }

    /// How far a guest is ahead of the average by what it has had, in virtual time; negative if it
    /// is behind.
    fn account(&self, group: &Group) -> i64 {
        group.ahead_of(self.average.load(Ordering::Relaxed))
    }

    /// The same as it counts when guests are compared: one that is put first is behind all others.
    pub(super) fn lead(&self, group: &Group) -> i64 {
        let account = self.account(group);
        let is_lent =
            group.is_first() && account.saturating_sub(self.floor()) <= group.cost(self.overdraft());
        if is_lent { account.saturating_add(i64::MIN / 2) } else { account }
    }

    /// How far the guest that wants more and has had least is ahead of the average; never positive.
    fn floor(&self) -> i64 {
        let average = self.average.load(Ordering::Relaxed);
        self.floor.load(Ordering::Relaxed).wrapping_sub(average).cast_signed().min(0)
    }

    fn update_lead(&self, group: &Group, change: impl Fn(i64) -> i64) {
        let average = self.average.load(Ordering::Relaxed);
        let _always = group.virtual_time.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |time| {
            let lead = change(time.wrapping_sub(average).cast_signed());
            Some(average.wrapping_add_signed(lead))
        });
    }

    /// A guest's first vCPU wakes, or its cap no longer holds it: it is not owed its sleep.
    pub(super) fn rejoin(&self, group: &Group) {
        let least = self.floor().saturating_sub(group.cost(self.policy.slice));
        self.update_lead(group, |lead| lead.max(least));
    }

    /// The same if none of its vCPUs was runnable.
    pub(super) fn rejoin_if_slept(&self, group: &Group) {
        if group.runnable() == 0 {
            self.rejoin(group);
        }
    }

    /// How much a guest that is put first may use beyond its share and its cap. What it uses is in
    /// its accounts, and is paid back: so it has no more in the long run, however often it is put
    /// first. An account is forgotten only beyond twice as much ([`bound`](Self::bound)), for turns
    /// end late.
    fn overdraft(&self) -> u64 {
        self.bound() / 2
    }

    /// What a guest is lent now, beyond its cap.
    fn lent(&self, group: &Group) -> u64 {
        if group.is_first() { self.overdraft() } else { 0 }
    }

    /// The guest's vCPUs run before all others, and its cap does not hold them, for a while, and
    /// until it has used what it is lent.
    pub(super) fn put_first(&self, group: &Group, now: u64) {
        group.put_first(now.saturating_add(self.bound()));
    }

    /// The last `ticks` of the turn on `cpu` up to `now` are not the guest's.
    pub(super) fn leave_out(&self, cpu: CpuIndex, ticks: u64, now: u64) {
        let later = |charged: u64| (charged < now).then(|| charged.saturating_add(ticks).min(now));
        // If another CPU has just charged the turn up to now, there is nothing to leave out.
        let _charged = self.seat(cpu).charged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }

    /// A guest's vCPUs have had `had` ticks until `now`.
    fn charge(&self, group: &Group, had: u64, now: u64) {
        // What nobody waits for is free: then a turn is longer than a slice, and no CPU looks that
        // would charge it sooner.
        group.virtual_time.fetch_add(group.cost(had.min(self.burst())).cast_unsigned(), Ordering::Relaxed);
        group.cap.charge(had, now);
    }

    pub(super) fn begin_turn(&self, cpu: CpuIndex, group: GroupIndex, now: u64) {
        let seat = self.seat(cpu);
        seat.held.store(0, Ordering::Relaxed);
        seat.given_at.store(0, Ordering::Relaxed);
        // Release, both: they pair with `settle`.
        seat.group.store(group + 1, Ordering::Release);
        seat.charged.store(now, Ordering::Release);
    }

    /// No turn begins on `cpu`: `held` vCPUs wait, all of them for their guests' caps.
    pub(super) fn begin_idle(&self, cpu: CpuIndex, held: u32) {
        let seat = self.seat(cpu);
        seat.held.store(held, Ordering::Relaxed);
        seat.group.store(0, Ordering::Relaxed);
        seat.charged.store(NEVER, Ordering::Relaxed);
    }

    pub(super) fn end_turn(&self, cpu: CpuIndex, group: GroupIndex, now: u64) {
        // Another CPU's clock may be ahead.
        let charged = self.seat(cpu).charged.fetch_max(now, Ordering::Relaxed);
        self.charge(self.group(group), now.saturating_sub(charged), now);
    }

    /// Up to when the turn on `cpu` is in its guest's account.
    pub(super) fn charged(&self, cpu: CpuIndex) -> u64 {
        self.seat(cpu).charged.load(Ordering::Relaxed)
    }

    /// Until when a guest is held by its cap; `None` if it is not.
    pub(super) fn held_until(&self, group: &Group, now: u64) -> Option<u64> {
        let (until, is_free_again) = group.cap.held_until(now, self.burst(), self.lent(group));
        if is_free_again {
            self.rejoin(group);
        }
        until
    }

    /// When a guest is free at the latest, held or not; `None` if it has no cap.
    pub(super) fn free_at(&self, group: &Group) -> Option<u64> {
        group.cap.free_at(self.burst())
    }

    /// Whether other CPUs than `cpu` run so many of a guest's vCPUs that they use up its cap.
    pub(super) fn is_used_elsewhere(&self, index: GroupIndex, cpu: CpuIndex, now: u64) -> bool {
        let group = self.group(index);
        group.is_capped() && {
            let others = (0..).zip(&self.seats).filter(|(other, seat)| *other != cpu.0 && seat.runs(index));
            group.cap.is_used_by(others.count() as u32, now, self.burst(), self.lent(group))
        }
    }

    /// When the guest of the vCPU that runs on `cpu` has used up its budget.
    pub(super) fn used_up_at(&self, cpu: CpuIndex, group: &Group) -> u64 {
        if !group.is_capped() {
            return u64::MAX;
        }
        let running = u64::from(group.runnable()).min(self.cpus) as u32;
        group.cap.used_up_at(self.charged(cpu), running, self.burst(), self.lent(group))
    }

    /// Charges what a guest has had in a turn so far, unless that is next to nothing. Its loads
    /// (Acquire) have the stores of [`begin_turn`](Self::begin_turn) as their partners.
    fn settle(&self, seat: &Seat, now: u64) {
        // Whose turn it is is seen with its beginning, or is of a later turn; then the former turn
        // has ended, and the exchange fails.
        let charged = seat.charged.load(Ordering::Acquire);
        let had = now.saturating_sub(charged);
        let Some(group) = seat.group.load(Ordering::Acquire).checked_sub(1) else { return };
        if had >= self.policy.slice / 4
            && seat.charged.compare_exchange(charged, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.charge(self.group(group), had, now);
        }
    }

    /// Whether a guest is ahead of the one that has had least, by more than its turns make it.
    pub(super) fn may_be_unfair(&self, group: GroupIndex) -> bool {
        let group = self.group(group);
        self.lead(group).saturating_sub(self.floor()) > group.cost(self.policy.slice / 4)
    }

    /// How far ahead of `group` the guest is whose vCPU runs on `cpu`, if that is so much that
    /// `group`'s vCPUs should not wait elsewhere.
    pub(super) fn unfair_lead(&self, group: GroupIndex, cpu: CpuIndex, now: u64) -> Option<i64> {
        let given_at = self.seat(cpu).given_at.load(Ordering::Relaxed);
        if now.saturating_sub(given_at) < self.policy.slice / 2 && given_at != 0 {
            return None; // The vCPU that came last may not even have run.
        }
        self.far_lead(group, cpu, now)
    }

    /// The same, whether a vCPU has just been moved to `cpu` or not.
    pub(super) fn far_lead(&self, group: GroupIndex, cpu: CpuIndex, now: u64) -> Option<i64> {
        let (seat, slice) = (self.seat(cpu), self.policy.slice);
        let running = seat.running().filter(|&other| other != group)?;
        let (running, waiting) = (self.group(running), self.group(group));
        let uncharged = now.saturating_sub(seat.charged.load(Ordering::Relaxed)).min(slice);
        let lead =
            self.lead(running).saturating_add(running.cost(uncharged)).saturating_sub(self.lead(waiting));
        let fair = running.cost(slice / 4).saturating_add(waiting.cost(slice));
        (lead > fair).then_some(lead)
    }

    /// Whether the guest whose vCPU runs on `cpu` has had less than `group`, which would wait
    /// there.
    pub(super) fn is_behind(&self, cpu: CpuIndex, group: &Group) -> bool {
        self.seat(cpu).running().is_some_and(|running| {
            let (running, little) = (self.group(running), self.policy.slice / 4);
            let lead = self.lead(group).saturating_sub(self.lead(running));
            lead > running.cost(little).saturating_add(group.cost(little))
        })
    }

    /// A vCPU is moved to `cpu` because of [`unfair_lead`](Self::unfair_lead).
    pub(super) fn note_given(&self, cpu: CpuIndex, now: u64) {
        self.seat(cpu).given_at.store(now, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
impl Ledger {
    /// Whether its cap holds a guest, without a look.
    pub(super) fn is_held(&self, group: GroupIndex, now: u64) -> bool {
        self.group(group).cap.holds(now, self.burst())
    }
}

/// What the models break, and what they look at.
#[cfg(all(test, loom))]
impl Ledger {
    /// [`free_at`](Self::free_at), unless the guest is known to be free.
    pub(super) fn next_event_if_held(&self, group: GroupIndex) -> u64 {
        let group = self.group(group);
        self.free_at(group).filter(|_| group.cap.is_held()).unwrap_or(NEVER)
    }

    /// [`settle`](Self::settle), with the same partner, without the exchange.
    pub(super) fn settle_carelessly(&self, cpu: CpuIndex, now: u64) {
        let seat = self.seat(cpu);
        let charged = seat.charged.load(Ordering::Acquire);
        let had = now.saturating_sub(charged);
        let Some(group) = seat.group.load(Ordering::Acquire).checked_sub(1) else { return };
        if had >= self.policy.slice / 4 {
            seat.charged.store(now, Ordering::Relaxed);
            self.charge(self.group(group), had, now);
        }
    }

    pub(super) fn spent_until(&self, group: GroupIndex) -> u64 {
        self.group(group).cap.spent_until()
    }
}
