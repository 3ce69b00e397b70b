//! Guests that come and go.

use core::ops::Range;

use hostlink::cpus::CpuSet;

#[cfg(test)]
use super::place::Home;
use super::queue::{GuestQueue, VIRTUAL_EPOCH};
use super::{CpuIndex, Scheduler, VcpuIndex};
use crate::sync::Ordering;

/// A guest's number.
pub type GroupIndex = u32;

/// A guest's share of the CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// What it gets beside others: time in proportion to this, 1 to 10,000.
    pub weight: u32,
    /// What it gets at most, in per cent of one CPU, whatever nobody else wants: 1 to 25,600.
    pub cap: Option<u32>,
    /// Where it may run.
    pub cpus: CpuSet,
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: 100, cap: None, cpus: CpuSet::ALL }
    }
}

impl Scheduler {
    /// Adds a guest with these vCPUs, spread round-robin over the CPUs that it may use. None is
    /// runnable yet. All that its queues need is allocated here.
    ///
    /// Neither the index nor any of the vCPUs is another guest's, and both are below what the
    /// scheduler was made for. Guests are added and removed one at a time.
    ///
    /// # Panics
    ///
    /// If the guest may use none of the scheduler's CPUs.
    pub fn add_group(&self, group: GroupIndex, vcpus: Range<VcpuIndex>, share: Share) {
        let may_use = || self.cpus.iter().copied().filter(|&cpu| share.cpus.contains(cpu.0));
        for (vcpu, cpu) in VcpuIndex::each(vcpus.clone()).zip(may_use().cycle()) {
            let home = &self.homes[vcpu.place()];
            // Relaxed: whoever makes the vCPU runnable learns of the guest in some other way.
            home.cpu.store(cpu.0, Ordering::Relaxed);
            home.used.store(0, Ordering::Relaxed);
            home.virtual_time.store(VIRTUAL_EPOCH, Ordering::Relaxed);
            home.timer_line.store(0, Ordering::Relaxed);
            self.groups[vcpu.place()].store(group, Ordering::Relaxed);
        }
        assert!(may_use().next().is_some(), "guest {group} may use no CPU that runs vCPUs");
        let usable = may_use().count() as u32;
        let has_accounts = self.ledger.open(group, vcpus.clone(), &share, usable);
        // Before there are queues of two guests in any queue.
        self.set_accounts(has_accounts);
        for cpu in may_use() {
            let guest = GuestQueue::new(group, vcpus.clone());
            self.place(cpu).with(|queue| queue.add_guest(guest));
        }
    }

    /// Removes a guest: none of its vCPUs waits, runs, or has a timer. Frees its memory.
    pub fn remove_group(&self, group: GroupIndex) {
        for &cpu in &self.cpus {
            let removed = self.place(cpu).with(|queue| queue.remove_guest(group));
            drop(removed); // Not under the lock.
        }
        let has_accounts = self.ledger.close(group);
        self.set_accounts(has_accounts);
    }

    fn set_accounts(&self, has_accounts: bool) {
        if has_accounts {
            self.ledger.set_in_use(true);
        }
        for &cpu in &self.cpus {
            self.place(cpu).with(|queue| queue.set_accounts(has_accounts));
        }
        self.ledger.set_in_use(has_accounts);
    }

    /// Lets a guest's vCPUs run before all others, for a short while: somebody waits for something
    /// that they do. Otherwise it might take as long as the guest's weight is small. What they use
    /// is a loan, which is paid back: see [`end_first`](Self::end_first).
    pub fn put_first(&self, group: GroupIndex, now: u64) {
        self.ledger.put_first(self.ledger.group(group), now);
    }

    /// Ends that sooner: nobody waits any more. If this is never called the guest has no more than
    /// its share and its cap all the same, but it has it less evenly.
    pub fn end_first(&self, group: GroupIndex) {
        self.ledger.group(group).end_first(u64::MAX);
    }

    /// Leaves the last `ticks` up to `now` out of the turn on `cpu`, the calling CPU: the CPU has
    /// worked for nobody's vCPU meanwhile.
    pub fn leave_out(&self, cpu: CpuIndex, ticks: u64, now: u64) {
        self.place(cpu).with(|queue| queue.leave_out(ticks, now));
    }

    /// Ticks of CPU time that the guest's vCPUs have had until `now`.
    pub fn used(&self, group: GroupIndex, now: u64) -> u64 {
        VcpuIndex::each(self.ledger.group(group).vcpus()).map(|vcpu| self.used_by(vcpu, now)).sum()
    }

    /// Ticks of CPU time that the vCPU has had until `now`, with its present turn. Takes the lock
    /// of its queue.
    pub fn used_by(&self, vcpu: VcpuIndex, now: u64) -> u64 {
        let home = &self.homes[vcpu.place()];
        // If it has gone to another CPU since, the turn there is left out: it has just begun.
        let queue = self.place(CpuIndex(home.cpu.load(Ordering::Relaxed))).queue.lock();
        let turn = queue.turn().filter(|turn| turn.vcpu == vcpu);
        // Within the lock, in which the turn is charged when it ends.
        home.used.load(Ordering::Relaxed).wrapping_add(turn.map_or(0, |turn| turn.had(now)))
    }

    /// What is known of a vCPU and of its guest's account, but for times.
    #[cfg(test)]
    pub(crate) fn known_of(&self, vcpu: VcpuIndex) -> alloc::string::String {
        let Home { cpu, virtual_time, ready_since: _, timer_line, used } = &self.homes[vcpu.place()];
        let account = self.ledger.group(self.group_of(vcpu)).known();
        alloc::format!("{:?} {account}", [cpu, timer_line].map(|word| word.load(Ordering::Relaxed)))
            + &alloc::format!("{:?}", [virtual_time, used].map(|word| word.load(Ordering::Relaxed)))
    }

    /// The guest of a vCPU.
    pub fn group_of(&self, vcpu: VcpuIndex) -> GroupIndex {
        self.groups[vcpu.place()].load(Ordering::Relaxed)
    }

    pub(super) fn may_run(&self, group: GroupIndex, cpu: CpuIndex) -> bool {
        self.ledger.group(group).cpus().contains(cpu.0)
    }
}
