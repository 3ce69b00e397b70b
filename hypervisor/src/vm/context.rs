//! A vCPU on a CPU.

use core::mem::ManuallyDrop;

use coherence::Owner;
use hostlink::counters::Counter;

use super::machine::{CounterRow, Machine, Vcpu, increase};
use super::percpu::PerCpu;
use crate::arch::vcpu::{VcpuState, Workspace, begin_section};

/// How a vCPU goes on after an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Back into the guest.
    Resume,
    /// Its timers changed: look at them before going back.
    Timers,
    /// It waits for an interrupt.
    Halt,
    /// It spins: let another vCPU run if there is one.
    Yield,
    /// The instruction could not be carried out yet: once more, after others have had their turn.
    #[cfg_attr(target_arch = "aarch64", expect(dead_code, reason = "no device there changes memory"))]
    Again,
    /// The virtual machine starts again.
    Reset,
    /// The virtual machine ends.
    PowerOff,
    /// The guest cannot go on: a triple fault.
    #[cfg_attr(target_arch = "aarch64", expect(dead_code, reason = "there is nothing like it"))]
    Dead,
}

/// A vCPU on a CPU, outside of guest mode.
pub(crate) struct Context<'a> {
    pub(crate) vm: &'a Machine,
    pub(crate) cpu: &'a PerCpu,
    pub(crate) vcpu: &'a Vcpu,
    pub(crate) counters: &'a CounterRow,
    /// Dropped by hand, when the vCPU leaves the CPU.
    pub(crate) owner: ManuallyDrop<Owner<'a>>,
    pub(crate) state: &'a mut VcpuState,
    pub(crate) workspace: &'a mut Workspace,
}

impl Context<'_> {
    /// Adds one to a counter of this vCPU.
    #[inline]
    pub(crate) fn count(&self, counter: Counter) {
        increase(&self.counters[counter as usize], 1);
    }

    /// Runs `look` in a section in which the guest's translations are used by software: a flush that is asked for
    /// meanwhile waits for its end, and one that was asked for before is taken first.
    pub(crate) fn with_section<R>(&mut self, look: impl FnOnce(&mut VcpuState, &Machine) -> R) -> R {
        let section = loop {
            // The borrow of the owner ends with the section; `look` gets everything but the owner.
            if let Ok(section) = begin_section(&mut self.owner) {
                break section;
            }
            // A flush pends. It is only noted here: the walk below starts from memory, not from any cache.
            self.take_flush();
        };
        let result = look(self.state, self.vm);
        section.end();
        result
    }
}
