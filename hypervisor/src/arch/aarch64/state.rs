//! Everything about a vCPU that only the CPU that runs it touches.

use alloc::boxed::Box;

use coherence::Space;
use coherence::vmid::Home;
use memslots::MmioCache;
use stay::MMIO_PAGES;

use super::auditor::Auditor;
use super::entry::Registers;
use super::float::FloatState;
use super::sysreg::{isb, read, write};
use super::system::{SystemRegisters, Timer};
use super::vcpu::Inbox;
use super::{clock, debug, features, vgic};
use crate::arm64::controls::hcr;
use crate::arm64::debug::Debug;
use crate::arm64::serror;
use crate::devices::gic::{self, Private, View};
use crate::devices::psci::Start;
use crate::sched::VcpuIndex;
use crate::sched::spinning::{Look, SpinWatch};

/// Processor state at the start of a vCPU: EL1 with its own stack pointer, everything masked (PSCI, section 6.4.3).
const PSTATE_START: u64 = 0x3c5;

/// What a vCPU is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// It has instructions to run.
    Running,
    /// It executed WFI and waits for an interrupt.
    Halted,
    /// It is off: it waits for PSCI's CPU_ON.
    Off,
}

/// A vCPU's private state.
pub(crate) struct VcpuState {
    pub(crate) registers: Registers,
    pub(crate) gic: Private,
    pub(crate) activity: Activity,
    /// Where its translations may be.
    pub(crate) home: Home,
    pub(crate) auditor: Auditor,
    /// Pages without memory that it has accessed last.
    pub(crate) mmio: MmioCache<MMIO_PAGES>,
    /// HCR_EL2 while it runs.
    pub(crate) configuration: u64,
    /// The vector by which it left the guest.
    pub(crate) exit: u64,
    pub(crate) debug: Box<Debug>,
    system: SystemRegisters,
    float: Box<FloatState>,
    interface: vgic::Interface,
    /// TCR_EL1 from before stage-1 walks were forbidden.
    walks: u64,
    /// Whether it spins.
    pub(crate) spin: SpinWatch,
    /// Its index, and how many vCPUs there are.
    place: (VcpuIndex, u32),
}

impl VcpuState {
    /// A vCPU after power-on: off.
    pub(crate) fn new(index: VcpuIndex, count: u32, configuration: u64) -> Self {
        Self {
            registers: Registers::default(),
            gic: Private::new(index as u8, count as u8),
            activity: Activity::Off,
            home: Home::new(),
            auditor: Auditor::new(index, configuration & hcr::FB != 0),
            mmio: MmioCache::new(),
            configuration,
            exit: 0,
            debug: Box::default(),
            system: SystemRegisters::reset(),
            float: Box::default(),
            interface: vgic::Interface::reset(),
            walks: 0,
            spin: SpinWatch::new(),
            place: (index, count),
        }
    }

    /// Everything as after power-on. What was posted before is void.
    pub(crate) fn reset(&mut self, inbox: &Inbox) {
        let _void = self.gic.look(&inbox.interrupts);
        inbox.power.reset();
        let (index, count) = self.place;
        let (home, auditor) = (self.home, self.auditor);
        let configuration = self.configuration & !hcr::VSE;
        *self = Self { home, auditor, ..Self::new(index, count, configuration) };
    }

    /// It was told to start, as from power-on but for what its redistributor was set up for. Its registers are loaded, or
    /// nobody's are.
    pub(crate) fn start(&mut self, start: Start) {
        self.system = SystemRegisters::reset();
        *self.debug = Debug::new();
        debug::apply(&self.debug, debug::counts());
        self.interface = vgic::Interface::reset();
        self.interface.load();
        self.system.load();
        isb();
        self.registers = Registers::default();
        self.registers.x[0] = start.context;
        self.registers.pc = start.entry;
        self.registers.pstate = PSTATE_START;
        self.activity = Activity::Running;
    }

    /// The address space that it is in: unknown. Nobody asks, for nothing is flushed by request.
    #[inline(always)]
    pub(crate) fn space(&self) -> Space {
        Space::UNKNOWN
    }

    /// Loads what [`run_guest`](super::entry::run_guest) does not exchange.
    pub(crate) fn load(&mut self) {
        // SAFETY: the guest's own registers, and the controls that differ between vCPUs. EL2 uses none of them.
        unsafe {
            write!("vmpidr_el2", gic::mpidr(self.place.0 as u8));
            write!("hcr_el2", self.configuration);
        }
        self.interface.load();
        self.float.load();
        self.system.load();
        if self.debug.armed().is_some() {
            debug::apply(&self.debug, debug::counts());
        }
        isb();
    }

    /// Remembers TCR_EL1 while the guest is loaded, before stage-1 walks may be forbidden.
    pub(crate) fn note_walks(&mut self) {
        self.walks = read!("tcr_el1");
    }

    /// The guest's own TCR_EL1 again.
    #[cold]
    pub(crate) fn allow_walks(&mut self) {
        // SAFETY: the guest's register, as it was.
        unsafe { write!("tcr_el1", self.walks) };
    }

