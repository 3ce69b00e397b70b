//! A reset: every vCPU stops, and the CPU of the last one restarts the guest, in steps.

use core::sync::atomic::Ordering;

use hostlink::counters::Counter;
use paging::Progress;

use super::arch::{Arch, State};
use super::counting::increase;
use super::machine::{Vm, attention};
use super::percpu::PerCpu;
use super::{GUEST, control};
use crate::sched::Line;

impl<A: Arch> Vm<A> {
    /// Begins a reset: every vCPU stops at its next check for events. Only the first caller has an
    /// effect.
    pub fn begin_reset(&self) {
        // Pairs with `attention`; of two concurrent callers one is first.
        if self.attention.fetch_or(attention::RESET, Ordering::AcqRel) & attention::RESET == 0 {
            self.vcpus.iter().for_each(|vcpu| self.notify(vcpu));
        }
    }

    /// A vCPU has stopped for the reset: it is in no queue, and its owner has been dropped. The CPU
    /// of the last one restarts the guest (`step_reset`).
    ///
    /// ```text
    /// each vCPU                               the CPU of the last vCPU
    /// A  state saved, owner dropped           C  parked = count (Acquire): all have done A
    /// B  parked += 1 (AcqRel)                 D  states and memory reset, RESET cleared, all woken
    /// ```
    /// B before C, so A before D.
    pub fn park(&self, cpu: &PerCpu<A>) {
        // Pairs with itself on the other CPUs: the last one sees what all the others have done.
        if self.parked.fetch_add(1, Ordering::AcqRel) + 1 == self.vcpu_count() {
            log::info!(target: GUEST, "the guest resets");
            self.parked.store(0, Ordering::Relaxed);
            cpu.resets.set(true);
        }
    }

    /// A step of a reset, on the CPU that carries it out: takes interrupts and serves requests, and
    /// restarts the guest once no other change of its memory is in progress. No vCPU runs.
    pub(super) fn step_reset(&'static self, cpu: &PerCpu<A>) {
        let counters = self.counters_of(&self.vcpus[0]);
        let mut pause = || {
            A::take_interrupts();
            if cpu.index == 0 && self.requests_wait() {
                control::serve(self, cpu);
                increase(&counters[Counter::ResetRequests as usize], 1);
            }
        };
        pause();
        if self.step_change(None) != Progress::Done || !A::reset_slots(self, cpu) {
            return;
        }
        for vcpu in &self.vcpus {
            let mut owner = vcpu.target.owner().expect("all vCPUs are parked");
            // SAFETY: the owner was just taken.
            let state = unsafe { vcpu.state() };
            let _event = owner.take_events();
            // Items posted before the reset are void.
            state.reset(&vcpu.inbox);
        }
        A::reset_devices(self);
        increase(&counters[Counter::Resets as usize], 1);
        // The same files were planned successfully before.
        self.load_guest(&mut pause)
            .unwrap_or_else(|error| panic!("the guest cannot be loaded again: {error}"));
        cpu.resets.set(false);
        // Pairs with `attention`: a CPU that sees no reset sees memory in its initial state.
        self.attention.fetch_and(!attention::RESET, Ordering::Release);
        for vcpu in &self.vcpus {
            self.nudge(self.sched.wake(vcpu.index, Line::Work));
        }
    }
}
