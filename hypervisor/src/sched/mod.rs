//! The scheduler: many vCPUs on few CPUs.
//!
//! Each CPU has a [queue](queue::RunQueue) of its own, ordered by the time that its vCPUs have had (a virtual
//! clock, as in Linux' CFS). The rules:
//!
//! * The one that has had least runs next, for at most a slice while others wait, without limit otherwise.
//! * A vCPU in HLT is in no queue. When it wakes it goes to an idle CPU if there is one, to its last CPU
//!   otherwise, and preempts whoever has run for longer than a small margin.
//! * A vCPU that spins goes behind all that wait.
//! * A CPU without work takes it from the longest queue; a queue that has two more than the shortest gives one
//!   up when one of its vCPUs is put back.
//!
//! A vCPU's state is saved before it appears in any queue, and it is in at most one: under the lock of the queue
//! it blocks on, and of the queue that it is put into, one after the other, never both.

pub mod queue;

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use spin::Mutex;

pub use queue::{Policy, PutBack, RunQueue, VcpuIndex};

/// Index of a physical CPU.
pub type CpuIndex = u32;

/// What must be done after a vCPU was put into a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nudge {
    /// Nothing: it runs when its turn comes.
    Nothing,
    /// The CPU idles: interrupt it.
    Idle(CpuIndex),
    /// The vCPU that runs there should be looked at again: post it an event.
    Running(VcpuIndex),
}

/// Where a vCPU that is in no queue belongs.
#[derive(Debug, Default)]
struct Home {
    /// Queue it ran on last, which holds its timer.
    cpu: AtomicU32,
    /// Time that it had had beyond that queue's floor when it left.
    lag: AtomicU64,
}

/// What a CPU has to reckon with while a vCPU runs on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// The vCPU should make room for another.
    pub should_switch: bool,
    /// Others wait for the CPU.
    pub has_waiting: bool,
    /// A vCPU that blocks here is to be woken.
    pub timer_expired: bool,
    /// When to look again: the end of the slice or the next timer; `u64::MAX` for never.
    pub next_event: u64,
}

/// All queues.
#[derive(Debug)]
pub struct Scheduler {
    /// The CPUs that run vCPUs, one queue each.
    cpus: Range<CpuIndex>,
    queues: Vec<Mutex<RunQueue>>,
    homes: Vec<Home>,
    policy: Policy,
}

impl Scheduler {
    /// Queues for these CPUs, at least one, and `vcpus` vCPUs, spread over the CPUs in turn; none is runnable
    /// yet.
    pub fn new(cpus: Range<CpuIndex>, vcpus: u32, policy: Policy) -> Self {
        let home = |vcpu| cpus.start + vcpu % (cpus.end - cpus.start);
        let homes = (0..vcpus).map(|vcpu| Home { cpu: AtomicU32::new(home(vcpu)), ..Home::default() });
        Self {
            queues: cpus.clone().map(|_| Mutex::new(RunQueue::with_capacity(vcpus as usize))).collect(),
            homes: homes.collect(),
            policy,
            cpus,
        }
    }

    fn queue(&self, cpu: CpuIndex) -> &Mutex<RunQueue> {
        &self.queues[(cpu - self.cpus.start) as usize]
    }

    /// Whether `cpu` runs vCPUs.
    pub fn has_cpu(&self, cpu: CpuIndex) -> bool {
        self.cpus.contains(&cpu)
    }

    /// How many CPUs run vCPUs.
    pub fn cpu_count(&self) -> u32 {
        self.cpus.end - self.cpus.start
    }

    fn others(&self, cpu: CpuIndex) -> impl Iterator<Item = CpuIndex> {
        self.cpus.clone().filter(move |&other| other != cpu)
    }

