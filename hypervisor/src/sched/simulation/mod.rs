//! A machine that runs the real scheduler: CPUs that do what the hypervisor's run loop does, and
//! vCPUs with simple habits. Time is simulated, so a run is the same each time.

mod caps;
mod fair;
mod greedy;
mod lifecycle;
mod random;
mod shares;
mod waits;

use core::ops::Range;
use hostlink::cpus::CpuSet;

use super::{
    Block, CpuIndex, GroupIndex, Nudge, Policy, PutBack, QueueClass, Released, Scheduler, Share, Turn,
    VcpuIndex,
};

/// Ticks in a millisecond.
const MS: u64 = 1000;
const SLICE: u64 = 5 * MS;

#[derive(Clone, Copy, Debug)]
enum Habit {
    Works,
    /// It runs for so long, then it sleeps for so long by its timer.
    Sleeps(u64, u64),
    /// It runs for so long, then it yields, spinning.
    Yields(u64),
    /// It runs for so long, then it waits for memory that changes after a slice.
    Waits(u64),
    /// It runs for so long, sleeps until another one of its guest has, and wakes all of them.
    Bursts(u64, u64),
    /// It runs for so long, wakes one of its guest, and sleeps until one does the same, or for two
    /// slices.
    Lends(u64),
}

#[derive(Clone, Debug)]
struct Vcpu {
    habit: Habit,
    group: GroupIndex,
    /// How long it still runs before it does something else.
    left: u64,
    had: u64,
    is_asleep: bool,
    /// Since when it waits for a CPU.
    ready_since: Option<u64>,
    /// How long it has waited each time.
    waits: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Cpu {
    current: Option<VcpuIndex>,
    /// When its vCPU's time was last counted.
    counted: u64,
    /// When it next does something: its timer, or the end of what the vCPU does.
    due: u64,
}

struct Machine {
    sched: Scheduler,
    cpus: Vec<Cpu>,
    vcpus: Vec<Vcpu>,
    sets: Vec<CpuSet>,
    windows: Vec<Windows>,
    now: u64,
    /// For how long a CPU idled while a vCPU waited that it may run.
    wasted: u64,
}

/// What a guest has had beyond its cap, in hundredths of ticks: the least so far, and the most of
/// any window.
#[derive(Clone, Copy, Debug)]
struct Windows {
    cap: Option<u32>,
    had: u64,
    least: i64,
    most: i64,
}

struct Guest {
    share: Share,
    habits: Vec<Habit>,
}

fn guest(weight: u32, habits: Vec<Habit>) -> Guest {
    Guest { share: Share { weight, ..Share::default() }, habits }
}

impl Guest {
    fn capped(mut self, cap: u32) -> Self {
        self.share.cap = Some(cap);
        self
    }

    fn uncapped(mut self) -> Self {
        self.share.cap = None;
        self
    }

    fn on(mut self, cpus: impl IntoIterator<Item = u32>) -> Self {
        self.share.cpus = cpus.into_iter().collect();
        self
    }
}

impl Machine {
    /// The machine with these guests when so many ticks have passed.
    fn after(ticks: u64, cpus: u32, guests: &[Guest]) -> Self {
        let mut machine = Self::new(cpus, guests);
        machine.run(ticks);
        machine
    }

    /// Starts guests whose vCPUs begin one after the other.
    fn new(cpus: u32, guests: &[Guest]) -> Self {
        let rows = guests.iter().map(|guest| guest.habits.len() as u32).sum();
        let policy = Policy::new(SLICE);
        let mut machine = Self {
            sched: Scheduler::new((0..cpus).map(CpuIndex).collect(), rows, guests.len() as u32, policy),
            cpus: (0..cpus).map(|_| Cpu { current: None, counted: 0, due: 0 }).collect(),
            vcpus: Vec::new(),
            sets: Vec::new(),
            windows: Vec::new(),
            now: 0,
            wasted: 0,
        };
        guests.iter().for_each(|guest| machine.add(guest));
        machine
    }

    fn add(&mut self, guest: &Guest) {
        let (group, first) = (self.sets.len() as u32, self.vcpus.len() as u32);
        let rows = VcpuIndex(first)..VcpuIndex(first + guest.habits.len() as u32);
        self.sched.add_group(group, rows.clone(), guest.share);
        self.sets.push(guest.share.cpus);
        let least = -i64::from(guest.share.cap.unwrap_or(0)) * self.now.cast_signed();
        self.windows.push(Windows { cap: guest.share.cap, had: 0, least, most: 0 });
        self.vcpus.extend(guest.habits.iter().map(|&habit| Vcpu {
            habit,
            group,
            left: 0,
            had: 0,
            is_asleep: true,
            ready_since: None,
            waits: Vec::new(),
        }));
        VcpuIndex::each(rows).for_each(|vcpu| self.wake(vcpu, QueueClass::Work));
    }

