//! Which CPU a vCPU waits for.
//!
//! With one guest, queues are kept about as long as each other. With several that is not enough:
//! two vCPUs of a guest that is owed much may share a CPU while another CPU runs, alone, a guest
//! that has had more than enough. So when a turn ends, however it does, vCPUs move for the sake of
//! their guests' shares, in this order:
//!
//! * A guest that may go where others may not *makes room*: the one that is next goes to the CPU of
//!   a guest that is far ahead of the second one here, if this one may not go there.
//! * A guest that waits goes to a CPU that idles. Its cap held it when that CPU looked for work.
//! * A guest that waits, or wakes, goes to the CPU of one that is far ahead of it, the furthest of
//!   all, or to a CPU whose guest can make room for it.
//! * A guest that waits although another vCPU of it runs elsewhere goes there: that one uses up the
//!   guest's share, so that the guest's turn here would never come.
//! * A CPU whose turn goes to a guest that is far ahead of others, or that uses up its cap on other
//!   CPUs, takes a vCPU that waits elsewhere.
//!
//! None of these moves a vCPU that is next where it waits, and none takes it to a CPU to which one
//! has just been moved: otherwise vCPUs would be sent to and fro without running. An idle CPU asks
//! for a vCPU that runs, where only such guests wait beside it as may not go to the idle one.

use hostlink::cpus::CpuSet;

use super::ledger::Group;
use super::queue::{RunQueue, Standing};
use super::{CpuIndex, GroupIndex, Nudge, Scheduler, VcpuIndex};
use crate::sync::Ordering;

/// A vCPU on its way to another queue.
pub(super) type Moved = (VcpuIndex, Standing);

impl Scheduler {
    pub(super) fn others(&self, cpu: CpuIndex) -> impl Iterator<Item = CpuIndex> {
        self.cpus.iter().copied().filter(move |&other| other != cpu)
    }

    /// A CPU's load, except for what is held by caps while the CPU idles.
    fn load_of(&self, cpu: CpuIndex) -> usize {
        self.place(cpu).load().saturating_sub(self.ledger.seat(cpu).held() as usize)
    }

    /// Since when a vCPU waits in a queue whose lock is held.
    pub(super) fn waits_since(&self, vcpu: VcpuIndex) -> u64 {
        // As of the last release of the lock before this one, or later.
        self.homes[vcpu.place()].ready_since.load(Ordering::Relaxed)
    }

    /// Whether a vCPU that waits may go to a CPU for which fewer wait. One that has waited so long
    /// that it runs next where it is might be sent on again and again before it does. Moves for the
    /// sake of shares may take it all the same: without them these are less right.
    fn may_leave(&self, vcpu: VcpuIndex, load: usize, now: u64) -> bool {
        now.saturating_sub(self.waits_since(vcpu)) < self.policy.patience(load)
    }

    /// A vCPU that waits elsewhere, for a CPU that has nothing to do.
    pub(super) fn steal_for(&self, thief: CpuIndex, now: u64) -> Option<Moved> {
        let (load, victim) = self.others(thief).map(|cpu| (self.place(cpu).load(), cpu)).max()?;
        if load < 2 {
            return None;
        }
        if !self.ledger.is_in_use() {
            return self.place(victim).with(RunQueue::steal);
        }
        // Those of the longest queue may be held, or may not run here.
        let rest = self.others(thief).filter(|&cpu| cpu != victim && self.place(cpu).load() >= 2);
        [victim].into_iter().chain(rest).find_map(|victim| {
            self.place(victim).with(|queue| {
                queue.give(now, |index, group, _| self.may_run(index, thief).then(|| self.ledger.lead(group)))
            })
        })
    }

    /// For `cpu`, which found nothing to do: the nudge for a CPU that is to let its vCPU go. That
    /// vCPU could run here, and of those that wait there none may.
    #[inline]
    pub fn ask_for_running(&self, cpu: CpuIndex, now: u64) -> Nudge {
        if self.ledger.is_in_use() { self.ask_among_groups(cpu, now) } else { Nudge::Nothing }
    }

    #[cold]
    #[inline(never)]
    fn ask_among_groups(&self, idle: CpuIndex, now: u64) -> Nudge {
        let loaded = self.others(idle).filter(|&cpu| self.place(cpu).load() > 1);
        let running = loaded.filter_map(|cpu| {
            let own = self.place(cpu).queue.lock();
            own.running().filter(|_| self.is_of_use(&own, idle, now))
        });
        running.map(Nudge::Running).next().unwrap_or(Nudge::Nothing)
    }