    /// Lets `cpu` run the vCPU that has most right to: its own, or one of the longest queue. `None`: it may idle;
    /// whoever gives it work later finds it idle and nudges it.
    ///
    /// The second value says whether the vCPU came from another CPU.
    pub fn next(&self, cpu: CpuIndex, now: u64) -> Option<(VcpuIndex, bool)> {
        let mut own = self.queue(cpu).lock();
        if own.has_waiting() {
            return self.start(cpu, &mut own, now);
        }
        drop(own);
        let (vcpu, lag) = self.steal_for(cpu)?;
        let mut own = self.queue(cpu).lock();
        own.enqueue(vcpu, lag, &self.policy);
        self.start(cpu, &mut own, now)
    }

    fn start(&self, cpu: CpuIndex, queue: &mut RunQueue, now: u64) -> Option<(VcpuIndex, bool)> {
        let vcpu = queue.pick(now)?;
        // Only the holder of the vCPU writes its home; wakers read it after the next release of this lock.
        let before = self.homes[vcpu as usize].cpu.swap(cpu, Ordering::Relaxed);
        Some((vcpu, before != cpu))
    }

    fn steal_for(&self, thief: CpuIndex) -> Option<(VcpuIndex, u64)> {
        let loaded = self.others(thief).map(|cpu| (self.queue(cpu).lock().load(), cpu));
        let (load, victim) = loaded.max()?;
        if load < 2 {
            return None;
        }
        self.queue(victim).lock().steal()
    }

    /// Puts the vCPU that runs on `cpu` back among those that wait, here or on a CPU that has less to do.
    pub fn put_back(&self, cpu: CpuIndex, now: u64, why: PutBack) -> Nudge {
        let mut own = self.queue(cpu).lock();
        own.put_back(now, why);
        let load = own.load();
        drop(own);
        let Some(emptier) = self.emptier_than(cpu, load) else { return Nudge::Nothing };
        let Some((vcpu, lag)) = self.queue(cpu).lock().steal() else { return Nudge::Nothing };
        self.enqueue(emptier, vcpu, lag)
    }

    /// A CPU that has at least two vCPUs fewer than `load`.
    fn emptier_than(&self, cpu: CpuIndex, load: usize) -> Option<CpuIndex> {
        if self.cpus.len() == 1 {
            return None;
        }
        let (least, other) = self.others(cpu).map(|other| (self.queue(other).lock().load(), other)).min()?;
        (least + 2 <= load).then_some(other)
    }

    /// Takes the vCPU that runs on `cpu` off it, if `commit` says that it may block; `deadline` is when it wants to be
    /// woken at the latest, `u64::MAX` for never. Returns what `commit` said.
    ///
    /// `commit` runs under the queue's lock: a waker that sees the vCPU blocked waits for that lock, so it finds
    /// the timer set and the vCPU off the CPU.
    pub fn block(&self, cpu: CpuIndex, now: u64, deadline: u64, commit: impl FnOnce() -> bool) -> bool {
        let mut own = self.queue(cpu).lock();
        let Some(vcpu) = own.running() else { return false };
        if !commit() {
            return false;
        }
        let lag = own.take_off(now);
        self.homes[vcpu as usize].lag.store(lag, Ordering::Relaxed);
        if deadline != u64::MAX {
            own.add_timer(deadline, vcpu);
        }
        true
    }

    /// Makes a vCPU runnable that is in no queue: it was blocked, and the caller is the one who may wake it.
    pub fn wake(&self, vcpu: VcpuIndex) -> Nudge {
        let home = &self.homes[vcpu as usize];
        let cpu = home.cpu.load(Ordering::Relaxed);
        let mut own = self.queue(cpu).lock();
        own.remove_timer(vcpu);
        let lag = home.lag.load(Ordering::Relaxed);
        let load = own.load();
        drop(own);
        let place = if load == 0 { cpu } else { self.emptier_than(cpu, load + 1).unwrap_or(cpu) };
        self.enqueue(place, vcpu, lag)
    }

    fn enqueue(&self, cpu: CpuIndex, vcpu: VcpuIndex, lag: u64) -> Nudge {
        let mut queue = self.queue(cpu).lock();
        queue.enqueue(vcpu, lag, &self.policy);
        match queue.running() {
            Some(running) => Nudge::Running(running),
            None => Nudge::Idle(cpu),
        }
    }

