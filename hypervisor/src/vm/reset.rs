//! A reset: every vCPU stops (`stop.rs`), and the last one restarts the guest, in steps, in its own
//! turns. A guest that is to pause, or to be destroyed, stops between two steps; the same vCPU
//! continues with the next step when the guest goes on. A request that sends the guest waits for no
//! vCPU: it carries out the rest itself.

use hostlink::config::ResetPolicy;
use hostlink::counters::Counter;
use hostlink::exit::ExitCode;
use paging::Progress;

use super::GUEST;
use super::arch::{Arch, State};
use super::context::Context;
use super::load::Load;
use super::machine::{Vcpu, Vm, VpIndex};
use super::switch::Leave;
use crate::loader::LoadError;
use crate::sched::notify::Taken;
use crate::sched::{CpuIndex, PutBack};
use crate::stopping::{PAUSE, REQUESTS, RESET, Role};

impl<A: Arch> Vm<A> {
    /// The state after power-on of a guest whose vCPUs have all stopped, except for its memory.
    fn reset_stopped(&self) {
        self.vcpus.iter().for_each(|vcpu| with_stopped(vcpu, |state| state.reset(&vcpu.inbox)));
        A::reset_devices(self);
    }

    /// Gives a guest whose vCPUs have all stopped the state after power-on, and begins to load it;
    /// `None` as long as something else comes first.
    pub(super) fn power_on(&'static self) -> Option<Result<Load<A>, LoadError>> {
        if self.step_change(None) != Progress::Done || !A::reset_slots(self, A::this_cpu()) {
            return None;
        }
        self.reset_stopped();
        Some(Load::new(self))
    }

    /// Makes a step of the reset in whose middle all vCPUs have stopped, for a request that waits
    /// for its end; `Done` if there is none.
    ///
    /// # Errors
    ///
    /// The guest cannot be loaded.
    pub(super) fn step_reset_stopped(&'static self) -> Result<Progress, LoadError> {
        let mut reset = self.reset.lock();
        let Some(Reset { load, .. }) = reset.as_mut() else { return Ok(Progress::Done) };
        match load {
            None => {
                let Some(begun) = self.power_on() else { return Ok(Progress::Waiting) };
                *load = Some(begun?);
            }
            Some(loading) => {
                if loading.step(self) == Progress::Done
                    && let Some(load) = load.take()
                {
                    self.finish_load(load);
                    *reset = None;
                    self.stopping.clear(RESET);
                }
            }
        }
        Ok(Progress::More)
    }
}

/// Acts on the private state of a vCPU that has stopped. An event is taken first: of what is posted
/// from then on the vCPU is told.
fn with_stopped<A: Arch>(vcpu: &Vcpu<A>, act: impl FnOnce(&mut A::State)) {
    let mut owner = vcpu.target.owner().expect("the vCPU has stopped");
    let _event = owner.take_events();
    // SAFETY: the owner was just taken and is held meanwhile, so no other reference is alive.
    act(unsafe { vcpu.state() });
}

pub(super) struct Reset<A: Arch> {
    /// The vCPU that carries it out.
    pub(super) by: VpIndex,
    /// The devices have been reset, and memory is being filled.
    load: Option<Load<A>>,
}

impl<A: Arch> Context<'_, A> {
    /// The guest resets, as its policy says.
    pub(super) fn restart(&mut self) -> Option<Leave> {
        match self.vm.reset_policy() {
            ResetPolicy::Exit => self.end(ExitCode::GuestReset),
            ResetPolicy::Panic => panic!("the guest resets, which is taken for an error here"),
            ResetPolicy::Reboot => {
                self.vm.begin_stop(RESET);
                self.check_events(Taken::NONE)
            }
        }
    }

    /// The guest is to stop. Returns how this vCPU leaves its CPU, or `None` when the guest goes on
    /// after a reset that this vCPU has carried out.
    #[cold]
    pub(super) fn stop(&mut self) -> Option<Leave> {
        let by = self.vcpu.index;
        let is_begun = self.vm.reset.lock().as_ref().is_some_and(|reset| reset.by == by);
        if !is_begun {
            if self.vm.arrive_at_stop() == Role::Leaves {
                return Some(Leave::Parked);
            }
            log::info!(target: GUEST, "the guest resets");
            *self.vm.reset.lock() = Some(Reset { by, load: None });
        }
        loop {
            if self.vm.attention() & PAUSE != 0 {
                return Some(Leave::Parked);
            }
            if self.step_reset() == Progress::Done {
                *self.vm.reset.lock() = None;
                if !self.vm.stopping.end_reset(self.vm.vcpu_count()) {
                    return Some(Leave::Parked);
                }
                self.vm.wake(|index| index != by);
                return None;
            }
            A::open_window(self);
            self.serve_during_reset();
            let now = A::now();
            if self.host.sched.queue_state(self.cpu.index, now).should_switch {
                return Some(Leave::PutBack(PutBack::Preempted));
            }
        }
    }

    /// A step of the reset. It begins when the others have left their CPUs, and no other change of
    /// memory is in progress.
    fn step_reset(&mut self) -> Progress {
        let vm = self.vm;
        if !vm.others_have_stopped() {
            return Progress::Waiting;
        }
        let mut reset = vm.reset.lock();
        let Some(Reset { load, .. }) = reset.as_mut() else { return Progress::Done };
        match load {
            None => {
                if vm.step_change(None) != Progress::Done || !A::reset_slots(vm, self.cpu) {
                    return Progress::Waiting;
                }
                self.reset_vcpus();
                A::reset_devices(vm);
                self.count(Counter::Resets);
                match Load::new(vm) {
                    Ok(begun) => *load = Some(begun),
                    Err(why) => {
                        log::error!(target: GUEST, "the guest cannot be loaded again: {why}");
                        vm.end(ExitCode::BadConfig);
                        return Progress::Done;
                    }
                }
                Progress::More
            }
            Some(loading) => {
                let progress = loading.step(vm);
                if progress == Progress::Done
                    && let Some(load) = load.take()
                {
                    self.with_state_of(VpIndex(0), |state| load.finish(vm, state));
                }
                progress
            }
        }
    }

    /// The state after power-on, for all vCPUs. Items posted before the reset are void.
    fn reset_vcpus(&mut self) {
        for (index, vcpu) in (0..).map(VpIndex).zip(&self.vm.vcpus) {
            self.with_state_of(index, |state| state.reset(&vcpu.inbox));
        }
    }

    /// The private state of a vCPU: this one, or one that has stopped.
    fn with_state_of(&mut self, index: VpIndex, act: impl FnOnce(&mut A::State)) {
        if index == self.vcpu.index {
            // The CPU holds a part of it.
            A::save_state(self);
            act(self.state);
            return A::reload_state(self);
        }
        with_stopped(&self.vm.vcpus[index.place()], act);
    }

    /// Requests are served during a reset as at any other time.
    fn serve_during_reset(&self) {
        if self.cpu.index == CpuIndex(0) && self.vm.attention() & REQUESTS != 0 {
            super::control::serve(self.host, self.cpu);
            self.count(Counter::ResetRequests);
        }
    }
}
