//! The vCPU state that only the CPU that runs it touches.

use alloc::boxed::Box;
use coherence::Space;
use coherence::vmid::Home;
use core::marker::PhantomData;
use memslots::MmioCache;
use stay::MMIO_PAGES;

use super::debug::Debug;
use super::exchanged::Register;
use super::system::{self, PhysicalTimer, SystemRegisters, Timer, VirtualInterface};
use super::{Inbox, serror};
use crate::arm64::audit::auditor::{Auditor, Expected};
use crate::arm64::processor::{Arm64, Configuration, FloatState, Processor, Registers, Vector};
use crate::devices::virt::gic::{self, Maintenance, Private, View};
use crate::devices::virt::psci::Start;
use crate::sched::spinning::{Look, SpinWatch};
use crate::vm::arch::State;
use crate::vm::{GUEST, PerCpu, Vm, VpIndex};

/// Processor state at the start of a vCPU: EL1 with its own stack pointer, everything masked (PSCI,
/// section 6.4.3).
const PSTATE_START: u64 = 0x3c5;

/// The activity of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It has instructions to run.
    Running,
    /// It executed WFI and waits for an interrupt.
    Halted,
    /// It is off: it waits for PSCI's CPU_ON.
    Off,
}

/// A vCPU's private state.
pub struct VcpuState<P> {
    /// The registers that are switched at each entry.
    pub registers: Registers,
    /// Its part of the interrupt controller.
    pub gic: Private,
    /// Its activity.
    pub activity: Activity,
    /// Where its translations may be cached.
    pub home: Home,
    /// The auditor's record of it.
    pub auditor: Auditor,
    /// The pages without memory that it accessed most recently.
    pub mmio: MmioCache<MMIO_PAGES>,
    /// HCR_EL2 while it runs.
    pub configuration: Configuration,
    /// The vector through which it exited.
    pub exit: Vector,
    /// Its debug registers.
    pub debug: Box<Debug>,
    pub(super) system: SystemRegisters,
    pub(super) float: Box<FloatState>,
    pub(super) interface: VirtualInterface,
    /// TCR_EL1 from before stage-1 walks were forbidden.
    pub(super) walks: u64,
    /// Ticks of the clock for which it waited for a CPU since the last reset.
    pub stolen: u64,
    /// When it looks whether the clock's alarm rings, which it has set, and at real lines that were
    /// kept back ([`InterruptLines`](crate::iommu::lines::InterruptLines::resume)). Whichever vCPU
    /// has set the alarm since looks for its own time, so an earlier one looks in vain at most.
    pub alarm: u64,
    /// By how much the guest's counter is ahead of the machine's, as loaded: its clock's base.
    pub base: u64,
    /// Ticks until it looks again, while it runs, whether the processor has lost its virtual timer:
    /// `u64::MAX` as long as the processor has lost none.
    pub(super) look_every: u64,
    /// Detects whether it spins.
    pub spin: SpinWatch,
    /// Its index, and the number of vCPUs.
    pub(super) place: (VpIndex, u32),
    pub(super) processor: PhantomData<fn() -> P>,
}

impl<P: Processor> VcpuState<P> {
    /// A vCPU after power-on: off. It has this index, and this identity among the vCPUs of all
    /// guests.
    pub fn new((index, identity): (VpIndex, u32), count: u32, configuration: Configuration) -> Self {
        Self {
            registers: Registers::default(),
            gic: Private::new(index.0 as u8, count as u8),
            activity: Activity::Off,
            home: Home::new(),
            auditor: Auditor::new(identity, configuration.broadcasts()),
            mmio: MmioCache::new(),
            configuration,
            exit: Vector::Interrupt,
            debug: Box::default(),
            system: SystemRegisters::reset(),
            float: Box::default(),
            interface: VirtualInterface::reset(),
            walks: 0,
            stolen: 0,
            alarm: u64::MAX,
            base: 0,
            look_every: u64::MAX,
            spin: SpinWatch::default(),
            place: (index, count),
            processor: PhantomData,
        }
    }

    /// Starts the vCPU, in the state after power-on except for its redistributor's configuration.
    /// Its registers must be loaded, or no vCPU's.
    pub fn start(&mut self, start: Start) {
        self.auditor.start();
        self.system = SystemRegisters::reset();
        *self.debug = Debug::default();
        self.apply_debug();
        self.interface = VirtualInterface::reset();
        self.interface.load::<P>();
        self.system.load::<P>(self.base);
        P::synchronize();
        self.registers = Registers::default();
        let [first, ..] = &mut self.registers.x;
        *first = start.context;
        self.registers.pc = start.entry;
        self.registers.pstate = PSTATE_START;
        self.activity = Activity::Running;
    }