    fn wake(&mut self, vcpu: VcpuIndex, class: QueueClass) {
        let now = self.now;
        let state = &mut self.vcpus[vcpu.place()];
        assert!(core::mem::take(&mut state.is_asleep), "vCPU {vcpu} is awake");
        state.ready_since = Some(now);
        state.left = match state.habit {
            Habit::Works => u64::MAX,
            Habit::Sleeps(run, _) | Habit::Bursts(run, _) => run,
            Habit::Yields(run) | Habit::Waits(run) | Habit::Lends(run) => run,
        };
        let nudge = self.sched.wake(vcpu, class, now);
        self.obey(nudge);
    }

    fn obey(&mut self, nudge: Nudge) {
        let cpu = match nudge {
            Nudge::Nothing => return,
            Nudge::Idle(cpu) => cpu.place(),
            Nudge::Running(vcpu) => match self.cpus.iter().position(|cpu| cpu.current == Some(vcpu)) {
                Some(cpu) => cpu,
                None => return,
            },
        };
        self.cpus[cpu].due = self.cpus[cpu].due.min(self.now);
    }

    fn run(&mut self, ticks: u64) {
        let end = self.now + ticks;
        let mut steps = 0;
        while let Some((due, cpu)) =
            (0..).map(CpuIndex).zip(&self.cpus).map(|(index, cpu)| (cpu.due, index)).min()
            && due < end
        {
            steps = if self.pass(due) { 0 } else { steps + 1 };
            assert!(steps < 1000, "time stands still at {}", self.now);
            self.step(cpu);
        }
        self.pass(end);
        (0..self.cpus.len()).for_each(|cpu| self.count(CpuIndex(cpu as u32)));
    }

    /// Nothing happens until then. Returns whether it is later than now.
    fn pass(&mut self, until: u64) -> bool {
        let ticks = until.saturating_sub(self.now);
        self.wasted += if ticks > 0 && self.wastes() { ticks } else { 0 };
        self.now += ticks;
        if ticks > 0 {
            self.look_back();
        }
        ticks > 0
    }

    /// Ends a window of each guest that has a cap here.
    fn look_back(&mut self) {
        for (group, windows) in (0..).zip(&mut self.windows) {
            let Some(cap) = windows.cap else { continue };
            let runs = self
                .cpus
                .iter()
                .filter(|cpu| cpu.current.is_some_and(|vcpu| self.vcpus[vcpu.place()].group == group));
            let had = windows.had + runs.map(|cpu| self.now - cpu.counted).sum::<u64>();
            let beyond = (100 * had).cast_signed() - i64::from(cap) * self.now.cast_signed();
            windows.least = windows.least.min(beyond);
            windows.most = windows.most.max(beyond - windows.least);
        }
    }

    /// Whether a CPU idles while a vCPU waits that may run there and that no cap holds.
    fn wastes(&self) -> bool {
        let idle = |cpu: &u32| self.cpus[*cpu as usize].current.is_none();
        let idle: CpuSet = (0..self.cpus.len() as u32).filter(idle).collect();
        self.vcpus.iter().filter(|vcpu| vcpu.ready_since.is_some()).any(|vcpu| {
            let set = self.sets[vcpu.group as usize];
            let may_run = (0..self.cpus.len() as u32).any(|cpu| idle.contains(cpu) && set.contains(cpu));
            may_run && !self.sched.ledger.is_held(vcpu.group, self.now)
        })
    }

    /// Counts the time that the current vCPU has had.
    fn count(&mut self, cpu: CpuIndex) {
        let state = &mut self.cpus[cpu.place()];
        let had = self.now - core::mem::replace(&mut state.counted, self.now);
        if let Some(vcpu) = state.current {
            let vcpu = &mut self.vcpus[vcpu.place()];
            vcpu.had += had;
            self.windows[vcpu.group as usize].had += had;
            vcpu.left = vcpu.left.saturating_sub(had);
        }
    }

    fn step(&mut self, cpu: CpuIndex) {
        self.count(cpu);
        let now = self.now;
        let Some(vcpu) = self.cpus[cpu.place()].current else { return self.idle(cpu) };
        if self.vcpus[vcpu.place()].left == 0 {
            return self.act(cpu, vcpu);
        }
        let mut state = self.sched.queue_state(cpu, now);
        if state.timer_expired {
            self.wake_expired(cpu);
            state = self.sched.queue_state(cpu, now);
        }
        if state.should_switch {
            return self.switch(cpu, PutBack::Preempted);
        }
        let done = now.saturating_add(self.vcpus[vcpu.place()].left);
        self.cpus[cpu.place()].due = state.next_event.max(now + 1).min(done);
    }

    fn wake_expired(&mut self, cpu: CpuIndex) {
        while let Some(vcpu) = self.sched.pop_expired(cpu, self.now) {
            let class = if matches!(self.vcpus[vcpu.place()].habit, Habit::Sleeps(run, _) if run < MS / 10) {
                QueueClass::Timer
            } else {
                QueueClass::Work
            };
            self.wake(vcpu, class);
        }
    }

