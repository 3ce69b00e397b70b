//! The scheduler: the vCPUs of several guests on few CPUs.
//!
//! It has two levels. Above, the guests share the CPUs by their weights, whatever number of vCPUs
//! they have: see `ledger`. Below, the vCPUs of a guest share what it gets on a CPU. Each CPU has
//! its own [queue](queue::RunQueue), ordered by the time that its vCPUs have run (a virtual clock,
//! as in Linux' CFS). The rules:
//!
//! * The guest that has had least for its weight is next, and of its vCPUs the one that has run
//!   least, for at most a slice while others wait, seven eighths of it where there are several
//!   guests, and without limit otherwise.
//! * A guest whose turn was ended stands back a little behind the others that wait for the CPU.
//! * A guest with a cap is held once it has used what it may.
//! * A guest that somebody waits for is put first. What it uses beyond its share or its cap is a
//!   loan, which is paid back.
//! * A vCPU that has waited for very long runs next, whatever its guest has had, but for its cap.
//! * A vCPU that waits for an interrupt is in no queue. When it wakes it goes to an idle CPU if
//!   there is one, to its last CPU otherwise, and preempts a vCPU that has run for longer than a
//!   small margin.
//! * A vCPU that only its timer wakes waits in a separate class, which shares the CPU with the
//!   vCPUs that have work (see [`queue`]).
//! * A vCPU that spins goes behind all waiting vCPUs of its guest. A vCPU that waits for a word in
//!   memory is skipped until the word has changed.
//! * A CPU without work takes a vCPU from the longest queue; a queue that has two more than the
//!   shortest gives one up when one of its vCPUs is put back. A guest that waits behind another on
//!   one CPU goes to the CPU of one that is far ahead (see `balance`). A CPU without work also gets
//!   a vCPU whose guest's cap holds it no more, and one that runs, if it may run none of those that
//!   wait for that one's CPU.
//! * A vCPU waits and runs only on the CPUs of its guest's set.
//!
//! A vCPU's state is saved before it appears in any queue, and it is in at most one queue. Its move
//! is made under the lock of the queue it blocks on, and then under the lock of the queue that it
//! is put into, never under both.

mod balance;
mod groups;
mod ledger;
#[cfg(all(test, loom))]
mod model;
pub mod notify;
mod place;
pub mod queue;
#[cfg(all(test, not(loom)))]
mod simulation;
pub mod spinning;
#[cfg(all(test, not(loom)))]
mod tests;
mod turns;

use alloc::sync::Arc;
use alloc::vec::Vec;
use coherence::Owner;

use crate::sync::{AtomicU32, Ordering};
use ledger::Ledger;
use place::{CpuQueue, Home};

pub use crate::index::CpuIndex;
pub use groups::{GroupIndex, Share};
pub use queue::{Policy, PutBack, QueueClass, RunQueue, Standing, VcpuIndex};
pub use turns::{TURNS_MAX, Turns};

/// The action required after a vCPU was put into a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nudge {
    /// Nothing: it runs when its turn comes.
    Nothing,
    /// The CPU idles: interrupt it.
    Idle(CpuIndex),
    /// The vCPU that runs there must check again: post it an event.
    Running(VcpuIndex),
}

/// A queue's state as it concerns the CPU while a vCPU runs on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueState {
    /// The vCPU should make room for another.
    pub should_switch: bool,
    /// Other vCPUs wait for the CPU.
    pub has_waiting: bool,
    /// A vCPU that blocks here must be woken.
    pub timer_expired: bool,
    /// When to check again: the end of the slice or the next timer; `u64::MAX` for never.
    pub next_event: u64,
}

/// A vCPU's turn on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The vCPU whose turn it is.
    pub vcpu: VcpuIndex,
    /// It ran on another CPU before.
    pub migrated: bool,
    /// For how long it could have run and did not.
    pub waited: u64,
}

/// The outcome of an attempt to block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// There is something to do: the vCPU runs on.
    Refused,
    /// It blocks, and the next vCPU gets the CPU; `None` if none waits here.
    Next(Option<Turn>),
}