    /// What `cpu` has to reckon with while its vCPU runs.
    pub fn outlook(&self, cpu: CpuIndex, now: u64) -> Outlook {
        let queue = self.queue(cpu).lock();
        Outlook {
            should_switch: queue.should_switch(now, &self.policy),
            has_waiting: queue.has_waiting(),
            timer_expired: queue.next_timer() <= now,
            next_event: queue.slice_end(&self.policy).min(queue.next_timer()),
        }
    }

    /// Whether any vCPU waits for `cpu`.
    pub fn has_waiting(&self, cpu: CpuIndex) -> bool {
        self.queue(cpu).lock().has_waiting()
    }

    /// When `cpu` must look up again on the scheduler's account: the end of the slice or the next timer.
    pub fn next_event(&self, cpu: CpuIndex) -> u64 {
        let queue = self.queue(cpu).lock();
        queue.slice_end(&self.policy).min(queue.next_timer())
    }

    /// Takes one vCPU that blocked on `cpu` and whose time has come; the caller posts it its event.
    pub fn pop_expired(&self, cpu: CpuIndex, now: u64) -> Option<VcpuIndex> {
        self.queue(cpu).lock().pop_expired(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheduler(cpus: u32, vcpus: u32) -> Scheduler {
        Scheduler::new(0..cpus, vcpus, Policy::new(1000))
    }

    #[test]
    fn wakers_nudge_idle_cpus_and_running_vcpus() {
        let sched = scheduler(2, 3);
        assert_eq!(sched.wake(0), Nudge::Idle(0));
        assert_eq!(sched.next(0, 0), Some((0, false)));
        assert_eq!(sched.wake(2), Nudge::Idle(1), "CPU 0 is busy, CPU 1 is not");
        assert_eq!(sched.next(1, 0), Some((2, true)));
        assert_eq!(sched.wake(1), Nudge::Running(2));
    }

    #[test]
    fn an_idle_cpu_takes_work_from_the_longest_queue() {
        let sched = scheduler(2, 4);
        for vcpu in [0, 2] {
            sched.queue(0).lock().enqueue(vcpu, 0, &sched.policy);
        }
        assert_eq!(sched.next(0, 0), Some((0, false)));
        assert_eq!(sched.next(1, 0), Some((2, true)));
        assert_eq!(sched.next(1, 0), None);
    }

    #[test]
    fn a_refused_block_leaves_the_vcpu_running() {
        let sched = scheduler(1, 1);
        sched.wake(0);
        sched.next(0, 0);
        assert!(!sched.block(0, 5, 100, || false));
        assert_eq!(sched.next_event(0), u64::MAX, "no timer was left behind");
        assert!(sched.block(0, 5, 100, || true));
        assert_eq!(sched.next_event(0), 100);
        assert_eq!(sched.pop_expired(0, 100), Some(0));
    }

    #[test]
    fn waking_early_forgets_the_timer() {
        let sched = scheduler(1, 1);
        sched.wake(0);
        sched.next(0, 0);
        sched.block(0, 5, 100, || true);
        sched.wake(0);
        assert_eq!(sched.pop_expired(0, 1000), None);
    }

    #[test]
    fn a_cpu_that_is_left_out_gets_no_vcpu() {
        let sched = Scheduler::new(1..3, 4, Policy::new(1000));
        assert!(!sched.has_cpu(0) && sched.has_cpu(2));
        for vcpu in 0..4 {
            assert!(matches!(sched.wake(vcpu), Nudge::Idle(cpu) if cpu != 0));
        }
        assert!(sched.next(1, 0).is_some() && sched.next(2, 0).is_some());
    }

    #[test]
    fn put_back_evens_the_queues_out() {
        let sched = scheduler(2, 4);
        for vcpu in 0..4 {
            sched.queue(0).lock().enqueue(vcpu, 0, &sched.policy);
        }
        sched.next(0, 0);
        assert_eq!(sched.put_back(0, 1000, PutBack::Preempted), Nudge::Idle(1));
        assert_eq!(sched.queue(0).lock().load(), 3);
        assert_eq!(sched.queue(1).lock().load(), 1);
    }
}
