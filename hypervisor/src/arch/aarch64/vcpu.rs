//! What a CPU needs to run a vCPU, what comes to a vCPU from outside, and one stay in the guest.

use coherence::CpuId;
use coherence::vmid::{Resident, VmidSlot};
use hostlink::counters::Counter;
use stay::arm64::{self, Place};

use super::entry::{run_guest, vector};
use super::flush::Tlb;
use super::{interrupts, vgic};
use crate::arch::{Context, Machine, PerCpu};
use crate::devices::gic::{self, Deactivate, Effect, Maintenance, View};
use crate::devices::psci::Power;
use crate::vm::files::Defects;

use super::state::{Activity, VcpuState};

/// What others post to a vCPU.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) interrupts: gic::Inbox,
    pub(crate) power: Power,
}

impl Inbox {
    /// Of a vCPU that is off.
    pub(crate) const fn new() -> Self {
        Self { interrupts: gic::Inbox::new(), power: Power::off() }
    }
}

/// What a CPU needs besides its vCPU; allocated once.
pub(crate) struct Workspace {
    /// Who ran here last.
    resident: Resident,
    /// What is loaded here, and what has to be dropped before the vCPU on this CPU enters the guest.
    place: Place,
    /// What the interface was told last.
    maintenance: Maintenance,
    /// Entries into the guest since a machine that is made up took a VMID here.
    entries: u32,
}

impl Workspace {
    /// For the calling CPU.
    pub(crate) fn new(_: &PerCpu) -> Self {
        vgic::init_cpu();
        Self { resident: Resident::new(), place: Place::new(), maintenance: Maintenance::empty(), entries: 0 }
    }
}

impl Context<'_> {
    /// Loads the state of the vCPU whose turn it is.
    #[inline(always)]
    pub(crate) fn load_state(&mut self) {
        let reach = self.vm.guest.local_maintenance();
        let Workspace { place, resident, .. } = &mut *self.workspace;
        let vcpu = (self.vcpu.index, &mut self.state.home);
        if place.arrive(resident, vcpu, CpuId(self.cpu.index), reach, &Defects) {
            self.count(Counter::FlushArrival);
        }
        // Stage-1 walks may be forbidden from here on; TCR_EL1 is loaded with the rest.
        self.enter_address_space();
        self.state.load();
        self.state.spin.begin_turn();
        if self.state.timer_is_due() {
            // Its interrupt would end guest mode at once.
            interrupts::take_all();
            self.take_timers();
        }
    }

    /// VTTBR_EL2, and what has to go with it. True if it has changed: then stage-1 walks may be forbidden until TCR_EL1 is
    /// loaded (see [`tlbi::enter_vm`](coherence::tlbi::enter_vm)).
    #[inline]
    fn enter_address_space(&mut self) -> bool {
        let (cpu, space) = (CpuId(self.cpu.index), self.vm.guest.address_space());
        let (place, state) = (&mut self.workspace.place, &mut *self.state);
        let entered = arm64::enter_address_space(&Tlb, cpu, place, &space, || state.note_walks());
        if entered.dropped_all {
            self.count(Counter::VmidFlushes);
        }
        entered.has_changed
    }

    /// Every so many entries another machine is about to run on this CPU, one that never has before: it takes a VMID. It leaves
    /// before it enters its guest, so that VTTBR_EL2 stays, and what it owes is left to whoever comes next.
    #[cold]
    fn churn(&mut self) {
        self.workspace.entries += 1;
        if self.workspace.entries >= self.vm.guest.vmid_churn {
            self.workspace.entries = 0;
            let stranger = VmidSlot::new();
            let _it_does_not_run = self.vm.guest.vmids.assign(CpuId(self.cpu.index), &stranger);
        }
    }

    /// Enters the guest and comes back with an exit; or does not enter, because something has to be looked at first, and
    /// returns false.
    pub(crate) fn enter(&mut self) -> bool {
        if self.vm.guest.vmid_churn != 0 {
            self.churn();
        }
        if self.enter_address_space() {
            self.state.allow_walks();
        }
        let mut processor = El1 { vm: self.vm, cpu: self.cpu, state: self.state, workspace: self.workspace };
        if !arm64::enter(&mut processor, &mut self.owner) {
            self.take_flush();
            // Whoever keeps posting events must not keep interrupts away.
            self.open_window();
            return false;
        }
        let exit = self.state.exit;
        self.cpu.last_exit.store(exit, core::sync::atomic::Ordering::Relaxed);
        if exit == vector::IRQ {
            self.open_window();
        }
        true
    }

    /// Takes the interrupts that pend, outside of guest mode. The guest's timers are those of the vCPU on this CPU.
    pub(crate) fn open_window(&mut self) {
        interrupts::take_all();
        self.take_timers();
        self.note_maintenance();
    }

    /// Timers that have interrupted are those of the vCPU on this CPU.
    #[inline]
    fn take_timers(&mut self) {
        let mut fired = self.cpu.arch.timers_fired.replace(0);
        while fired != 0 {
            self.state.gic.forward(fired.trailing_zeros() as u8);
            self.count(Counter::IrqTimer);
            fired &= fired - 1;
        }
    }

    /// Has it noted that a maintenance interrupt came: it asks for no more of them if nothing comes of it.
    #[inline]
    fn note_maintenance(&mut self) {
        if self.cpu.arch.maintenance_fired.replace(false) {
            let view = View::new(vgic::interface_setup(), 0xff);
            self.state.gic.note_maintenance(&view);
        }
    }

    /// Takes a flush that was asked for by request. None is: flushes are broadcast.
    #[cold]
    pub(crate) fn take_flush(&mut self) {
        arm64::take_flush(&Tlb, &mut self.owner);
    }

    /// Takes what was posted: interrupts, and to be turned on.
    #[inline(always)]
    pub(crate) fn take_signals(&mut self) {
        if self.state.activity == Activity::Off
            && let Some(start) = self.vcpu.inbox.power.take_start()
        {
            self.state.start(start);
        }
        if self.state.gic.look(&self.vcpu.inbox.interrupts) {
            self.settle_interrupts();
        }
    }

    /// SPIs that were posted are claimed, and given back.
    #[inline(never)]
    fn settle_interrupts(&mut self) {
        let mut distributor = self.vm.guest.distributor.lock();
        let effect = self.state.gic.settle(&mut distributor);
        self.vm.perform(effect, &distributor);
    }
}