    fn idle(&mut self, cpu: CpuIndex) {
        self.wake_expired(cpu);
        let turn = self.sched.next(cpu, self.now);
        if turn.is_none() {
            self.cpus[cpu.place()].due = self.sched.next_event(cpu).max(self.now + 1);
            let nudge = self.sched.ask_for_running(cpu, self.now);
            self.obey(nudge);
        } else {
            self.begin(cpu, turn);
        }
    }

    fn begin(&mut self, cpu: CpuIndex, turn: Option<Turn>) {
        let now = self.now;
        let vcpu = turn.map(|turn| turn.vcpu);
        if let Some(Turn { vcpu, waited, .. }) = turn {
            let elsewhere = self.cpus.iter().position(|other| other.current == Some(vcpu));
            assert_eq!(elsewhere, None, "vCPU {vcpu} begins on CPU {cpu} while it runs");
            let state = &mut self.vcpus[vcpu.place()];
            assert!(self.sets[state.group as usize].contains(cpu.0), "vCPU {vcpu} may not run on CPU {cpu}");
            let since = state.ready_since.take().unwrap_or_else(|| panic!("vCPU {vcpu} is not runnable"));
            assert_eq!(waited, now - since, "vCPU {vcpu} was runnable for so long");
            state.waits.push(waited);
        }
        self.cpus[cpu.place()] = Cpu { current: vcpu, counted: now, due: now };
        if turn.is_some() {
            let nudge = self.sched.balance(cpu, now);
            self.obey(nudge);
        }
    }

    fn switch(&mut self, cpu: CpuIndex, why: PutBack) {
        if let Some(vcpu) = self.cpus[cpu.place()].current.take() {
            let state = &mut self.vcpus[vcpu.place()];
            state.ready_since = Some(self.now);
            if let (0, Habit::Yields(run) | Habit::Waits(run)) = (state.left, state.habit) {
                state.left = run;
            }
        }
        let (turn, nudge) = self.sched.switch(cpu, self.now, why, Released::made());
        self.begin(cpu, turn);
        self.obey(nudge);
    }

    /// The vCPU on `cpu` does what it has run for.
    fn act(&mut self, cpu: CpuIndex, vcpu: VcpuIndex) {
        let (habit, group) = (self.vcpus[vcpu.place()].habit, self.vcpus[vcpu.place()].group);
        let sleep = match habit {
            Habit::Works => unreachable!("its work has no end"),
            Habit::Yields(_) => return self.switch(cpu, PutBack::Yielded),
            Habit::Waits(_) => return self.switch(cpu, PutBack::Passive),
            Habit::Sleeps(_, sleep) | Habit::Bursts(_, sleep) => sleep,
            Habit::Lends(_) => 2 * SLICE,
        };
        let state = &mut self.vcpus[vcpu.place()];
        state.is_asleep = true;
        self.cpus[cpu.place()].current = None;
        match self.sched.block(cpu, self.now, self.now + sleep, || Some(Released::made())) {
            Block::Refused => panic!("a vCPU that runs may block"),
            Block::Next(turn) => self.begin(cpu, turn),
        }
        let wakes = match habit {
            Habit::Bursts(..) => usize::MAX,
            Habit::Lends(_) => 1,
            _ => 0,
        };
        if wakes > 0 {
            let its = |&other: &VcpuIndex| {
                let state = &self.vcpus[other.place()];
                other != vcpu && state.group == group && state.is_asleep
            };
            let asleep: Vec<_> =
                (0..self.vcpus.len() as u32).map(VcpuIndex).filter(its).take(wakes).collect();
            asleep.into_iter().for_each(|other| self.wake(other, QueueClass::Work));
        }
    }

    fn rows(&self, group: GroupIndex) -> Range<usize> {
        let first = self.vcpus.iter().position(|vcpu| vcpu.group == group).unwrap_or(0);
        let count = self.vcpus.iter().filter(|vcpu| vcpu.group == group).count();
        first..first + count
    }

    /// What each guest has had so far.
    fn had(&self) -> Vec<u64> {
        let of = |group| self.vcpus[self.rows(group)].iter().map(|vcpu| vcpu.had).sum();
        (0..self.sets.len() as u32).map(of).collect()
    }

    /// What each guest gets of one CPU in the next `ticks`, in per cent.
    fn measure(&mut self, ticks: u64) -> Vec<f64> {
        let before = self.had();
        self.run(ticks);
        let parts = self.had().into_iter().zip(before);
        parts.map(|(after, before)| (after - before) as f64 * 100.0 / ticks as f64).collect()
    }

    /// The longest time that a vCPU of the guest has waited for a CPU, waiting ones included.
    fn waited_max(&self, group: GroupIndex) -> u64 {
        let waited = |vcpu: &Vcpu| {
            let waits = vcpu.waits.iter().copied();
            waits.chain(vcpu.ready_since.map(|since| self.now - since)).max().unwrap_or(0)
        };
        self.vcpus[self.rows(group)].iter().map(waited).max().unwrap_or(0)
    }
}
