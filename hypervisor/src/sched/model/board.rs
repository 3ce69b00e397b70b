//! CPUs, vCPUs and interrupt lines.

use coherence::{CpuId, Owner, Space, Target};
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::cell::Cell;
use std::vec::Vec;

use crate::sched::notify::{self, Published, Reach, Taken};
use crate::sched::{
    Block, CpuIndex, Policy, PutBack, QueueClass, Released, Scheduler, Share, Turn, VcpuIndex,
};

/// The guest's behaviour when it runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Guest {
    Halts,
    /// It runs until it is interrupted.
    Runs,
}

pub(super) struct Vcpu {
    pub(super) target: Target,
    /// Number of items that were posted and not found yet.
    pub(super) inbox: AtomicU64,
    guest: Guest,
}

/// Everything that the CPUs share.
pub(super) struct Board {
    pub(super) sched: Scheduler,
    pub(super) vcpus: Vec<Vcpu>,
    /// A CPU's pending interrupt. It orders nothing.
    pub(super) lines: Vec<AtomicU64>,
    /// Number of items that were found.
    found: AtomicU64,
    expected: u64,
}

impl Board {
    /// One CPU for each index below `cpus`; none of the vCPUs, all of one guest, is runnable. The
    /// CPUs stop once `expected` items have been found.
    pub(super) fn new(cpus: u32, guests: &[Guest], expected: u64) -> Self {
        let board = Self::empty(cpus, guests, expected);
        board.sched.add_group(0, VcpuIndex(0)..VcpuIndex(guests.len() as u32), Share::default());
        board
    }

    /// The same, with each vCPU a guest of its own.
    pub(super) fn apart(cpus: u32, guests: &[Guest], expected: u64) -> Self {
        let board = Self::empty(cpus, guests, expected);
        for vcpu in 0..guests.len() as u32 {
            board.sched.add_group(vcpu, VcpuIndex(vcpu)..VcpuIndex(vcpu + 1), Share::default());
        }
        board
    }

    /// The same without a guest, and with room for one for each vCPU.
    pub(super) fn empty(cpus: u32, guests: &[Guest], expected: u64) -> Self {
        let vcpu = |&guest: &Guest| Vcpu { target: Target::new(), inbox: AtomicU64::new(0), guest };
        let count = guests.len() as u32;
        Self {
            sched: Scheduler::new((0..cpus).map(CpuIndex).collect(), count, count, Policy::new(1000)),
            vcpus: guests.iter().map(vcpu).collect(),
            lines: (0..cpus).map(|_| AtomicU64::new(0)).collect(),
            found: AtomicU64::new(0),
            expected,
        }
    }

    /// A vCPU has blocked on `cpu`, on which no vCPU runs.
    pub(super) fn block(&self, cpu: u32, vcpu: u32, deadline: u64) {
        let (cpu, vcpu) = (CpuIndex(cpu), VcpuIndex(vcpu));
        let _ = self.sched.wake(vcpu, QueueClass::Work, 0);
        assert_eq!(self.sched.next(cpu, 0).map(|turn| turn.vcpu), Some(vcpu));
        let mut owner = self.vcpus[vcpu.place()].target.owner().expect("free");
        let block = self
            .sched
            .block(cpu, 0, deadline, || owner.try_halt(Space::UNKNOWN).then(|| Released::by(owner)));
        assert_eq!(block, Block::Next(None));
    }

    /// A read-modify-write, because a relaxed load may be stale forever.
    fn is_done(&self) -> bool {
        self.found.fetch_or(0, Relaxed) >= self.expected
    }

    /// Waits for a CPU's interrupt, and takes it; false if the run is over instead.
    pub(super) fn wait(&self, cpu: CpuIndex) -> bool {
        /// Effects that other threads have after a few turns also occur after one turn in some
        /// other execution.
        const EXPLORED_TURNS: u64 = 2;
        for turn in 0_u64.. {
            if self.lines[cpu.place()].swap(0, Relaxed) != 0 {
                return true;
            }
            if self.is_done() {
                return false;
            }
            if turn >= EXPLORED_TURNS {
                loom::skip_branch();
            }
            loom::thread::yield_now();
        }
        unreachable!()
    }
}