/// The processor with a vCPU's state. Interrupts are masked.
struct El1<'a> {
    vm: &'a Machine,
    cpu: &'a PerCpu,
    state: &'a mut VcpuState,
    workspace: &'a mut Workspace,
}

impl arm64::Processor for El1<'_> {
    #[inline(always)]
    fn id(&self) -> CpuId {
        CpuId(self.cpu.index)
    }

    #[inline(always)]
    fn fill_lists(&mut self) {
        // To fill the list registers what runs does not matter, only what the interface is set up for.
        let view = View::new(vgic::interface_setup(), 0xff);
        let maintenance = self.state.gic.fill(&mut vgic::Lists, &view);
        if maintenance != self.workspace.maintenance {
            vgic::set_maintenance(maintenance);
            self.workspace.maintenance = maintenance;
        }
    }

    #[inline(always)]
    fn run(&mut self) {
        self.state.auditor.check(self.cpu, self.vm);
        // SAFETY: the registers are this vCPU's, EL1's are loaded, stage 2 maps its memory only.
        self.state.exit = unsafe { run_guest(&raw mut self.state.registers) };
        self.state.auditor.note(self.cpu);
    }

    /// The list registers are empty after this, and the interface asks for nothing.
    #[inline]
    fn take_lists_back(&mut self) {
        let mut eoi_count = 0;
        if !self.workspace.maintenance.is_empty() {
            eoi_count = Maintenance::eoi_count(vgic::control());
            vgic::set_maintenance(Maintenance::empty());
            self.workspace.maintenance = Maintenance::empty();
        }
        let Deactivate(intids) = self.state.gic.sync(&mut vgic::Lists, eoi_count);
        if intids != 0 {
            vgic::deactivate(intids);
        }
        self.state.withdraw_timers();
    }
}

impl Machine {
    /// Carries out what an access to the distributor asks for, under its lock.
    pub(crate) fn perform(&self, effect: Effect, distributor: &gic::Distributor) {
        if effect.is_empty() {
            return;
        }
        if let Some(groups) = effect.groups {
            for vcpu in &self.vcpus {
                vcpu.inbox.interrupts.post_groups(groups);
                self.notify(vcpu);
            }
        }
        for post in effect.posts(distributor) {
            let Some(vcpu) = self.vcpus.get(usize::from(post.vcpu)) else { continue };
            vcpu.inbox.interrupts.post_spi(post.intid);
            self.notify(vcpu);
        }
    }
}