/// A vCPU was saved and has no owner any more. Whatever lets another CPU find it takes this.
#[derive(Debug)]
#[must_use = "nobody runs the vCPU any more"]
pub struct Released(());

impl Released {
    /// Another CPU may own the vCPU from now on.
    #[inline(always)] // A part of the switch.
    pub fn by(owner: Owner<'_>) -> Self {
        drop(owner);
        Self(())
    }

    #[cfg(test)]
    pub(crate) const fn made() -> Self {
        Self(())
    }
}

/// All queues.
#[derive(Debug)]
pub struct Scheduler {
    /// The CPUs that run vCPUs.
    cpus: Vec<CpuIndex>,
    /// Indexed by CPU. CPUs that run no vCPUs have a queue too, which is always empty.
    places: Vec<CpuQueue>,
    /// Indexed by vCPU.
    homes: Vec<Home>,
    /// Indexed by vCPU: its guest.
    groups: Vec<AtomicU32>,
    ledger: Arc<Ledger>,
    policy: Policy,
    /// Whether a vCPU that waits for memory to change may go on.
    may_go: fn(VcpuIndex) -> bool,
}

impl Scheduler {
    /// Queues for these CPUs, at least one, and room for `vcpus` vCPUs of `groups` guests, of which
    /// there are none yet. The CPUs' indices may have gaps.
    ///
    /// # Panics
    ///
    /// If there is no CPU.
    pub fn new(cpus: Vec<CpuIndex>, vcpus: u32, groups: u32, policy: Policy) -> Self {
        let last = *cpus.iter().max().expect("a CPU runs vCPUs");
        let groups = groups.max(1);
        let ledger = Arc::new(Ledger::new(groups, last.0 + 1, cpus.len(), policy));
        let place = |cpu| {
            let (vcpus, groups) = if cpus.contains(&cpu) { (vcpus, groups) } else { (0, 0) };
            CpuQueue::new(RunQueue::new(cpu, vcpus as usize, groups as usize, ledger.clone()))
        };
        Self {
            places: (0..=last.0).map(CpuIndex).map(place).collect(),
            homes: (0..vcpus).map(|_| Home::default()).collect(),
            groups: (0..vcpus).map(|_| AtomicU32::new(0)).collect(),
            policy,
            cpus,
            may_go: |_| true,
            ledger,
        }
    }

    /// Sets the function that decides whether a vCPU that waits for memory to change may go on. It
    /// is called with a queue's lock held, for many vCPUs in a row.
    pub fn asking(self, may_go: fn(VcpuIndex) -> bool) -> Self {
        Self { may_go, ..self }
    }

    #[inline]
    fn place(&self, cpu: CpuIndex) -> &CpuQueue {
        &self.places[cpu.place()]
    }

    /// The scheduler's policy.
    #[inline]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether `cpu` runs vCPUs.
    pub fn has_cpu(&self, cpu: CpuIndex) -> bool {
        self.cpus.contains(&cpu)
    }

    /// How many CPUs run vCPUs.
    pub fn cpu_count(&self) -> u32 {
        self.cpus.len() as u32
    }

    /// Lets `cpu` run the vCPU with the strongest claim: one of its own, or one of the longest
    /// queue. `None`: it may idle; a CPU that gives it work later finds it idle and nudges it.
    pub fn next(&self, cpu: CpuIndex, now: u64) -> Option<Turn> {
        if let Some(turn) = self.place(cpu).with(|own| self.start(cpu, own, now)) {
            return Some(turn);
        }
        let (vcpu, standing) = self.steal_for(cpu, now)?;
        self.place(cpu).with(|own| {
            let _nobody_runs = own.enqueue(vcpu, standing, &self.policy);
            self.start(cpu, own, now)
        })
    }

