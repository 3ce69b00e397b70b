//! A CPU's workspace to run a vCPU, a vCPU's external events, and one stay in the guest.

pub mod debug;
pub mod saved_state;
#[macro_use]
pub mod exchanged;
pub mod inject;
pub mod loaded;
pub mod registers;
pub mod serror;
pub mod state;
pub mod step;
pub mod stolen_time;
pub mod system;
pub mod wait_loop;

use coherence::vmid::VmidSlot;
use coherence::{CpuId, Hardware, Owner};
use core::ops::ControlFlow;
use core::sync::atomic::Ordering;
use hostlink::counters::Counter;
use stay::broadcast::{self, CpuStage2};

use self::state::{Activity, VcpuState};
use super::controls::counter;
use super::guest::{Common, devices};
use super::processor::{Arm64, Lists, Vector};
use crate::devices::virt::gic::{self, Deactivate, Maintenance};
use crate::devices::virt::psci::Power;
use crate::vm::defects::Defects;
use crate::vm::{Context, PerCpu, Vm};

/// How often a vCPU looks for a lost timer, in microseconds: Linux' shortest tick.
const LOST_TIMER_US: u64 = 1000;

/// A vCPU's inbox, to which other CPUs post.
#[derive(Debug)]
pub struct Inbox {
    /// Interrupts.
    pub interrupts: gic::Inbox,
    /// Whether it is on, and where it starts.
    pub power: Power,
}

impl Default for Inbox {
    /// For a vCPU that is off.
    fn default() -> Self {
        Self { interrupts: gic::Inbox::default(), power: Power::off() }
    }
}

/// A CPU's workspace in addition to its vCPU; allocated once.
pub struct Workspace {
    /// The loaded address space, and the translations to be dropped before the vCPU on this CPU
    /// enters the guest.
    place: CpuStage2,
    /// The interface's last maintenance setting.
    maintenance: Maintenance,
    /// The base of the clock of the guest whose vCPU was last here, as CNTVOFF_EL2 has it.
    base: u64,
    /// Entries into the guest since a fictitious machine took a VMID here.
    entries: u32,
}

impl Workspace {
    /// For the calling CPU.
    pub fn new<A: Arm64>(_: &PerCpu<A>) -> Self {
        A::init_interface();
        Self { place: CpuStage2::new(), maintenance: Maintenance::empty(), base: 0, entries: 0 }
    }
}

/// Loads the state of the vCPU whose turn it is.
#[inline(always)]
pub fn load_state<A: Arm64>(context: &mut Context<'_, A>) {
    let reach = context.vm.guest.local_maintenance();
    let (space, cpu) = (context.vm.guest.address_space(), CpuId(context.cpu.index.0));
    if context.workspace.place.arrive(&space, &mut context.state.home, cpu, reach, &Defects) {
        context.count(Counter::FlushArrival);
    }
    // Stage-1 walks may be disabled from here on; TCR_EL1 is loaded with the rest.
    enter_address_space(context);
    let base = context.vm.clock.base();
    context.state.base = base;
    if context.workspace.base != base {
        follow_clock::<A>(context.workspace, base);
    }
    context.state.load();
    context.state.spin.begin_turn();
    if context.state.timer_is_due() {
        // Its interrupt would end guest mode at once.
        A::take_interrupts();
        take_timers(context);
    }
}

/// This CPU's guest counters are by `base` ahead of its own from here on.
#[cold]
fn follow_clock<A: Arm64>(workspace: &mut Workspace, base: u64) {
    workspace.base = base;
    A::set_counter(counter(base));
}

/// Loads VTTBR_EL2 and the state that depends on it. Returns true if it has changed: then stage-1
/// walks may be disabled until TCR_EL1 is loaded (see
/// [`tlbi::enter_vm`](coherence::tlbi::enter_vm)).
#[inline(always)] // On the way of each entry.
fn enter_address_space<A: Arm64>(context: &mut Context<'_, A>) -> bool {
    let (cpu, space) = (CpuId(context.cpu.index.0), context.vm.guest.address_space());
    let (place, state) = (&mut context.workspace.place, &mut *context.state);
    let entered = broadcast::enter_address_space(&A::TLB, cpu, place, &space, || state.note_walks());
    if entered.has_changed {
        context.cpu.arch.loaded.enter(space.root, &entered);
    }
    if entered.dropped_all {
        context.count(Counter::VmidFlushes);
    }
    entered.has_changed
}

/// No vCPU is on this CPU, the calling one: it leaves the address space that it has loaded.
#[cold]
pub fn leave_space<A: Arm64>(common: &Common, cpu: &PerCpu<A>, workspace: &mut Workspace) {
    if cpu.arch.loaded.is_any() {
        let (place, setup) = (&mut workspace.place, common.setup());
        cpu.arch.loaded.leave(broadcast::leave_address_space(&A::TLB, place, setup, common.nowhere()));
    }
}

/// Once in a given number of entries, pretends that another, new machine is about to run on this
/// CPU, and gives it a VMID. That machine leaves before it enters its guest. So VTTBR_EL2 is
/// unchanged, and the next vCPU makes any flush that the new VMID requires.
#[cold]
fn churn<A: Arm64>(context: &mut Context<'_, A>) {
    context.workspace.entries += 1;
    if context.workspace.entries >= context.vm.guest.vmid_churn {
        context.workspace.entries = 0;
        let stranger = VmidSlot::new();
        let _it_does_not_run = context.vm.guest.common.vmids.assign(CpuId(context.cpu.index.0), &stranger);
    }
}

