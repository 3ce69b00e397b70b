//! A vCPU on a CPU.

use coherence::Owner;
use core::mem::ManuallyDrop;
use hostlink::counters::Counter;
use hostlink::exit::ExitCode;
use memslots::{Gpa, MmioCache};
use stay::{Answer, MMIO_PAGES, Mistake, Mistakes, Source, Stay};

use super::arch::{Arch, State};
use super::counting::{CounterRow, increase};
use super::defects::Defects;
use super::host::Host;
use super::machine::{Vcpu, Vm};
use super::percpu::PerCpu;

/// How a vCPU goes on after an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Back into the guest.
    Resume,
    /// Its timers changed: look at them before going back.
    Timers,
    /// It waits for an interrupt.
    Halt,
    /// It spins: let another vCPU run if there is one.
    Yield,
    /// The instruction could not be carried out yet: retry after other vCPUs have run.
    Again,
    /// The virtual machine restarts.
    Reset,
    /// The virtual machine ends.
    PowerOff,
    /// A triple fault. The virtual machine restarts.
    Shutdown,
    /// The processor refuses the guest's state: it cannot go on.
    Dead,
}

/// The kind of access that took a nested fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load or store by an instruction.
    Data,
    /// The fetch of an instruction.
    Fetch,
    /// The processor's walk of the guest's own page tables.
    Walk,
}

/// The outcome of a nested fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOutcome {
    /// The guest retries the access.
    Again,
    /// The guest's own page tables are at an address without memory, or cannot be marked as
    /// accessed.
    WalkRefused,
    /// There is no memory to fetch an instruction from.
    FetchRefused,
    /// A store to read-only memory, which has no effect.
    Lost,
    /// An access to a device's registers, or to nothing.
    Device,
}

/// The proof that a vCPU's state has been saved: another CPU may have it.
pub(super) struct Saved(());

/// A vCPU on a CPU, outside of guest mode.
pub struct Context<'a, A: Arch> {
    /// What the machines share.
    pub host: &'static Host<A>,
    /// The machine. It exists as long as the vCPU is on this CPU.
    pub vm: &'static Vm<A>,
    /// The CPU.
    pub cpu: &'static PerCpu<A>,
    /// The vCPU.
    pub vcpu: &'a Vcpu<A>,
    /// Its counters.
    pub counters: &'a CounterRow,
    /// Dropped by hand, when the vCPU leaves the CPU.
    pub owner: ManuallyDrop<Owner<'a>>,
    /// Its private state.
    pub state: &'a mut A::State,
    /// The CPU's workspace.
    pub workspace: &'a mut A::Workspace,
}

impl<A: Arch> Context<'_, A> {
    #[inline(always)] // Part of the switch.
    pub(super) fn save(&mut self) -> Saved {
        A::save_state(self);
        Saved(())
    }

    /// Increments a counter of this vCPU.
    #[inline]
    pub fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Adds to a counter of this vCPU.
    #[inline]
    pub fn add(&self, counter: Counter, amount: u64) {
        increase(&self.counters[counter as usize], amount);
    }

    /// Counts an exit, and records it in the trace.
    #[inline(always)]
    pub fn count_exit(&self, counter: Counter) {
        self.cpu.trace_exit(self.vcpu.row, counter);
        self.count(counter);
    }

    /// Answers a nested fault at `gpa`, and returns the outcome.
    #[inline(always)] // It has one caller.
    pub fn nested_fault(&mut self, gpa: Gpa, access: Access, is_store: bool) -> FaultOutcome {
        match (self.answer_nested_fault(gpa, is_store), access) {
            (Answer::Installed(_) | Answer::Upgraded | Answer::Retry | Answer::OutOfTables, _) => {
                FaultOutcome::Again
            }
            (Answer::ReadOnly | Answer::Mmio(_), Access::Walk) => FaultOutcome::WalkRefused,
            (Answer::ReadOnly, _) => FaultOutcome::Lost,
            (Answer::Mmio(_), Access::Fetch) => FaultOutcome::FetchRefused,
            (Answer::Mmio(_), Access::Data) => FaultOutcome::Device,
        }
    }

    #[inline(always)] // It has one caller.
    fn answer_nested_fault(&mut self, gpa: Gpa, is_store: bool) -> Answer {
        let vm = self.vm;
        let answer = stay::nested_fault(self, &vm.space, gpa, is_store);
        let counter = match answer {
            Answer::Installed(_) => Counter::NestedInstalled,
            Answer::Upgraded => Counter::NestedUpgraded,
            Answer::Mmio(Source::Remembered) => Counter::MmioCached,
            Answer::Mmio(Source::Marked) => Counter::MmioMarked,
            Answer::Mmio(Source::Searched) => Counter::MmioSearched,
            Answer::Retry | Answer::ReadOnly => return answer,
            Answer::OutOfTables => {
                // The default pool suffices for all memory, so this happens only with a pool that
                // was configured small.
                log::error!("the guest ends: no page is left for a nested page table, at {gpa}");
                vm.end(ExitCode::GuestOutOfTables);
                return answer;
            }
        };
        self.count(counter);
        answer
    }
}

impl<A: Arch> Mistakes for Context<'_, A> {
    #[inline(always)]
    fn makes(&self, mistake: Mistake) -> bool {
        Defects.makes(mistake)
    }
}

impl<'a, A: Arch> Stay<'a> for Context<'a, A> {
    type State = A::State;
    type Vm = Vm<A>;

    const COUNTED: bool = A::COUNTS_SECTIONS;

    #[inline(always)]
    fn split(&mut self) -> (&mut Owner<'a>, &mut A::State, &Vm<A>) {
        (&mut self.owner, self.state, self.vm)
    }

    #[inline(always)]
    fn take_flush(&mut self) {
        A::take_flush(self);
    }

    #[inline(always)]
    fn mmio(&mut self) -> &mut MmioCache<MMIO_PAGES> {
        self.state.mmio()
    }
}
