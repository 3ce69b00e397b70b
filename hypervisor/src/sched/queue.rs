//! One CPU's queue: who waits, who runs, whose timer is pending. Pure state; times are TSC ticks.

use alloc::vec::Vec;

/// Index of a vCPU in its virtual machine.
pub type VcpuIndex = u32;

/// Lengths of time that make up the policy, in TSC ticks.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Longest run while others wait.
    pub slice: u64,
    /// How much more a vCPU must have run than one that wakes up before it is put aside for it.
    pub wakeup_margin: u64,
}

impl Policy {
    /// The policy for a slice of `slice` ticks: a sleeper that wakes gets at most half a slice of credit, and
    /// the margin is a quarter of that, so that a wake-up preempts whoever has run for longer than this.
    pub const fn new(slice: u64) -> Self {
        Self { slice, wakeup_margin: slice / 8 }
    }

    const fn sleeper_credit(&self) -> u64 {
        self.slice / 2
    }
}

/// A vCPU with the time that it has had, on the queue's own scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    virtual_time: u64,
    vcpu: VcpuIndex,
}

/// The vCPU that runs.
#[derive(Clone, Copy, Debug)]
struct Running {
    vcpu: VcpuIndex,
    virtual_time: u64,
    since: u64,
}

impl Running {
    fn virtual_now(&self, now: u64) -> u64 {
        self.virtual_time + now.saturating_sub(self.since)
    }
}

/// Why a vCPU is put back into the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutBack {
    /// Its slice is over, or another has more right to run.
    Preempted,
    /// It spins, and goes behind all that wait.
    Yielded,
}

/// A CPU's queue.
#[derive(Debug, Default)]
pub struct RunQueue {
    /// Sorted by falling virtual time: the next to run is the last.
    waiting: Vec<Waiting>,
    /// Sorted by falling deadline: the next to expire is the last.
    timers: Vec<(u64, VcpuIndex)>,
    running: Option<Running>,
    /// No vCPU here has had less time than this. Only grows.
    floor: u64,
}

impl RunQueue {
    /// An empty queue with room for `vcpus`, so that it never allocates later.
    pub fn with_capacity(vcpus: usize) -> Self {
        Self { waiting: Vec::with_capacity(vcpus), timers: Vec::with_capacity(vcpus), ..Self::default() }
    }

    /// vCPUs that wait or run here.
    pub fn load(&self) -> usize {
        self.waiting.len() + usize::from(self.running.is_some())
    }

    /// Whether nothing runs or waits here.
    pub fn is_idle(&self) -> bool {
        self.load() == 0
    }

    /// Whether anyone waits.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The vCPU that runs here.
    pub fn running(&self) -> Option<VcpuIndex> {
        self.running.map(|running| running.vcpu)
    }

    fn insert(&mut self, virtual_time: u64, vcpu: VcpuIndex) {
        debug_assert!(!self.waiting.iter().any(|waiting| waiting.vcpu == vcpu), "vCPU {vcpu} waits already");
        // Behind those that have had the same time: first come, first served.
        let place = self.waiting.partition_point(|waiting| waiting.virtual_time > virtual_time);
        self.waiting.insert(place, Waiting { virtual_time, vcpu });
    }

    /// Adds a vCPU that woke up or came from another queue. Its `lag` is what it had run beyond that queue's floor
    /// when it left.
    pub fn enqueue(&mut self, vcpu: VcpuIndex, lag: u64, policy: &Policy) {
        let credit = policy.sleeper_credit();
        self.insert(self.floor.saturating_sub(credit).saturating_add(lag.min(policy.slice)), vcpu);
    }

    /// Takes the vCPU that has had the least time and lets it run.
    pub fn pick(&mut self, now: u64) -> Option<VcpuIndex> {
        debug_assert!(self.running.is_none());
        let next = self.waiting.pop()?;
        self.floor = self.floor.max(next.virtual_time);
        self.running = Some(Running { vcpu: next.vcpu, virtual_time: next.virtual_time, since: now });
        Some(next.vcpu)
    }

    /// Takes the running vCPU off the CPU and puts it back among those that wait.
    pub fn put_back(&mut self, now: u64, why: PutBack) {
        let Some(running) = self.running.take() else { return };
        let mut virtual_time = running.virtual_now(now);
        if why == PutBack::Yielded
            && let Some(last) = self.waiting.first()
        {
            virtual_time = virtual_time.max(last.virtual_time);
        }
        self.insert(virtual_time, running.vcpu);
    }

    /// Takes the running vCPU off the CPU because it blocks or stops; returns its lag.
    pub fn take_off(&mut self, now: u64) -> u64 {
        let Some(running) = self.running.take() else { return 0 };
        running.virtual_now(now).saturating_sub(self.floor)
    }