    #[inline(always)] // As for `RunQueue::pick`.
    fn start(&self, cpu: CpuIndex, queue: &mut RunQueue, now: u64) -> Option<Turn> {
        let vcpu = queue.pick(now, |vcpu| (self.may_go)(vcpu), |vcpu| self.waits_since(vcpu))?;
        // Only the owner of the vCPU writes its home; wakers read it after the next release of this
        // lock.
        let home = &self.homes[vcpu.place()];
        home.timer_line.store(0, Ordering::Relaxed);
        let migrated = home.cpu.load(Ordering::Relaxed) != cpu.0;
        if migrated {
            home.cpu.store(cpu.0, Ordering::Relaxed);
        }
        // Another CPU's clock may be a little ahead.
        let waited = now.saturating_sub(home.ready_since.load(Ordering::Relaxed));
        Some(Turn { vcpu, migrated, waited })
    }

    /// Puts the vCPU that runs on `cpu` back among the waiting ones, here or on a CPU with a
    /// smaller load, and lets the next one run.
    pub fn switch(&self, cpu: CpuIndex, now: u64, why: PutBack, _: Released) -> (Option<Turn>, Nudge) {
        let (turn, surplus) = self.place(cpu).with(|own| {
            if let Some(running) = own.turn() {
                let home = &self.homes[running.vcpu.place()];
                home.ready_since.store(now, Ordering::Relaxed);
                home.charge(running.had(now));
                own.put_back(&running, now, why, &self.policy);
            }
            let surplus = self.surplus(own, cpu, now);
            (self.start(cpu, own, now), surplus)
        });
        let enqueue = |(emptier, (vcpu, standing))| self.enqueue(emptier, vcpu, standing);
        (turn, surplus.map_or(Nudge::Nothing, enqueue))
    }

    /// Takes the vCPU that runs on `cpu` off it if `commit` releases it, and lets the next one run.
    /// `deadline` is when it must be woken at the latest, `u64::MAX` for never.
    ///
    /// `commit` runs under the queue's lock. A waker that sees the vCPU blocked waits for that
    /// lock, so it finds the timer set and the vCPU off the CPU.
    pub fn block(
        &self,
        cpu: CpuIndex,
        now: u64,
        deadline: u64,
        commit: impl FnOnce() -> Option<Released>,
    ) -> Block {
        let place = self.place(cpu);
        place.with(|own| {
            let Some(running) = own.turn() else { return Block::Refused };
            if commit().is_none() {
                return Block::Refused;
            }
            let home = &self.homes[running.vcpu.place()];
            home.charge(running.had(now));
            home.virtual_time.store(own.take_off(&running, now), Ordering::Relaxed);
            if deadline != u64::MAX {
                own.add_timer(deadline, running.vcpu);
                place.note_timers(own);
            }
            Block::Next(self.start(cpu, own, now))
        })
    }

    /// Makes a vCPU runnable that is in no queue: it was blocked, and the caller has the right to
    /// wake it. It waits in `class`, from `now` on.
    pub fn wake(&self, vcpu: VcpuIndex, class: QueueClass, now: u64) -> Nudge {
        let home = &self.homes[vcpu.place()];
        // Relaxed: it is read under the lock of the queue into which the vCPU is put below.
        home.ready_since.store(now, Ordering::Relaxed);
        // Relaxed: the notify word, by which the caller knows that it may wake the vCPU, orders it.
        let cpu = CpuIndex(home.cpu.load(Ordering::Relaxed));
        let place = self.place(cpu);
        let placed = place.with(|own| {
            if own.remove_timer(vcpu) {
                place.note_timers(own);
            }
            let standing = own.standing(vcpu, home.virtual_time.load(Ordering::Relaxed), class);
            // On the way to a better CPU only one lock is held at a time.
            match self.better_than(cpu, own, vcpu, now) {
                Some(emptier) => Err((emptier, standing)),
                None => Ok(self.enqueue_in(own, cpu, vcpu, standing)),
            }
        });
        placed.unwrap_or_else(|(emptier, standing)| self.enqueue(emptier, vcpu, standing))
    }

    #[inline(never)] // Usually to another CPU.
    fn enqueue(&self, cpu: CpuIndex, vcpu: VcpuIndex, standing: Standing) -> Nudge {
        self.place(cpu).with(|queue| self.enqueue_in(queue, cpu, vcpu, standing))
    }