    /// Whether the turn on `cpu`, whose queue this is, is to end: an idle CPU can run its vCPU, or
    /// one that waits, whose guest's cap has held it until now.
    pub(super) fn is_wanted(&self, own: &RunQueue, cpu: CpuIndex, now: u64) -> bool {
        let has_had_a_turn = own.turn().is_some_and(|turn| turn.had(now) >= self.policy.turn_min());
        self.others(cpu).filter(|&other| self.is_free(other)).any(|other| self.is_of_use(own, other, now))
            || has_had_a_turn && self.search_free(own, cpu, now).is_some()
    }

    /// A guest that waits for `cpu`, whose queue this is, and a CPU that idles.
    fn search_free(&self, own: &RunQueue, cpu: CpuIndex, now: u64) -> Option<(GroupIndex, CpuIndex)> {
        let free: CpuSet = self.others(cpu).filter(|&other| self.is_free(other)).map(|free| free.0).collect();
        let to = |group| self.others(cpu).find(|&to| free.contains(to.0) && self.may_run(group, to));
        own.waiting_vcpus(now)
            .filter(|&(_, vcpu)| self.may_leave(vcpu, own.load(), now))
            .find_map(|(group, _)| Some((group, to(group)?)))
    }

    /// Whether a CPU idles.
    fn is_free(&self, cpu: CpuIndex) -> bool {
        self.ledger.seat(cpu).is_idle() && self.load_of(cpu) == 0
    }

    /// Whether a CPU that idles can run the vCPU that runs in this queue, and none that waits.
    fn is_of_use(&self, own: &RunQueue, idle: CpuIndex, now: u64) -> bool {
        let mut waiting = own.waiting(now).peekable();
        own.running_group().is_some_and(|group| self.may_run(group, idle))
            && waiting.peek().is_some()
            && waiting.all(|group| !self.may_run(group, idle))
    }

    /// A vCPU that `cpu`, whose queue this is, has too many, and the CPU that is to have it.
    #[inline]
    pub(super) fn surplus(&self, own: &mut RunQueue, cpu: CpuIndex, now: u64) -> Option<(CpuIndex, Moved)> {
        let load = own.load();
        if load < 2 || self.cpus.len() == 1 {
            return None;
        }
        if self.ledger.is_in_use() {
            return self.surplus_among_groups(own, cpu, now);
        }
        let emptier = self.search_emptier_than(cpu, load, |_| true)?;
        Some((emptier, own.steal()?))
    }

    #[cold]
    #[inline(never)]
    fn surplus_among_groups(&self, own: &mut RunQueue, cpu: CpuIndex, now: u64) -> Option<(CpuIndex, Moved)> {
        let (load, next) = (own.load(), own.least_ahead(now));
        if let Some(moved) = next.and_then(|first| self.make_room(own, first, cpu, now)) {
            return Some(moved);
        }
        let emptier = |group| self.search_emptier_than(cpu, load, |other| self.may_run(group, other));
        let moved = own.give(now, |index, group, vcpu| {
            let emptier = emptier(index).filter(|_| self.may_leave(vcpu, load, now))?;
            let lead = self.ledger.lead(group);
            // The guest that is next here waits for nobody. One that is behind may be here because
            // one that is ahead runs here.
            let is_better = next == Some(index)
                || lead < -group.cost(self.policy.slice / 4)
                || self.ledger.is_behind(emptier, group);
            let is_better_here = is_better && self.load_of(emptier) != 0;
            // The guest that is furthest ahead would run last here.
            (!is_better_here).then(|| lead.saturating_neg())
        })?;
        // Loads are hints, and may have changed: then it comes back.
        Some((emptier(self.group_of(moved.0)).unwrap_or(cpu), moved))
    }

    /// A vCPU of the guest that is `first` on `cpu`, whose queue this is, and the CPU of a guest
    /// that is far ahead of the second one here. The second one may not run there, and the first
    /// one is next there, too.
    fn make_room(
        &self,
        own: &mut RunQueue,
        first: GroupIndex,
        cpu: CpuIndex,
        now: u64,
    ) -> Option<(CpuIndex, Moved)> {
        let lead = |&group: &GroupIndex| self.ledger.lead(self.ledger.group(group));
        let second = own.contending(now).filter(|&group| group != first).min_by_key(lead)?;
        let is_room = |&to: &CpuIndex| self.may_run(first, to) && !self.may_run(second, to);
        let to = self.others(cpu).filter(is_room).find(|&to| {
            !self.ledger.seat(to).runs(first) && self.ledger.unfair_lead(second, to, now).is_some()
        })?;
        self.ledger.note_given(to, now);
        Some((to, own.give_of(first)?))
    }