    /// Saves what [`load`](Self::load) loaded. The timer is off from here on, and what it had asserted is quiet.
    pub(crate) fn save(&mut self) {
        self.note_serror();
        if self.debug.armed().is_some() {
            debug::switch_off();
        }
        self.system.save();
        self.float.save();
        self.interface.save();
        let gic::Deactivate(linked) = self.gic.leave();
        vgic::deactivate(linked);
    }

    /// What the guest's CPU interface lets through. It is loaded.
    #[inline]
    pub(crate) fn view(&self) -> View {
        vgic::view()
    }

    /// Looks whether an interrupt ends its WFI.
    pub(crate) fn update_activity(&mut self) {
        if self.activity == Activity::Halted && self.gic.can_wake(&self.view()) {
            self.activity = Activity::Running;
        }
    }

    /// Whether there is an interrupt for it already.
    pub(crate) fn wakes_from_halt(&self) -> bool {
        self.gic.can_wake(&self.view())
    }

    /// The guest takes an SError as soon as it lets one through.
    #[cold]
    pub(crate) fn raise_serror(&mut self) {
        self.configuration |= hcr::VSE;
        // SAFETY: a virtual SError pends, and nothing else has changed. The next entry synchronizes.
        unsafe { write!("hcr_el2", self.configuration) };
    }

    /// Whether a virtual SError still pends is in the processor.
    #[inline]
    fn note_serror(&mut self) {
        if self.configuration & hcr::VSE != 0 {
            self.configuration = serror::after_guest(self.configuration, read!("hcr_el2"));
        }
    }

    /// Has the processor exit on WFE, or not.
    pub(crate) fn intercept_pause(&mut self, wanted: bool) {
        self.note_serror();
        let new = if wanted { self.configuration | hcr::TWE } else { self.configuration & !hcr::TWE };
        if new != self.configuration {
            self.configuration = new;
            // SAFETY: says whether WFE is trapped, and nothing else has changed. The next entry synchronizes.
            unsafe { write!("hcr_el2", new) };
        }
    }

    /// Whether it is time to look at it.
    #[inline]
    pub(crate) fn is_look_due(&self, now: u64) -> bool {
        self.spin.is_due(now)
    }

    /// Looks whether the guest spins, now and then. WFE says it where it is trapped; not everybody executes it, and not every
    /// machine traps it.
    pub(crate) fn look_whether_it_spins(&mut self, _before_the_switch: u64, first: u64) -> Look {
        let Registers { x, pc, pstate } = &self.registers;
        self.spin.look(clock::now(), first, x.iter().chain([pc, pstate]))
    }

    /// When this vCPU wants to be looked at for its timer, as a count of the machine's; `u64::MAX` for never. While it runs,
    /// its timer interrupts by itself.
    #[inline]
    pub(crate) fn next_deadline(&self, _now: u64) -> u64 {
        if self.activity != Activity::Halted {
            return u64::MAX;
        }
        let due = |timer: Timer| if self.gic.is_linked(timer.intid()) { u64::MAX } else { timer.deadline() };
        due(Timer::Virtual).min(due(Timer::Physical))
    }

    /// Takes back what a timer had asserted and the guest has not acknowledged, if the timer does not assert it any more:
    /// the guest has stopped it, or set it to later.
    #[inline]
    pub(crate) fn withdraw_timers(&mut self) {
        if self.gic.linked_waiting() != 0 {
            self.withdraw_quiet();
        }
    }

    #[inline(never)]
    fn withdraw_quiet(&mut self) {
        let waiting = self.gic.linked_waiting();
        for timer in [Timer::Virtual, Timer::Physical] {
            if waiting >> timer.intid() & 1 != 0 && !timer.is_due() {
                let gic::Deactivate(intids) = self.gic.withdraw(timer.intid());
                vgic::deactivate(intids);
            }
        }
    }

    /// Whether a timer, which is loaded, asserts its interrupt.
    #[inline]
    pub(crate) fn timer_is_due(&self) -> bool {
        [Timer::Virtual, Timer::Physical].into_iter().any(Timer::is_due)
    }

    /// Registers for the log when the guest cannot go on.
    pub(crate) fn dump(&self, vcpu: u32) {
        let r = &self.registers;
        log::error!("vCPU {vcpu} cannot go on: at {:#018x}, PSTATE {:#x}", r.pc, r.pstate);
        for (index, four) in r.x.chunks(4).enumerate() {
            log::error!("  x{:<2} {:#018x?}", index * 4, four);
        }
        log::error!("  ESR_EL2 {:#x}, FAR_EL2 {:#x}", read!("esr_el2"), read!("far_el2"));
        log::error!(
            "  VBAR_EL1 {:#x}, ELR_EL1 {:#x}, ESR_EL1 {:#x}, FAR_EL1 {:#x}",
            read!("vbar_el1"),
            read!("elr_el1"),
            read!("esr_el1"),
            read!("far_el1")
        );
    }
}

/// HCR_EL2 for a guest whose local maintenance instructions reach all CPUs, or not.
pub(crate) fn configuration(broadcasts: bool) -> u64 {
    let base = features::hypervisor_configuration();
    if broadcasts { base | hcr::FB | hcr::BSU_INNER } else { base }
}