/// Enters the guest and returns true after the exit. Returns false without entering if something
/// must be checked first.
pub fn enter<A: Arm64>(context: &mut Context<'_, A>) -> bool {
    if context.vm.guest.vmid_churn != 0 {
        churn(context);
    }
    if enter_address_space(context) {
        context.state.allow_walks();
    }
    let mut processor =
        El1 { vm: context.vm, cpu: context.cpu, state: context.state, workspace: context.workspace };
    if !broadcast::enter(&mut processor, &mut context.owner) {
        take_flush::<A>(&mut context.owner);
        // Continual posting must not keep interrupts from being taken.
        open_window(context);
        return false;
    }
    if context.vm.guest.owned.domains.is_some() && context.state.gic.is_unsettled() {
        // A real line may wait for the end of this interrupt, of which nobody notifies the vCPU.
        settle_interrupts(context);
    }
    let exit = context.state.exit;
    context.cpu.last_exit.store(exit as u64, Ordering::Relaxed);
    if exit == Vector::Interrupt {
        open_window(context);
    }
    true
}

/// Takes pending interrupts, outside of guest mode. Guest timers belong to the vCPU on this CPU.
pub fn open_window<A: Arm64>(context: &mut Context<'_, A>) {
    if context.state.base != 0 {
        context.state.recover_timer(A::ticks_of_us(LOST_TIMER_US));
    }
    A::take_interrupts();
    take_timers(context);
    note_maintenance(context);
}

/// Forwards the timers that have fired to the vCPU on this CPU.
#[inline]
fn take_timers<A: Arm64>(context: &mut Context<'_, A>) {
    let mut fired = context.cpu.arch.timers_fired.replace(0);
    while fired != 0 {
        context.state.gic.forward(fired.trailing_zeros() as u8);
        context.count(Counter::IrqTimer);
        fired &= fired - 1;
    }
}

/// Notes a maintenance interrupt. If it has no effect, the vCPU requests no more of them.
#[inline]
fn note_maintenance<A: Arm64>(context: &mut Context<'_, A>) {
    if context.cpu.arch.maintenance_fired.replace(false) {
        context.state.gic.note_maintenance(&system::idle_view::<A>());
    }
}

/// Takes a flush that was issued by request. There are none: flushes are broadcast.
#[cold]
pub fn take_flush<A: Arm64>(owner: &mut Owner<'_>) {
    broadcast::take_flush(&A::TLB, owner);
}

/// Takes the posted items: interrupts, and power-on.
#[inline(always)]
pub fn take_signals<A: Arm64>(context: &mut Context<'_, A>) {
    if context.state.activity == Activity::Off
        && let Some(start) = context.vcpu.inbox.power.take_start()
    {
        context.state.start(start);
    }
    if context.state.gic.look(&context.vcpu.inbox.interrupts) {
        settle_interrupts(context);
    }
}

/// Claims the SPIs that were posted, and returns them.
#[inline(never)]
fn settle_interrupts<A: Arm64>(context: &mut Context<'_, A>) {
    let mut distributor = context.vm.guest.distributor.lock();
    let effect = context.state.gic.settle(&mut distributor);
    devices::perform_returned(context.vm, effect, &distributor, &mut context.state.alarm);
}

/// The processor with a vCPU's state. Interrupts are masked.
struct El1<'a, A: Arm64> {
    vm: &'a Vm<A>,
    cpu: &'a PerCpu<A>,
    state: &'a mut VcpuState<A>,
    workspace: &'a mut Workspace,
}

impl<A: Arm64> broadcast::Processor for El1<'_, A> {
    #[inline(always)]
    fn id(&self) -> CpuId {
        CpuId(self.cpu.index.0)
    }

    #[inline(always)]
    fn fill_lists(&mut self) {
        let mut maintenance = Maintenance::empty();
        if !self.state.gic.has_none() {
            // The running priority does not matter for filling the list registers, only the
            // interface's configuration.
            let view = system::idle_view::<A>();
            maintenance = self.state.gic.fill(&mut Lists::<A>::new(), &view);
        }
        if maintenance != self.workspace.maintenance {
            A::set_maintenance(maintenance);
            self.workspace.maintenance = maintenance;
        }
    }

    #[inline(always)]
    fn run(&mut self) {
        self.state.audit(self.cpu, self.vm, self.workspace.maintenance);
        // SAFETY: the registers are this vCPU's, EL1's are loaded, stage 2 maps its memory only.
        self.state.exit = unsafe { A::run_guest(&mut self.state.registers) };
        self.state.auditor.note(self.cpu);
    }

    #[inline(always)]
    fn take_lists_back(&mut self) {
        if !self.workspace.maintenance.is_empty() || !self.state.gic.loaded().is_empty() {
            self.empty_lists();
        }
        self.state.withdraw_timers();
    }
}

impl<A: Arm64> El1<'_, A> {
    /// Empties the list registers, and disables maintenance interrupts.
    #[inline(never)] // Apart from the usual case, which has neither.
    fn empty_lists(&mut self) {
        let mut eoi_count = 0;
        if !self.workspace.maintenance.is_empty() {
            eoi_count = Maintenance::eoi_count(A::interface_control());
            A::set_maintenance(Maintenance::empty());
            self.workspace.maintenance = Maintenance::empty();
        }
        let Deactivate(intids) = self.state.gic.sync(&mut Lists::<A>::new(), eoi_count);
        if intids != 0 {
            system::deactivate::<A>(intids);
        }
    }
}

/// Walks by software end on their own: no kicks are needed.
pub struct Patience;

/// Number of wait iterations for a walk by software on another CPU before the machine is declared
/// broken: seconds.
const WAIT_TURNS_MAX: u64 = 1 << 32;

impl Hardware for Patience {
    fn kick(&self, _: CpuId) {}

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        core::hint::spin_loop();
        if turns < WAIT_TURNS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

#[cfg(test)]
mod tests;