    /// A CPU that runs a waking vCPU sooner than `cpu`, whose queue this is.
    #[inline(always)]
    pub(super) fn better_than(
        &self,
        cpu: CpuIndex,
        own: &RunQueue,
        vcpu: VcpuIndex,
        now: u64,
    ) -> Option<CpuIndex> {
        if self.cpus.len() == 1 { None } else { self.search_better_than(cpu, own.load(), vcpu, now) }
    }

    #[inline(never)]
    fn search_better_than(&self, cpu: CpuIndex, load: usize, vcpu: VcpuIndex, now: u64) -> Option<CpuIndex> {
        let load = load.wrapping_add(1);
        if load < 2 {
            return None;
        }
        if !self.ledger.is_in_use() {
            return self.search_emptier_than(cpu, load, |_| true);
        }
        let group = self.group_of(vcpu);
        self.search_emptier_than(cpu, load, |other| self.may_run(group, other))
            .or_else(|| self.search_ahead_of(group, cpu, now))
    }

    /// A CPU that `may_run` allows, and whose load is smaller than `load` by at least two.
    #[inline(never)]
    fn search_emptier_than(
        &self,
        cpu: CpuIndex,
        load: usize,
        may_run: impl Fn(CpuIndex) -> bool,
    ) -> Option<CpuIndex> {
        let others = self.others(cpu).filter(|&other| may_run(other));
        let (least, other) = others.map(|other| (self.load_of(other), other)).min()?;
        (least + 2 <= load).then_some(other)
    }

    /// A CPU that runs a guest so far ahead of `group` that a vCPU of this one should wait there
    /// instead of on `cpu`.
    fn search_ahead_of(&self, group: GroupIndex, cpu: CpuIndex, now: u64) -> Option<CpuIndex> {
        let others = self.others(cpu).filter(|&other| self.may_run(group, other));
        let leads = others.filter_map(|other| Some((self.ledger.unfair_lead(group, other, now)?, other)));
        let (lead, other) = leads.max()?;
        if self.ledger.far_lead(group, cpu, now).is_some_and(|here| here >= lead) {
            return None;
        }
        self.ledger.note_given(other, now);
        Some(other)
    }

    /// A CPU whose guest can make room for `group`, which waits for `cpu`: it may run on an idle
    /// CPU, or on the CPU of a guest that is far ahead of `group`, where `group` may not run.
    fn search_way(&self, group: GroupIndex, cpu: CpuIndex, now: u64) -> Option<CpuIndex> {
        let is_ahead = |other: &CpuIndex| {
            !self.may_run(group, *other)
                && (self.is_free(*other) || self.ledger.unfair_lead(group, *other, now).is_some())
        };
        let ahead: CpuSet = self.others(cpu).filter(is_ahead).map(|ahead| ahead.0).collect();
        let way = self.others(cpu).filter(|&other| self.may_run(group, other)).find(|&other| {
            let running = self.ledger.seat(other).running().filter(|&running| running != group);
            running.is_some_and(|running| {
                self.others(other).any(|to| ahead.contains(to.0) && self.may_run(running, to))
            })
        })?;
        self.ledger.note_given(way, now);
        Some(way)
    }

    /// Whether [`balance`](Self::balance) may have something to do: there are several guests.
    #[inline(always)] // Part of each switch.
    pub fn balances(&self) -> bool {
        self.ledger.is_in_use()
    }

    /// To be called when a turn has begun on `cpu`, however the last one ended: moves a vCPU for
    /// the sake of its guest's share, to another CPU, or from one.
    pub fn balance(&self, cpu: CpuIndex, now: u64) -> Nudge {
        if !self.balances() || self.cpus.len() <= 1 {
            return Nudge::Nothing;
        }
        let is_loaded = self.place(cpu).load() > 1;
        let given = if is_loaded { self.place(cpu).with(|own| self.give(own, cpu, now)) } else { None };
        if let Some((to, (vcpu, standing))) = given {
            return self.enqueue(to, vcpu, standing);
        }
        if let Some((vcpu, standing)) = self.pull(cpu, now) {
            // The vCPU that runs here has not been entered yet: it looks at the queue before that.
            let _needless = self.enqueue(cpu, vcpu, standing);
        }
        Nudge::Nothing
    }