/// The building blocks of a scenario. The provided methods are the real implementation, or follow
/// its order in the run loop.
pub(super) trait Steps: Sized + 'static {
    /// Treats a vCPU as here until it is in a queue again, not just until it is released.
    const HERE_TOO_LONG: bool = false;

    /// A to D.
    fn post(here: &impl Reach, vcpu: &Vcpu, index: VcpuIndex) {
        vcpu.inbox.fetch_add(1, Relaxed);
        Self::notify(here, index, &vcpu.target, QueueClass::Work);
    }

    fn notify(here: &impl Reach, vcpu: VcpuIndex, target: &Target, class: QueueClass) {
        notify::notify(here, vcpu, target, class, Published::here());
    }

    /// E and F, whether F is due or not: returns whether the vCPU must make room.
    fn settle(cpu: &Cpu<'_>, owner: &mut Owner<'_>, vcpu: &Vcpu) -> bool {
        let taken = notify::take_events(owner).unwrap_or(Taken::NONE);
        cpu.look::<Self>(vcpu, taken)
    }

    /// G.
    fn try_halt(owner: &mut Owner<'_>) -> bool {
        owner.try_halt(Space::UNKNOWN)
    }

    /// L; false if the run is over.
    fn idle(cpu: &Cpu<'_>) -> bool {
        cpu.board.wait(cpu.index)
    }
}

/// The unmodified steps.
pub(super) struct Real;

impl Steps for Real {}

/// A poster that runs no vCPU: a CPU that serves the host, in its interrupt handler.
pub(super) struct Outside<'b>(pub(super) &'b Board);

impl Reach for Outside<'_> {
    fn scheduler(&self) -> &Scheduler {
        &self.0.sched
    }

    fn now(&self) -> u64 {
        0
    }

    fn target(&self, vcpu: VcpuIndex) -> Option<&Target> {
        self.0.vcpus.get(vcpu.place()).map(|vcpu| &vcpu.target)
    }

    fn is_here(&self, _: VcpuIndex) -> bool {
        false
    }

    fn check_queue(&self) {
        unreachable!("no vCPU is here")
    }

    fn kick_idle(&self, cpu: CpuIndex) {
        // A read-modify-write, because loom may delay a relaxed store forever.
        self.0.lines[cpu.place()].swap(1, Relaxed);
    }

    fn kick_guest(&self, _: VcpuIndex, cpu: CpuIndex) {
        self.kick_idle(cpu);
    }
}

impl Outside<'_> {
    pub(super) fn post<S: Steps>(&self, vcpu: VcpuIndex) {
        S::post(self, &self.0.vcpus[vcpu.place()], vcpu);
    }
}

/// A CPU that runs vCPUs.
pub(super) struct Cpu<'b> {
    pub(super) board: &'b Board,
    pub(super) index: CpuIndex,
    /// The vCPU that is here.
    pub(super) current: Cell<Option<VcpuIndex>>,
    pub(super) check_queue: Cell<bool>,
}

impl Reach for Cpu<'_> {
    fn scheduler(&self) -> &Scheduler {
        &self.board.sched
    }

    fn now(&self) -> u64 {
        0
    }

    fn target(&self, vcpu: VcpuIndex) -> Option<&Target> {
        self.board.vcpus.get(vcpu.place()).map(|vcpu| &vcpu.target)
    }

    fn is_here(&self, vcpu: VcpuIndex) -> bool {
        self.current.get() == Some(vcpu)
    }

    fn check_queue(&self) {
        self.check_queue.set(true);
    }

    fn kick_idle(&self, cpu: CpuIndex) {
        Outside(self.board).kick_idle(cpu);
    }

    fn kick_guest(&self, vcpu: VcpuIndex, cpu: CpuIndex) {
        Outside(self.board).kick_guest(vcpu, cpu);
    }
}