    /// Takes away, for another queue, the waiting vCPU that would run last here; with its lag.
    pub fn steal(&mut self) -> Option<(VcpuIndex, u64)> {
        if self.waiting.is_empty() {
            return None;
        }
        let stolen = self.waiting.remove(0);
        Some((stolen.vcpu, stolen.virtual_time.saturating_sub(self.floor)))
    }

    /// Whether the running vCPU should make room: its slice is over and someone waits, or someone waits
    /// that has had less time by more than the margin.
    pub fn should_switch(&self, now: u64, policy: &Policy) -> bool {
        let (Some(running), Some(next)) = (self.running, self.waiting.last()) else { return false };
        now.saturating_sub(running.since) >= policy.slice
            || running.virtual_now(now) > next.virtual_time.saturating_add(policy.wakeup_margin)
                && now.saturating_sub(running.since) >= policy.wakeup_margin
    }

    /// When the running vCPU's right to the CPU must be looked at again; `u64::MAX` while nobody else waits.
    pub fn slice_end(&self, policy: &Policy) -> u64 {
        match (self.running, self.waiting.last()) {
            (Some(running), Some(_)) => running.since.saturating_add(policy.slice),
            _ => u64::MAX,
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
mod tests {
    use super::*;

    const POLICY: Policy = Policy::new(1000);

    fn queue(vcpus: u32) -> RunQueue {
        let mut queue = RunQueue::with_capacity(vcpus as usize);
        for vcpu in 0..vcpus {
            queue.enqueue(vcpu, 0, &POLICY);
        }
        queue
    }

    /// Runs `queue` until `end`, each vCPU to the end of its slice; returns the time that each one had.
    fn run(queue: &mut RunQueue, vcpus: usize, end: u64) -> Vec<u64> {
        let mut had = alloc::vec![0; vcpus];
        let mut now = 0;
        while now < end {
            let vcpu = queue.pick(now).unwrap();
            let until = queue.slice_end(&POLICY).min(end);
            had[vcpu as usize] += until - now;
            now = until;
            queue.put_back(now, PutBack::Preempted);
        }
        had
    }

    #[test]
    fn busy_vcpus_share_the_cpu_evenly() {
        let had = run(&mut queue(5), 5, 100_000);
        assert!(had.iter().all(|time| (19_000..=21_000).contains(time)), "{had:?}");
    }

    #[test]
    fn a_slice_ends_only_if_someone_waits() {
        let mut queue = queue(1);
        queue.pick(0);
        assert_eq!(queue.slice_end(&POLICY), u64::MAX);
        assert!(!queue.should_switch(1_000_000, &POLICY));
        queue.enqueue(7, 0, &POLICY);
        assert_eq!(queue.slice_end(&POLICY), 1000);
    }

    #[test]
    fn a_sleeper_preempts_a_hog_soon_but_not_at_once() {
        let mut queue = queue(1);
        queue.pick(0);
        queue.enqueue(1, 0, &POLICY);
        assert!(!queue.should_switch(0, &POLICY));
        assert!(!queue.should_switch(POLICY.wakeup_margin - 1, &POLICY));
        assert!(queue.should_switch(POLICY.wakeup_margin + 500, &POLICY));
    }

    #[test]
    fn a_long_sleep_earns_no_more_than_half_a_slice() {
        let mut queue = queue(2);
        run(&mut queue, 2, 1_000_000);
        queue.enqueue(2, 0, &POLICY);
        let mut turns = 0;
        let mut now = 1_000_000;
        while queue.pick(now) == Some(2) {
            turns += 1;
            now += 1000;
            queue.put_back(now, PutBack::Preempted);
        }
        assert!((1..=2).contains(&turns), "{turns} slices in a row");
    }

    #[test]
    fn a_spinner_goes_behind_everyone_who_waits() {
        let mut queue = queue(4);
        let spinner = queue.pick(0).unwrap();
        queue.put_back(1, PutBack::Yielded);
        for turn in 0..3 {
            let next = queue.pick(1 + turn).unwrap();
            assert_ne!(next, spinner);
            queue.take_off(1 + turn);
        }
        assert_eq!(queue.pick(10), Some(spinner));
    }

    #[test]
    fn the_stolen_one_would_have_run_last_and_keeps_its_place() {
        let mut queue = queue(2);
        queue.pick(0);
        queue.put_back(900, PutBack::Preempted);
        let (stolen, lag) = queue.steal().unwrap();
        assert_eq!((stolen, lag), (0, 900));
        assert_eq!(queue.load(), 1);
    }

    #[test]
    fn timers_expire_in_order_and_can_be_forgotten() {
        let mut queue = queue(0);
        queue.add_timer(30, 3);
        queue.add_timer(10, 1);
        queue.add_timer(20, 2);
        assert_eq!(queue.next_timer(), 10);
        assert_eq!(queue.pop_expired(9), None);
        queue.remove_timer(2);
        assert_eq!(queue.pop_expired(100), Some(1));
        assert_eq!(queue.pop_expired(100), Some(3));
        assert_eq!(queue.next_timer(), u64::MAX);
    }
}
