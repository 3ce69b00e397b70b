//! A vCPU on a CPU.

use core::mem::ManuallyDrop;

use coherence::Owner;
use hostlink::counters::Counter;
use memslots::{Gpa, MmioCache};
use stay::{Answer, MMIO_PAGES, Mistake, Mistakes, Source, Stay};

use super::files::Defects;
use super::machine::{CounterRow, Machine, Vcpu, increase};
use super::panic;
use super::percpu::PerCpu;
use crate::arch::vcpu::{COUNTS_SECTIONS, VcpuState, Workspace};

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

    /// Answers a nested fault at `gpa`.
    #[inline(always)] // It has one caller.
    pub(crate) fn answer_nested_fault(&mut self, gpa: Gpa, is_store: bool) -> Answer {
        let vm = self.vm;
        let answer = stay::nested_fault(self, &vm.space, gpa, is_store);
        let counter = match answer {
            Answer::Installed(_) => Counter::NestedInstalled,
            Answer::Upgraded => Counter::NestedUpgraded,
            Answer::Mmio(Source::Remembered) => Counter::MmioCached,
            Answer::Mmio(Source::Marked) => Counter::MmioMarked,
            Answer::Mmio(Source::Searched) => Counter::MmioSearched,
            Answer::Retry | Answer::ReadOnly => return answer,
            Answer::OutOfTables => panic::end_guest_without_tables(gpa),
        };
        self.count(counter);
        answer
    }
}

impl Mistakes for Context<'_> {
    #[inline(always)]
    fn makes(&self, mistake: Mistake) -> bool {
        Defects.makes(mistake)
    }
}

impl<'a> Stay<'a> for Context<'a> {
    type State = VcpuState;
    type Machine = Machine;

    const COUNTED: bool = COUNTS_SECTIONS;

    #[inline(always)]
    fn split(&mut self) -> (&mut Owner<'a>, &mut VcpuState, &Machine) {
        (&mut self.owner, self.state, self.vm)
    }

    #[inline(always)]
    fn take_flush(&mut self) {
        Context::take_flush(self);
    }

    #[inline(always)]
    fn mmio(&mut self) -> &mut MmioCache<MMIO_PAGES> {
        &mut self.state.mmio
    }
}
