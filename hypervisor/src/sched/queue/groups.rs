//! Which guest's turn it is on a CPU, if there are several or if one has a cap.
//!
//! Of the guests that have vCPUs waiting, and are not held by their caps, the one that is least
//! ahead of the others (see [`ledger`](crate::sched::ledger)) runs the vCPU that is next in its
//! queue. Its turn ends, besides what its own queue wants, when it is ahead of another guest that
//! waits, and after seven eighths of a slice at the latest, whoever waits. A guest whose vCPUs wake
//! here has the turn end a margin after that, instead of half a slice.
//!
//! Whoever was ended that way stands back behind guests that wait and are up to half a slice
//! further ahead. Otherwise two CPUs whose turns end at different times get into step: what the
//! guests have on one of them makes the same guest next on the other one, twice in a row.
//!
//! A vCPU that spins goes behind its own guest's vCPUs only: spinning costs a guest its own
//! time. If none of them waits, another guest runs if it is no more than a margin further
//! ahead. That lets a lock's holder run, at no cost to the share of the one that spins.

use super::guest_queue::{GuestQueue, Waiting};
use super::{Policy, PutBack, QueueClass, RunQueue, Running, Standing, VcpuIndex};
use crate::sched::ledger::{Group, Ledger};
use crate::sched::{GroupIndex, QueueState};

/// In a queue's load: the vCPU that runs must look at the queue, because its guest has a cap.
pub(in crate::sched) const WATCHED: usize = 1 << 31;

impl RunQueue {
    fn all_guests(&self) -> impl Iterator<Item = &GuestQueue> {
        self.others.iter().chain([&self.front])
    }

    /// The queue of a vCPU's guest, and the class that its vCPU waited in that runs here.
    pub(super) fn guest_of(&mut self, vcpu: VcpuIndex) -> (&mut GuestQueue, Option<QueueClass>) {
        let running = self.running_line();
        // Without accounts there is one guest.
        let is_elsewhere = self.has_accounts && !self.front.vcpus.contains(&vcpu);
        let other = self.others.iter_mut().filter(|_| is_elsewhere).find(|guest| guest.vcpus.contains(&vcpu));
        match other {
            Some(guest) => (guest, None),
            None => {
                debug_assert!(!is_elsewhere, "vCPU {vcpu} has no guest on CPU {}", self.cpu);
                (&mut self.front, running)
            }
        }
    }

    /// Counts the vCPUs that wait in other guests' queues.
    fn count_beside(&mut self) {
        let waiting = self.others.iter().map(GuestQueue::len).sum::<usize>();
        self.beside = waiting | self.beside & WATCHED;
    }

    #[cold]
    #[inline(never)]
    pub(super) fn enqueue_in_group(&mut self, vcpu: VcpuIndex, standing: Standing, policy: &Policy) -> bool {
        let ledger = self.ledger.clone();
        let (guest, running) = self.guest_of(vcpu);
        let is_news = !guest.has_waiting() || !guest.has_news;
        guest.has_news = true;
        guest.counted += 1;
        ledger.group(guest.group).count_in(1);
        let sooner = guest.enqueue(vcpu, standing, running, policy);
        // Beside another guest's vCPU it matters which guest waits, and since when.
        let sooner = if running.is_some() { sooner } else { is_news };
        self.count_beside();
        sooner
    }

    #[cold]
    #[inline(never)]
    pub(super) fn standing_in_group(
        &mut self,
        vcpu: VcpuIndex,
        virtual_time: u64,
        class: QueueClass,
    ) -> Standing {
        let ledger = self.ledger.clone();
        let (guest, _) = self.guest_of(vcpu);
        ledger.rejoin_if_slept(ledger.group(guest.group));
        guest.standing(virtual_time, class)
    }

    /// Takes the vCPU that is next, with its class, and puts its guest's queue to the front.
    #[cold]
    #[inline(never)]
    pub(super) fn take_among_groups(
        &mut self,
        now: u64,
        may_go: impl FnMut(VcpuIndex) -> bool,
        since: impl Fn(VcpuIndex) -> u64,
    ) -> Option<(QueueClass, Waiting)> {
        self.ledger.look(now);
        match self.search_overdue(now, since) {
            Some((index, vcpu)) => {
                self.stands_back = 0;
                self.begin_turn(index, now);
                self.front.take_this(vcpu)
            }
            None if self.choose_group(now) => self.front.take(may_go),
            None => None,
        }
    }