    /// Loads the state that [`Processor::run_guest`] does not switch.
    pub fn load(&mut self) {
        P::write(Register::Vmpidr, gic::mpidr(self.place.0.0 as u8));
        P::set_configuration(self.configuration);
        self.interface.load::<P>();
        P::load_float(&self.float);
        self.system.load::<P>(self.base);
        if self.debug.armed().is_some() {
            self.apply_debug();
        }
        P::synchronize();
    }

    /// Saves TCR_EL1 while the guest is loaded, before stage-1 walks may be disabled.
    pub fn note_walks(&mut self) {
        self.walks = P::read(Register::Tcr);
    }

    /// Restores the guest's own TCR_EL1.
    #[cold]
    pub fn allow_walks(&mut self) {
        P::write(Register::Tcr, self.walks);
    }

    /// Saves the state that [`load`](Self::load) loaded. From here on the timer is off, and its
    /// interrupt is not asserted.
    pub fn save(&mut self) {
        self.note_serror();
        self.auditor.leave::<P>();
        if self.debug.armed().is_some() {
            P::stop_debug();
        }
        self.system.save::<P>(self.base);
        P::save_float(&mut self.float);
        self.interface.save::<P>();
        let gic::Deactivate(linked) = self.gic.leave();
        system::deactivate::<P>(linked);
    }

    /// The interrupts that the guest's CPU interface admits. The state must be loaded.
    #[inline]
    pub fn view(&self) -> View {
        system::view::<P>()
    }

    /// Raises a virtual SError, which the guest takes as soon as it is unmasked.
    #[cold]
    pub fn raise_serror(&mut self) {
        self.configuration = self.configuration.with_serror(true);
        P::set_configuration(self.configuration);
    }

    /// Notes from the processor whether a virtual SError is still pending.
    #[inline]
    fn note_serror(&mut self) {
        if self.configuration.has_serror() {
            self.configuration = serror::after_guest(self.configuration, P::configuration());
        }
    }

    /// Withdraws a timer interrupt that the guest has not acknowledged, if the timer no longer
    /// asserts it: the guest has stopped it, or set it to a later time.
    #[inline]
    pub fn withdraw_timers(&mut self) {
        if self.gic.linked_waiting() != 0 {
            self.withdraw_quiet();
        }
    }

    #[inline(never)]
    fn withdraw_quiet(&mut self) {
        let waiting = self.gic.linked_waiting();
        for timer in [Timer::Virtual, Timer::Physical] {
            if waiting >> timer.intid() & 1 != 0 && !timer.is_due::<P>() {
                let gic::Deactivate(intids) = self.gic.withdraw(timer.intid());
                system::deactivate::<P>(intids);
            }
        }
    }

    /// The guest reads a register of its physical timer, which it has not got itself.
    #[cold]
    pub fn read_timer(&self, register: PhysicalTimer) -> u64 {
        self.system.read_physical::<P>(register, P::now().wrapping_add(self.base))
    }

    /// It writes one.
    #[cold]
    pub fn write_timer(&mut self, register: PhysicalTimer, value: u64) {
        let now = P::now().wrapping_add(self.base);
        self.system.write_physical::<P>(register, value, (now, self.base));
    }

    /// Whether a timer asserts its interrupt. The state must be loaded.
    #[inline]
    pub fn timer_is_due(&self) -> bool {
        [Timer::Virtual, Timer::Physical].into_iter().any(Timer::is_due::<P>)
    }

    /// Sees to the virtual timer of a guest that is ahead of the machine, as one is that comes from
    /// a machine with more uptime. There compare value and CNTVOFF_EL2 have a sum that wraps, which
    /// an emulator takes for never (QEMU 8.2 to 10.0): the timer interrupts only if its time is
    /// past when it is written. So it is written again, and from the first one that was lost the
    /// vCPU looks for others every `period` ticks.
    #[cold]
    pub(super) fn recover_timer(&mut self, period: u64) {
        // The clock before the timer: one that is due afterwards only is not lost.
        let now = P::now();
        if Timer::Virtual.deadline::<P>(self.base) <= now && !Timer::Virtual.is_due::<P>() {
            self.look_every = period;
            P::write(Register::VirtualValue, P::read(Register::VirtualValue));
            P::synchronize();
        }
    }

    /// Loads the breakpoints and watchpoints in use into the processor, or disables them.
    #[cold]
    pub fn apply_debug(&self) {
        match self.debug.armed() {
            Some(control) => P::load_debug(&self.debug, P::debug_counts(), control),
            None => P::stop_debug(),
        }
    }
}