    #[inline(always)] // Waking is half of a switch between two vCPUs.
    fn enqueue_in(&self, queue: &mut RunQueue, cpu: CpuIndex, vcpu: VcpuIndex, standing: Standing) -> Nudge {
        if standing.is_expired() {
            self.homes[vcpu.place()].timer_line.store(cpu.0 + 1, Ordering::Relaxed);
        }
        let sooner = queue.enqueue(vcpu, standing, &self.policy);
        match queue.running() {
            Some(running) if sooner => Nudge::Running(running),
            Some(_) => Nudge::Nothing,
            None => Nudge::Idle(cpu),
        }
    }

    /// An interrupt was posted to a vCPU that need not be woken: if it waits in a timer class, it
    /// has work now.
    ///
    /// A vCPU that enters the line at this very moment may stay there: it is then late, not lost.
    #[inline]
    pub fn promote(&self, vcpu: VcpuIndex) -> Nudge {
        match self.homes[vcpu.place()].timer_line.load(Ordering::Relaxed).checked_sub(1) {
            None => Nudge::Nothing,
            Some(cpu) => self.promote_on(CpuIndex(cpu), vcpu),
        }
    }

    #[cold]
    fn promote_on(&self, cpu: CpuIndex, vcpu: VcpuIndex) -> Nudge {
        self.place(cpu).with(|queue| {
            if !queue.promote(vcpu, &self.policy) {
                return Nudge::Nothing;
            }
            self.homes[vcpu.place()].timer_line.store(0, Ordering::Relaxed);
            queue.running().map_or(Nudge::Idle(cpu), Nudge::Running)
        })
    }

    /// The queue's state as it concerns `cpu`, the calling CPU, while its vCPU runs.
    ///
    /// Another CPU may put a vCPU into the queue afterwards, which is not counted here. It then
    /// posts the running vCPU an event, so that this CPU checks again before it next enters the
    /// guest.
    #[inline]
    pub fn queue_state(&self, cpu: CpuIndex, now: u64) -> QueueState {
        let place = self.place(cpu);
        if place.watched_load() > 1 {
            return self.queue_state_among_others(cpu, now);
        }
        // Only this CPU adds timers.
        let timer = place.next_timer.load(Ordering::Relaxed);
        QueueState {
            should_switch: false,
            has_waiting: false,
            timer_expired: timer <= now,
            next_event: timer,
        }
    }

    #[inline(never)]
    fn queue_state_among_others(&self, cpu: CpuIndex, now: u64) -> QueueState {
        let queue = self.place(cpu).queue.lock();
        let mut state = queue.queue_state(now, &self.policy);
        if self.ledger.is_in_use() && state.has_waiting && !state.should_switch {
            state.should_switch = self.is_wanted(&queue, cpu, now);
        }
        state
    }

    /// The same after `cpu` has put a vCPU into its own queue, so that another vCPU very likely
    /// waits there.
    #[inline(always)]
    pub fn queue_state_after_wake(&self, cpu: CpuIndex, now: u64) -> QueueState {
        self.place(cpu).queue.lock().queue_state(now, &self.policy)
    }

    /// Whether any vCPU waits for `cpu`, on which one runs. Does not take the lock.
    pub fn has_waiting(&self, cpu: CpuIndex) -> bool {
        self.place(cpu).load() > 1
    }

    /// When `cpu`, which idles, must next check the scheduler: the next timer, or the end of the
    /// time for which a guest's cap holds it.
    pub fn next_event(&self, cpu: CpuIndex) -> u64 {
        let place = self.place(cpu);
        if self.ledger.is_in_use() {
            return place.queue.lock().next_event();
        }
        place.next_timer.load(Ordering::Relaxed)
    }

    /// Takes one vCPU that blocked on `cpu` and whose deadline has passed; the caller posts it its
    /// event.
    pub fn pop_expired(&self, cpu: CpuIndex, now: u64) -> Option<VcpuIndex> {
        let place = self.place(cpu);
        place.with(|own| {
            let vcpu = own.pop_expired(now)?;
            place.note_timers(own);
            Some(vcpu)
        })
    }
}