    /// The vCPU that has waited longest of those whose guests are not held, and the place of its
    /// guest's queue, if it has waited for so long that it runs whatever its guest has had. Every
    /// second turn is another one's.
    fn search_overdue(&mut self, now: u64, since: impl Fn(VcpuIndex) -> u64) -> Option<(usize, VcpuIndex)> {
        if now < self.patience_ends {
            return None;
        }
        let Self { front, others, ledger, .. } = &*self;
        let free = others.iter().chain([front]).enumerate().filter(|(_, guest)| {
            guest.has_waiting() && ledger.held_until(ledger.group(guest.group), now).is_none()
        });
        let waiting = free.flat_map(|(index, guest)| guest.all().map(move |vcpu| (index, vcpu)));
        let (since, index, vcpu) = waiting.map(|(index, vcpu)| (since(vcpu), index, vcpu)).min()?;
        let policy = ledger.policy();
        let is_overdue = now.saturating_sub(since) >= policy.patience(self.load());
        self.patience_ends = now.saturating_add(if is_overdue { policy.slice / 2 } else { policy.slice });
        is_overdue.then_some((index, vcpu))
    }

    /// Puts the queue of the guest to the front that is next; false if none may run.
    fn choose_group(&mut self, now: u64) -> bool {
        let Self { front, others, ledger, cpu, .. } = self;
        let stands_back = core::mem::take(&mut self.stands_back);
        let margin = ledger.policy().wakeup_margin;
        let mut next: Option<(i64, usize)> = None;
        // The front comes last: if two are even, the other one is next.
        for (index, guest) in others.iter().chain([&*front]).enumerate() {
            let group = ledger.group(guest.group);
            if !guest.has_waiting() || ledger.held_until(group, now).is_some() {
                continue;
            }
            let stands_back = match index == others.len() {
                _ if guest.is_passive() => margin,
                true => stands_back,
                false => 0,
            };
            // It loses nothing if it leaves this CPU to others.
            let lead = match ledger.is_used_elsewhere(guest.group, *cpu, now) {
                true => i64::MAX,
                false => ledger.lead(group).saturating_add(group.cost(stands_back)),
            };
            if next.is_none_or(|(least, _)| lead < least) {
                next = Some((lead, index));
            }
        }
        let Some((_, index)) = next else {
            let held = others.iter().chain([&*front]).map(GuestQueue::len).sum::<usize>();
            ledger.begin_idle(self.cpu, held as u32);
            self.beside &= !WATCHED;
            return false;
        };
        self.begin_turn(index, now);
        true
    }

    /// The turn of a guest begins, whose queue is this one of the others, or the front behind them.
    fn begin_turn(&mut self, index: usize, now: u64) {
        let Self { front, others, ledger, .. } = self;
        if let Some(chosen) = others.get_mut(index) {
            core::mem::swap(front, chosen);
        }
        front.has_news = false;
        ledger.begin_turn(self.cpu, front.group, now);
        let is_watched = ledger.group(front.group).is_capped();
        self.beside = if is_watched { WATCHED } else { 0 };
        self.count_beside();
    }

    #[cold]
    #[inline(never)]
    pub(super) fn note_put_back(&mut self, now: u64, why: PutBack) {
        self.end_turn_among_groups(now);
        self.front.has_news = false;
        let policy = self.ledger.policy();
        self.stands_back = match why {
            PutBack::Preempted => policy.slice / 2,
            _ if !self.front.has_waiting() => policy.wakeup_margin,
            _ => 0,
        };
    }