impl<'b> Cpu<'b> {
    pub(super) fn new(board: &'b Board, index: CpuIndex) -> Self {
        Self { board, index, current: Cell::new(None), check_queue: Cell::new(false) }
    }

    /// The loop of a CPU, until the run is over.
    pub(super) fn run<S: Steps>(&self) {
        let mut next = None;
        while let Some(turn) = next.take().or_else(|| self.wait_for_turn::<S>()) {
            match self.take_turn::<S>(turn.vcpu) {
                Some(followed) => next = followed,
                None => return,
            }
        }
    }

    /// K and L.
    fn wait_for_turn<S: Steps>(&self) -> Option<Turn> {
        self.current.set(None);
        loop {
            if let Some(turn) = self.board.sched.next(self.index, 0) {
                return Some(turn);
            }
            if !self.wake_expired::<S>() && !S::idle(self) {
                return None;
            }
        }
    }

    fn wake_expired<S: Steps>(&self) -> bool {
        let mut any = false;
        while let Some(vcpu) = self.board.sched.pop_expired(self.index, 0) {
            S::notify(self, vcpu, &self.board.vcpus[vcpu.place()].target, QueueClass::Timer);
            any = true;
        }
        any
    }

    /// F: the inbox, then whether another vCPU wants the CPU.
    pub(super) fn look<S: Steps>(&self, vcpu: &Vcpu, _: Taken) -> bool {
        if vcpu.inbox.load(Relaxed) != 0 {
            self.board.found.fetch_add(vcpu.inbox.swap(0, Relaxed), Relaxed);
        }
        let mut queue_state = self.board.sched.queue_state(self.index, 0);
        if queue_state.timer_expired && self.wake_expired::<S>() {
            queue_state = self.board.sched.queue_state(self.index, 0);
        }
        // A vCPU that halts does so before its slice is over.
        queue_state.has_waiting && vcpu.guest == Guest::Runs
    }

    /// Runs a vCPU on this CPU; returns the next one, or `None` if the run is over.
    fn take_turn<S: Steps>(&self, index: VcpuIndex) -> Option<Option<Turn>> {
        let sched = &self.board.sched;
        let vcpu = &self.board.vcpus[index.place()];
        let mut owner = Some(vcpu.target.owner().expect("the vCPU runs on another CPU"));
        self.current.set(Some(index));
        loop {
            let makes_room = S::settle(self, owner.as_mut().unwrap(), vcpu)
                || !self.enter::<S>(owner.as_mut().unwrap(), vcpu)?;
            if makes_room {
                return Some(self.put_back::<S>(owner.take().unwrap(), 0, PutBack::Yielded));
            }
            let block = sched.block(self.index, 0, u64::MAX, || {
                let has_halted = S::try_halt(owner.as_mut().unwrap());
                has_halted.then(|| Released::by(owner.take().unwrap()))
            });
            if let Block::Next(next) = block {
                return Some(next);
            }
        }
    }

    pub(super) fn put_back<S: Steps>(&self, owner: Owner<'_>, now: u64, why: PutBack) -> Option<Turn> {
        notify::put_back(self, (self.index, now), why, Released::by(owner), || {
            if !S::HERE_TOO_LONG {
                self.current.set(None);
            }
        })
    }

    /// Runs the guest, again after each interrupt; true if it halts, false if the vCPU must make
    /// room, and `None` if the run is over.
    fn enter<S: Steps>(&self, owner: &mut Owner<'_>, vcpu: &Vcpu) -> Option<bool> {
        loop {
            if self.check_queue.take() && self.board.sched.queue_state_after_wake(self.index, 0).has_waiting {
                return Some(false);
            }
            match owner.try_enter(CpuId(self.index.0)) {
                Ok(guest) => {
                    let goes_on = vcpu.guest == Guest::Halts || self.board.wait(self.index);
                    guest.leave();
                    if !goes_on {
                        return None;
                    }
                    if vcpu.guest == Guest::Halts {
                        return Some(true);
                    }
                }
                Err(pending) => assert!(pending.event),
            }
            if S::settle(self, owner, vcpu) {
                return Some(false);
            }
        }
    }
}