    /// A vCPU that waits for `cpu`, whose queue this is, and a CPU that is better for its guest.
    fn give(&self, own: &mut RunQueue, cpu: CpuIndex, now: u64) -> Option<(CpuIndex, Moved)> {
        let room = self.search_free(own, cpu, now).or_else(|| self.search_room(own, cpu, now));
        if let Some((group, to)) = room {
            return Some((to, own.give_of(group)?));
        }
        // Others are next here.
        let waiting = || own.contending(now).filter(|&group| self.ledger.far_lead(group, cpu, now).is_none());
        let ahead = waiting().find_map(|group| Some((group, self.search_ahead_of(group, cpu, now)?)));
        let way = || waiting().find_map(|group| Some((group, self.search_way(group, cpu, now)?)));
        if let Some((group, to)) = ahead.or_else(way) {
            return Some((to, own.give_of(group)?));
        }
        let (group, to) = self.search_own(own, cpu, now)?;
        let (vcpu, standing) = own.give_of(group)?;
        // There it runs next. Otherwise it might be the one that is too many there, and come back
        // without having run.
        Some((to, (vcpu, standing.owed(&self.policy))))
    }

    /// A vCPU that waits elsewhere, for `cpu`, where a turn has begun that is worth less.
    fn pull(&self, cpu: CpuIndex, now: u64) -> Option<Moved> {
        let running = self.ledger.seat(cpu).running()?;
        // It is as good as idle if the guest that runs here uses up its cap on others.
        let is_spare = self.ledger.is_used_elsewhere(running, cpu, now);
        if !is_spare && !self.ledger.may_be_unfair(running) {
            return None;
        }
        let is_better = |group: GroupIndex, from: CpuIndex| {
            let is_next_there = self.ledger.far_lead(group, from, now).is_some();
            let may_run = self.may_run(group, cpu) && !self.ledger.is_used_elsewhere(group, cpu, now);
            may_run && !is_next_there && (is_spare || self.ledger.unfair_lead(group, cpu, now).is_some())
        };
        // Whoever waits for a CPU that idles is about to run there, or held.
        let is_loaded = |from: &CpuIndex| self.place(*from).load() > 1 && !self.ledger.seat(*from).is_idle();
        let moved = self.others(cpu).filter(is_loaded).find_map(|from| {
            let claim = |index, group: &Group, _| is_better(index, from).then(|| self.ledger.lead(group));
            self.place(from).with(|queue| queue.give(now, claim))
        })?;
        self.ledger.note_given(cpu, now);
        Some(moved)
    }

    /// A guest that waits for `cpu`, whose queue this is, and a CPU where it makes room for the one
    /// that runs here: that one is behind a guest that runs there, and must not go there itself.
    /// Whoever waits may be held by its cap: if it is held each time that another one's turn ends,
    /// it would never move otherwise.
    fn search_room(&self, own: &RunQueue, cpu: CpuIndex, now: u64) -> Option<(GroupIndex, CpuIndex)> {
        let group = own.running_group()?;
        own.waiting_beside().find_map(|(other, _)| {
            let is_room = |to: &CpuIndex| self.may_run(other, *to) && !self.may_run(group, *to);
            let to = self.others(cpu).filter(is_room).find(|&to| {
                let is_own = self.ledger.seat(to).runs(other);
                !is_own && self.ledger.unfair_lead(group, to, now).is_some()
            })?;
            self.ledger.note_given(to, now);
            Some((other, to))
        })
    }

    /// A guest that has waited long for `cpu`, whose queue this is, and a CPU where another vCPU of
    /// it runs. That one uses up the guest's share, so that the guest's turn here never comes: the
    /// two have to share that CPU. If one more waits there already, another one comes here in its
    /// place: a vCPU that spins would have no more than a moment here each time that it has waited
    /// for very long.
    fn search_own(&self, own: &RunQueue, cpu: CpuIndex, now: u64) -> Option<(GroupIndex, CpuIndex)> {
        let load = own.load();
        own.waiting_beside().find_map(|(group, vcpu)| {
            let has_waited_long = now.saturating_sub(self.waits_since(vcpu)) >= 2 * self.policy.slice;
            // A vCPU that its guest's cap holds waits for no CPU.
            if !has_waited_long || self.ledger.held_until(self.ledger.group(group), now).is_some() {
                return None;
            }
            let is_own = |other: &CpuIndex| {
                self.ledger.seat(*other).runs(group)
                    && self.load_of(*other) <= load + 1
                    && self.may_run(group, *other)
            };
            Some((group, self.others(cpu).filter(is_own).min_by_key(|&other| self.load_of(other))?))
        })
    }
}
