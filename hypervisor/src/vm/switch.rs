//! From one vCPU to the next: saves the vCPU that leaves its CPU and puts it where it belongs, and
//! takes the next. `run.rs` decides why and when.

use coherence::Owner;
use core::mem::ManuallyDrop;
use hostlink::counters::Counter;
use hostlink::trace::Event;

use super::arch::{Arch, State};
use super::context::{Context, Saved};
use super::host::Host;
use super::machine::Vcpu;
use super::percpu::PerCpu;
use super::run::wait_for_turn;
use crate::sched::{Block, PutBack, Released, Turn, notify};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// It waits for an interrupt; at the latest until this time.
    Blocked(u64),
    /// Another vCPU is to run.
    PutBack(PutBack),
    /// The guest stops.
    Parked,
}

/// Takes ownership of a vCPU that the scheduler has given to this CPU.
fn own<A: Arch>(vcpu: &Vcpu<A>) -> ManuallyDrop<Owner<'_>> {
    // The scheduler gives a vCPU to one CPU at a time; two owners would be a scheduler bug.
    ManuallyDrop::new(vcpu.target.owner().expect("the vCPU runs on another CPU"))
}

impl<'a, A: Arch> Context<'a, A> {
    /// Starts with the vCPU whose turn it is.
    pub(super) fn new(
        host: &'static Host<A>,
        cpu: &'static PerCpu<A>,
        turn: &Turn,
        workspace: &'a mut A::Workspace,
    ) -> Self {
        // SAFETY: the scheduler has given the vCPU to this CPU, and the results are used during its
        // turn only.
        let (vm, vcpu) = unsafe { host.vcpu(turn.vcpu) };
        let owner = own(vcpu);
        // SAFETY: the owner is held as long as the reference is used, see `release` and `take_on`.
        let state = unsafe { vcpu.state() };
        let counters = host.counters_of(vcpu.row);
        let mut context = Self { host, vm, cpu, vcpu, counters, owner, state, workspace };
        context.arrive(turn);
        context
    }

    /// Gives up the vCPU: another CPU may run it from now on.
    ///
    /// # Safety
    ///
    /// Neither owner nor state is used before [`take_on`](Self::take_on).
    unsafe fn release(owner: &mut ManuallyDrop<Owner<'_>>, _: &Saved) -> Released {
        // SAFETY: the caller promises that the owner is not used again before it is replaced.
        Released::by(unsafe { ManuallyDrop::take(owner) })
    }

    /// Continues with the vCPU whose turn it is, after the previous one has been released.
    #[inline(always)] // Together with the next two it makes up `switch_vcpu`.
    fn take_on(&mut self, turn: &Turn) {
        // SAFETY: the scheduler has given the vCPU to this CPU, and the results are used during its
        // turn only.
        let (vm, vcpu) = unsafe { self.host.vcpu(turn.vcpu) };
        self.vm = vm;
        self.vcpu = vcpu;
        self.counters = self.host.counters_of(turn.vcpu);
        self.owner = own(vcpu);
        // SAFETY: the owner was just taken, and is held as long as the reference is used.
        self.state = unsafe { vcpu.state() };
        self.arrive(turn);
    }

    #[inline(always)]
    fn arrive(&mut self, turn: &Turn) {
        self.count(Counter::SchedIn);
        if turn.migrated {
            self.count(Counter::SchedMigrated);
        }
        self.add(Counter::SchedSteal, turn.waited);
        self.cpu.note_current(Some(self.vcpu.row));
        self.cpu.trace_with(Event::TurnBegins, self.vcpu.row, turn.migrated.into(), [0; 2]);
        A::load_state(self, turn);
    }

    /// Takes the vCPU off this CPU and continues with the next runnable one.
    #[inline(never)] // Kept apart from the loop over exits.
    pub(super) fn switch_vcpu(&mut self, mut leave: Leave, mut now: u64) {
        loop {
            now = self.switch_once(leave, now);
            let Some(another) = self.check_on_arrival(now) else { return };
            match self.count_turn(another) {
                None => return,
                Some(another) => leave = another,
            }
            now = A::now();
        }
    }

    #[cold]
    #[inline(never)]
    fn balance(&self, now: u64) {
        self.host.nudge(self.host.sched.balance(self.cpu.index, now));
    }

    /// Takes the vCPU off this CPU, puts it where it belongs, and takes the next one. Returns the
    /// time: `now` unless the CPU had to wait for the next one.
    #[inline(always)]
    fn switch_once(&mut self, leave: Leave, now: u64) -> u64 {
        // While the guest certainly exists.
        self.publish_used(now);
        let space = self.state.space();
        // Saved before any other CPU can find the vCPU, and not asked for a register after that.
        let saved = self.save();
        let known = match leave {
            Leave::Blocked(deadline) => {
                let (cpu, vcpu, owner) = (self.cpu, self.vcpu.row, &mut self.owner);
                let block = self.host.sched.block(self.cpu.index, now, deadline, || {
                    owner.try_halt(space).then(|| {
                        cpu.trace(Event::TurnEnds, vcpu);
                        // SAFETY: the next is taken on below: a scheduler that lets a vCPU block
                        // never refuses.
                        unsafe { Self::release(owner, &saved) }
                    })
                });
                let Block::Next(next) = block else {
                    // Something was posted meanwhile: the vCPU goes on.
                    A::reload_state(self);
                    return now;
                };
                self.count(Counter::SchedHalt);
                next
            }
            Leave::PutBack(why) => {
                self.count(match why {
                    PutBack::Preempted => Counter::SchedPreempted,
                    PutBack::Yielded => Counter::SchedYield,
                    PutBack::Passive => Counter::SchedPassive,
                });
                let cpu = self.cpu;
                cpu.trace(Event::TurnEnds, self.vcpu.row);
                // SAFETY: the next is taken on below.
                let released = unsafe { Self::release(&mut self.owner, &saved) };
                notify::put_back(self.host, (cpu.index, now), why, released, || cpu.note_current(None))
            }
            Leave::Parked => {
                self.cpu.trace(Event::TurnEnds, self.vcpu.row);
                // SAFETY: as above.
                let released = unsafe { Self::release(&mut self.owner, &saved) };
                self.cpu.note_current(None);
                let leaves = || Some(released);
                let Block::Next(next) = self.host.sched.block(self.cpu.index, now, u64::MAX, leaves) else {
                    unreachable!("a vCPU that runs can always stop")
                };
                if self.vm.leave_for_stop() {
                    self.host.end_with_last();
                }
                next
            }
        };
        let (turn, now) = match known {
            Some(turn) => (turn, now),
            None => (wait_for_turn(self.host, self.cpu, self.workspace), A::now()),
        };
        self.take_on(&turn);
        if self.host.sched.balances() {
            self.balance(now);
        }
        self.cpu.used_until.set(now);
        now
    }
}