#[cfg(test)]
impl<P> VcpuState<P> {
    /// Each field but those that a reset keeps: where translations may be, the auditor's books.
    pub(super) fn fields(&self) -> alloc::vec::Vec<(&'static str, alloc::string::String)> {
        let Self {
            registers,
            gic,
            activity,
            home: _,
            auditor: _,
            mmio,
            configuration,
            exit,
            debug,
            system,
            float,
            interface,
            walks,
            stolen,
            alarm,
            base,
            look_every,
            spin,
            place,
            processor: _,
        } = self;
        crate::devices::state_checks::named!(registers gic activity mmio configuration exit debug system float interface walks stolen alarm base look_every spin place)
    }
}

impl<P: Arm64> VcpuState<P> {
    /// Called right before the guest is entered with the list registers filled, and this
    /// maintenance requested.
    #[inline(always)]
    pub fn audit(&mut self, cpu: &PerCpu<P>, vm: &Vm<P>, maintenance: Maintenance) {
        let Self { configuration, debug, place: (index, _), gic, .. } = self;
        let (configuration, lists) = (*configuration, gic.loaded());
        let expected = Expected { index: index.0 as u8, configuration, debug, maintenance, lists };
        self.auditor.check(cpu, vm, &expected);
    }
}

impl<P: Arm64> State for VcpuState<P> {
    type Inbox = Inbox;

    fn reset(&mut self, inbox: &Inbox) {
        let _void = self.gic.look(&inbox.interrupts);
        inbox.power.reset();
        let (index, count) = self.place;
        let configuration = self.configuration.with_serror(false);
        let new = Self::new((index, 0), count, configuration);
        let former = core::mem::replace(self, new);
        (self.home, self.auditor, self.base) = (former.home, former.auditor, former.base);
        self.auditor.reset();
    }

    /// Unknown: no flush uses it, because none is issued by request.
    #[inline(always)]
    fn space(&self) -> Space {
        Space::UNKNOWN
    }

    #[inline(always)]
    fn is_running(&self) -> bool {
        self.activity == Activity::Running
    }

    #[inline]
    fn update_activity(&mut self) {
        if self.activity == Activity::Halted && self.gic.can_wake(&self.view()) {
            self.activity = Activity::Running;
        }
    }

    #[inline]
    fn wakes_from_halt(&self) -> bool {
        self.gic.can_wake(&self.view())
    }

    /// While it runs, its timer interrupts on its own if no processor loses it, and the clock's
    /// alarm does not.
    #[inline]
    fn next_deadline(&self, now: u64) -> u64 {
        if self.activity != Activity::Halted {
            return self.alarm.min(now.saturating_add(self.look_every));
        }
        let due = |timer: Timer| match self.gic.is_linked(timer.intid()) {
            true => u64::MAX,
            false => timer.deadline::<P>(self.base),
        };
        due(Timer::Virtual).min(due(Timer::Physical)).min(self.alarm)
    }

    #[inline]
    fn intercept_pause(&mut self, wanted: bool) {
        self.note_serror();
        let new = self.configuration.with_wfe_trapped(wanted);
        if new != self.configuration {
            self.configuration = new;
            P::set_configuration(new);
        }
    }

    #[inline]
    fn is_look_due(&self, now: u64) -> bool {
        self.spin.is_due(now)
    }

    /// WFE shows it where it is trapped, but not all code executes WFE, and not every machine traps
    /// it.
    #[inline]
    fn check_spinning(&mut self, _before_the_switch: u64, first: u64) -> Look {
        let Registers { x, pc, pstate } = &self.registers;
        self.spin.look(P::now(), first, x.iter().chain([pc, pstate]))
    }

    #[inline(always)]
    fn mmio(&mut self) -> &mut MmioCache<MMIO_PAGES> {
        &mut self.mmio
    }

    fn dump(&self, vcpu: VpIndex, what: &str) {
        let r = &self.registers;
        log::error!(target: GUEST, "vCPU {vcpu} {what}: at {:#018x}, PSTATE {:#x}", r.pc, r.pstate);
        for (index, four) in r.x.chunks(4).enumerate() {
            log::error!(target: GUEST, "  x{:<2} {:#018x?}", index * 4, four);
        }
        log::error!("  ESR_EL2 {:#x}, FAR_EL2 {:#x}", P::syndrome(), P::fault_address());
        let [vectors, link, syndrome, address] =
            [Register::Vbar, Register::Elr, Register::Esr, Register::Far].map(P::read);
        log::error!(
            "  VBAR_EL1 {vectors:#x}, ELR_EL1 {link:#x}, ESR_EL1 {syndrome:#x}, FAR_EL1 {address:#x}"
        );
    }
}