    fn end_turn_among_groups(&mut self, now: u64) {
        self.ledger.end_turn(self.cpu, self.front.group, now);
        let front = self.ledger.group(self.front.group);
        for guest in self.others.iter().filter(|guest| guest.has_waiting()) {
            self.ledger.group(guest.group).note_waits_for(front);
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn note_taken_off(&mut self, now: u64) {
        self.end_turn_among_groups(now);
        self.front.count_out(&self.ledger);
    }

    /// Removes, for another queue, a vCPU of the guest with the least `claim`; a guest without one
    /// is left alone, as are those that are held. The claim is for this vCPU.
    pub(in crate::sched) fn give(
        &mut self,
        now: u64,
        claim: impl Fn(GroupIndex, &Group, VcpuIndex) -> Option<i64>,
    ) -> Option<(VcpuIndex, Standing)> {
        let Self { front, others, ledger, .. } = self;
        let claims = others.iter_mut().chain([front]).filter_map(|guest| {
            let group = ledger.group(guest.group);
            let vcpu = guest.last().filter(|_| ledger.held_until(group, now).is_none())?;
            claim(guest.group, group, vcpu).map(|claim| (claim, guest))
        });
        let (_, guest) = claims.min_by_key(|&(claim, _)| claim)?;
        let stolen = guest.steal()?;
        guest.count_out(ledger);
        self.count_beside();
        Some(stolen)
    }

    /// Removes a waiting vCPU of this guest, for another queue, whether the guest is held or not.
    pub(in crate::sched) fn give_of(&mut self, group: GroupIndex) -> Option<(VcpuIndex, Standing)> {
        let Self { front, others, ledger, .. } = self;
        let guest =
            others.iter_mut().chain([front]).find(|guest| guest.group == group && guest.has_waiting())?;
        let given = guest.steal()?;
        guest.count_out(ledger);
        self.count_beside();
        Some(given)
    }

    pub(in crate::sched) fn running_group(&self) -> Option<GroupIndex> {
        self.running.as_ref().map(|_| self.front.group)
    }

    /// The guests that wait beside the one whose vCPU ran last, and of each the vCPU that
    /// [`give_of`](Self::give_of) takes.
    pub(in crate::sched) fn waiting_beside(&self) -> impl Iterator<Item = (GroupIndex, VcpuIndex)> {
        self.others.iter().filter_map(|guest| Some((guest.group, guest.last()?)))
    }

    /// The guests that wait and are not held, and of each the vCPU that [`give`](Self::give) takes.
    pub(in crate::sched) fn waiting_vcpus(&self, now: u64) -> impl Iterator<Item = (GroupIndex, VcpuIndex)> {
        let waiting = self.all_guests().filter_map(|guest| Some((guest.group, guest.last()?)));
        waiting.filter(move |&(group, _)| self.ledger.held_until(self.ledger.group(group), now).is_none())
    }

    /// The guests that wait and are not held.
    pub(in crate::sched) fn waiting(&self, now: u64) -> impl Iterator<Item = GroupIndex> {
        self.waiting_vcpus(now).map(|(group, _)| group)
    }

    /// The guests that wait, are not held, and do not use up their caps on other CPUs.
    pub(in crate::sched) fn contending(&self, now: u64) -> impl Iterator<Item = GroupIndex> {
        self.waiting(now).filter(move |&group| !self.ledger.is_used_elsewhere(group, self.cpu, now))
    }

    /// The contending guest that is least ahead.
    pub(in crate::sched) fn least_ahead(&self, now: u64) -> Option<GroupIndex> {
        self.contending(now).min_by_key(|&group| self.ledger.lead(self.ledger.group(group)))
    }

    #[cold]
    #[inline(never)]
    pub(super) fn queue_state_among_groups(&self, now: u64, policy: &Policy) -> QueueState {
        let timer = self.next_timer();
        let timer_expired = timer <= now;
        let Some(running) = self.running else {
            let has_waiting = self.all_guests().any(GuestQueue::has_waiting);
            return QueueState { should_switch: false, has_waiting, timer_expired, next_event: timer };
        };
        let mut turn_end = self.ledger.used_up_at(self.cpu, self.ledger.group(self.front.group));
        if turn_end != u64::MAX {
            turn_end = turn_end.max(running.since.saturating_add(policy.turn_min()));
        }
        let (mut has_waiting, mut should_switch) = (false, false);
        if self.front.has_waiting() {
            has_waiting = true;
            let turn = self.front.turn(running.class, policy).min(policy.turn_beside());
            turn_end = turn_end.min(running.since.saturating_add(turn));
            should_switch = self.front.is_preempted(&running, now, policy);
        }
        let mut held_until = u64::MAX;
        for guest in self.others.iter().filter(|guest| guest.has_waiting()) {
            if let Some(until) = self.ledger.held_until(self.ledger.group(guest.group), now) {
                held_until = held_until.min(until);
            } else {
                has_waiting = true;
                turn_end = turn_end.min(self.turn_end_beside(&running, guest, policy));
            }
        }
        should_switch |= now >= turn_end;
        let timer = if has_waiting { self.useful_timer_among_groups(&running, policy) } else { timer };
        QueueState {
            should_switch,
            has_waiting,
            timer_expired,
            next_event: turn_end.min(timer).min(held_until),
        }
    }

    /// When the turn of the vCPU that runs ends for the sake of another guest.
    fn turn_end_beside(&self, running: &Running, guest: &GuestQueue, policy: &Policy) -> u64 {
        let latest = running.since.saturating_add(policy.turn_beside());
        if guest.is_passive() {
            return latest;
        }
        let (group, other) = (self.ledger.group(self.front.group), self.ledger.group(guest.group));
        // A light guest's turns are as much shorter as its share is smaller than the other's.
        let ahead = if guest.has_news { policy.wakeup_margin } else { policy.slice / 2 };
        let ahead = group.cost(ahead).min(other.cost(ahead));
        let gap = self.ledger.lead(other).saturating_sub(self.ledger.lead(group));
        let left = gap.saturating_add(ahead) / group.divisor();
        let end = self.ledger.charged(self.cpu).saturating_add_signed(left);
        end.max(running.since.saturating_add(policy.turn_min())).min(latest)
    }

    /// When the first timer is due that is worth an interruption while others wait: one whose guest
    /// does not wait already.
    fn useful_timer_among_groups(&self, running: &Running, policy: &Policy) -> u64 {
        // No vCPU is preempted for it earlier.
        let worth = |vcpu: VcpuIndex| {
            if self.front.vcpus.contains(&vcpu) {
                (!self.front.waits_in(QueueClass::Timer)).then_some(policy.wakeup_margin)
            } else {
                let guest = self.others.iter().find(|guest| guest.vcpus.contains(&vcpu))?;
                (!guest.has_waiting()).then(|| policy.turn_min())
            }
        };
        let useful = |&(at, vcpu): &(u64, VcpuIndex)| {
            worth(vcpu).map(|after| at.max(running.since.saturating_add(after)))
        };
        self.timers.iter().rev().find_map(useful).unwrap_or(u64::MAX)
    }

    /// When an idle CPU must look at its queue again: the next timer, or the end of a hold.
    ///
    /// Another CPU, on which it is later, may have found the guest free since this one found it
    /// held. So the end of the hold is taken whether it is held or not.
    pub(in crate::sched) fn next_event(&self) -> u64 {
        let waiting = self.all_guests().filter(|guest| guest.has_waiting());
        let holds = waiting.filter_map(|guest| self.ledger.free_at(self.ledger.group(guest.group)));
        holds.fold(self.next_timer(), u64::min)
    }

    pub(in crate::sched) fn add_guest(&mut self, guest: GuestQueue) {
        let is_vacant = self.front.vcpus.is_empty();
        if is_vacant {
            self.front = guest;
        } else {
            self.others.push(guest);
        }
    }

    /// Removes a guest's queue, in which none waits.
    pub(in crate::sched) fn remove_guest(&mut self, group: GroupIndex) -> Option<GuestQueue> {
        let is_its = |guest: &GuestQueue| guest.group == group && !guest.vcpus.is_empty();
        let removed = if is_its(&self.front) {
            let next = self.others.pop().unwrap_or_default();
            core::mem::replace(&mut self.front, next)
        } else {
            let place = self.others.iter().position(is_its)?;
            self.others.swap_remove(place)
        };
        debug_assert!(!removed.has_waiting() && removed.counted == 0, "a vCPU of a guest that goes waits");
        self.count_beside();
        Some(removed)
    }

    /// Begins or ends to keep accounts.
    pub(in crate::sched) fn set_accounts(&mut self, has_accounts: bool) {
        if self.has_accounts == has_accounts {
            return;
        }
        self.has_accounts = has_accounts;
        self.count_beside();
        let runs = self.running.is_some();
        // Until now there was one guest, or from now on there is.
        let guest = &mut self.front;
        let group = self.ledger.group(guest.group);
        if has_accounts {
            guest.counted = guest.len() as u32 + u32::from(runs);
            group.count_in(guest.counted);
            if let Some(running) = self.running {
                self.ledger.begin_turn(self.cpu, guest.group, running.since);
            }
        } else {
            group.count_out(core::mem::take(&mut guest.counted));
            self.ledger.begin_idle(self.cpu, 0);
        }
    }
}

impl GuestQueue {
    /// One fewer of its vCPUs waits or runs here.
    fn count_out(&mut self, ledger: &Ledger) {
        if let Some(counted) = self.counted.checked_sub(1) {
            self.counted = counted;
            ledger.group(self.group).count_out(1);
        }
    }
}
