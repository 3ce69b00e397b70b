//! The shared state of a guest's vCPUs on x86-64: the Hyper-V partition, devices, the cost of
//! flushes.

pub mod deliver;
pub mod flush;
pub mod overlay;
pub mod rom;
mod saved_state;
pub mod turns;

use ::pci::function::Windows;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use hostlink::config::Config;
use memslots::Gpa;
use spin::Mutex;
use stay::Cost;

use self::flush::MemorySource;
use self::overlay::Overlays;
use self::rom::Rom;
use self::turns::Turns;
use super::hyperv::{self, CrashReport, Partition, crash};
use super::vcpu::state::{Permissions, VcpuState};
use super::{cpuid, vectors};
use crate::devices::pc::apic_ids::{ApicId, Assignment};
use crate::devices::pc::lapic::TimerClock;
use crate::devices::pc::pci::rom_device::RomLen;
use crate::devices::pc::pci::{self, Pci};
use crate::devices::pc::platform::{PcBoard, PortSize, SerialPort};
use crate::devices::pc::{acpi, power};
use crate::iommu::messages::{MachineDevices, Remapping};
use crate::loader::pc::layout;
use crate::loader::{self, EntryState, LoadError, MemoryLayout, Placement};
use crate::owned::{self, Busy, Followed, Functions, Holding, Refused};
use crate::pages::Pages;
use crate::vm::load::Plan;
use crate::vm::space::VmMemory;
use crate::vm::{CreateError, Files, GUEST, PerCpu, Vcpu, Vm, VpIndex, percpu, shadow_tables};
use crate::x86::processor::X86;

/// Rate of the guest's APIC timer. A power of ten makes the guest's calibration exact.
const APIC_HZ: u64 = 1_000_000_000;

/// Refuses a configuration that this image or processor cannot serve.
pub fn check<A: X86>(config: &Config<'_>) -> Result<(), CreateError> {
    if let Some(foreign) = config.switches.foreign(A::ARCHITECTURE) {
        return Err(CreateError::ForeignSwitch(foreign));
    }
    match config.switches.defect {
        Some(_) if !cfg!(feature = "defects") => Err(CreateError::NoDefects),
        Some(defect) if !defect.architectures().include(A::ARCHITECTURE) => {
            Err(CreateError::ForeignDefect(defect))
        }
        _ if config.switches.pretend && !cfg!(feature = "audit") => Err(CreateError::NoAuditor),
        _ if config.nested && A::IS_INTEL => Err(CreateError::NestedOnIntel),
        _ => {
            A::heed(&config.switches);
            Ok(())
        }
    }
}

/// What all guests share.
pub struct Common {
    flush_cost: Cost,
    /// The machine's PCI functions, for guests to own.
    devices: Option<&'static MachineDevices>,
}

impl Common {
    /// Measures the cost of flushes.
    pub fn new<A: X86>() -> Self {
        // No vCPU has run yet, so no tag is in use.
        let flush_cost = A::measure_flushes();
        log::info!("flushes: {flush_cost}");
        Self { flush_cost, devices: A::devices() }
    }
}

/// The state that vCPUs share besides memory and scheduler.
pub struct Shared {
    apic_ids: Assignment,
    /// Bits of CR4 that the guest may set.
    pub cr4_mask: u64,
    /// What it is not shown although the processor has it, for vCPUs that arrive from elsewhere.
    pub hidden: Mutex<cpuid::kept::Hidden>,
    /// The cost of flushes here.
    pub flush_cost: Cost,
    /// The Hyper-V partition.
    pub partition: Partition,
    /// Devices.
    pub platform: Mutex<PcBoard>,
    /// Pages that overlay guest memory.
    pub overlays: Mutex<Overlays>,
    /// The memory behind the expansion ROM.
    pub rom: Mutex<Rom>,
    /// What the guest owns of the machine.
    pub owned: Holding<Remapping>,
    /// Whether there are functions, real ones or others.
    pub has_functions: bool,
    /// Messages for several vCPUs have arrived: the next vCPU that looks delivers them.
    pub has_messages: AtomicBool,
    /// With the switch for that: how the guest is told to flush at present.
    pub turns: Option<Box<Turns>>,
    layout: MemoryLayout,
    /// Which ports and MSRs cause exits.
    permission_maps: [Pages; 2],
    /// For each vCPU, the ticks that the scheduler had given it at the last reset.
    used_before: Box<[AtomicU64]>,
    nested_root: u64,
    vcpus: u32,
    /// Tables that shadows of a vCPU may take; 0 if the guest may not have guests.
    pub shadow_tables: u32,
}

impl Shared {
    /// For a guest whose nested page table is in `space`.
    pub fn new<A: X86>(
        config: &Config<'static>,
        common: &Common,
        space: &VmMemory<A>,
        claim: Claim,
    ) -> Result<Self, CreateError> {
        let platform = hyperv::PartitionTraits {
            flush_hypercall: config.flush == hostlink::config::FlushMode::Hypercall,
            eoi_exits: config.switches.emulated_apic || !A::has_apic(),
            invariant_tsc: cpuid::host_has_invariant_tsc::<A>(),
            nested_paging: true,
            may_nest: config.nested,
            tsc_hz: A::hz(),
            apic_hz: APIC_HZ,
            gpa_bits: cpuid::physical_address_bits::<A>() as u8,
        };
        let mut board = PcBoard::default();
        board.add_functions(claim.shown);
        Ok(Self {
            apic_ids: Assignment::new(config.vcpus, config.switches.apic_ids),
            cr4_mask: cpuid::guest_cr4_mask::<A>(),
            hidden: Mutex::default(),
            flush_cost: common.flush_cost.limited_to(config.switches.flush_pages),
            partition: Partition::new(platform, A::now()).ok_or(CreateError::Clock)?,
            platform: Mutex::new(board),
            overlays: Mutex::new(Overlays::default()),
            rom: Mutex::new(Rom::new(RomLen::default())),
            has_functions: !claim.functions.is_empty(),
            has_messages: AtomicBool::new(false),
            turns: config.switches.flush_turns.then(Box::default),
            owned: Holding { functions: Mutex::new(claim.functions), domains: claim.domains },
            layout: MemoryLayout::new(config.memory).map_err(CreateError::Load)?,
            permission_maps: A::permission_maps(),
            used_before: (0..config.vcpus).map(|_| AtomicU64::new(0)).collect(),
            nested_root: space.root().0,
            vcpus: config.vcpus,
            shadow_tables: shadow_tables(config),
        })
    }

    /// The vCPU with an APIC id.
    #[inline]
    pub const fn vcpu_of(&self, id: ApicId) -> VpIndex {
        self.apic_ids.vcpu_of(id)
    }

    /// The state of a vCPU after power-on.
    pub fn new_vcpu<A: X86>(&self, index: VpIndex, identity: u32) -> VcpuState<A::Block> {
        let view = cpuid::View {
            apic_id: self.apic_ids.id_of(index),
            vcpus: self.vcpus,
            apic: true,
            osxsave: false,
            invariant_tsc: false,
            may_nest: self.partition.platform().may_nest,
        };
        let timer_clock = TimerClock { tsc_hz: A::hz(), apic_hz: APIC_HZ };
        VcpuState::new::<A>((index, identity), view, timer_clock, &self.permissions())
    }

    /// The tables that all of its vCPUs have.
    pub fn permissions(&self) -> Permissions {
        let [io, msr] = &self.permission_maps;
        let apic = !self.partition.platform().eoi_exits;
        Permissions { io: io.start(), msr: msr.start(), nested_root: self.nested_root, apic }
    }

    /// What is put into memory: kernel, initial RAM disk and tables.
    ///
    /// # Errors
    ///
    /// If the files are malformed, or do not fit.
    pub fn plan(&self, files: &Files, vcpus: u32) -> Result<Plan<EntryState>, LoadError> {
        // In order of the ids, which may differ from the order of the vCPUs.
        let apic_ids: Vec<_> = (0..vcpus).map(ApicId).collect();
        let tables = acpi::build(&apic_ids, layout::ACPI.start, self.has_functions);
        let plan = loader::plan(files.kernel, files.initrd, files.config.cmdline, &self.layout, tables.rsdp)?;
        let mut placements = plan.placements;
        placements.push(Placement { gpa: tables.base, bytes: tables.bytes.into() });
        placements.push(Placement { gpa: power::RESET_VECTOR, bytes: power::RESET_CODE[..].into() });
        Ok(Plan { placements, entry: plan.entry })
    }
}

/// Devices that a guest which is being created owns.
pub type Claim = owned::Claim<Remapping>;

/// Claims the functions that the configuration names.
///
/// # Errors
///
/// Why the guest does not get them.
pub fn claim<A: X86>(config: &Config<'static>, common: &Common) -> Result<Claim, CreateError> {
    let is_reached =
        |cpu: &PerCpu<A>| config.cpus.contains(cpu.index.0) && vectors::destination(cpu.id).is_some();
    if !config.devices.is_empty() && !percpu::online::<A>().any(is_reached) {
        return Err(CreateError::Devices(Refused::NoCpu));
    }
    if !config.devices.is_empty() && !keeps_translations(config) {
        return Err(CreateError::Devices(Refused::Switches));
    }
    let windows = Windows { low: pci::WINDOW, high: 0..0 };
    let claim = Functions::claim(common.devices, config.devices, config.name, &windows);
    claim.map_err(CreateError::Devices)
}

/// Whether translations go only with their own slot, as devices need it.
fn keeps_translations(config: &Config<'_>) -> bool {
    config.switches.zap != hostlink::config::Zap::Everything
        && config.switches.stage2_unmap != hostlink::config::Stage2Unmap::Page
}

#[cfg(test)]
impl Shared {
    /// Each field that a reset sets to what it is in a new guest, or that never changes.
    pub(crate) fn fields(&self) -> Vec<(&'static str, alloc::string::String)> {
        let Self {
            apic_ids,
            cr4_mask,
            hidden,
            flush_cost,
            partition,
            platform,
            overlays,
            rom,
            owned: _, // The functions are looked at by themselves, and the domains constant.
            has_functions,
            has_messages: _, // A look for messages finds none.
            turns: _,        // They go on.
            layout,
            permission_maps,
            used_before: _, // The time of the vCPUs begins anew: it is noted at a reset.
            nested_root,
            vcpus,
            shadow_tables,
        } = self;
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let maps = permission_maps.each_ref().map(|map| map.words().iter().map(load).collect::<Vec<_>>());
        crate::devices::state_checks::named!(apic_ids cr4_mask hidden flush_cost partition platform overlays rom has_functions layout maps nested_root vcpus shadow_tables)
    }
}

impl<A: X86> Vm<A> {
    /// Resets all devices to their state after power-on. No vCPU runs, except for one that carries
    /// this out.
    pub fn reset_devices(&self) {
        let now = A::now();
        for (vcpu, before) in self.vcpus.iter().zip(&self.guest.used_before) {
            let used = self.host.sched.used_by(vcpu.row, now);
            before.store(used, Ordering::Relaxed);
        }
        self.guest.turns.iter().for_each(|turns| turns.next());
        self.guest.partition.reset();
        *self.guest.overlays.lock() = Overlays::default();
        self.guest.platform.lock().reset();
    }

    /// Ticks for which a vCPU has had CPUs since the guest's last reset.
    pub fn ticks_used(&self, vcpu: &Vcpu<A>, now: u64) -> u64 {
        let used = self.host.sched.used_by(vcpu.row, now);
        let before = self.guest.used_before.get(vcpu.index.place());
        // Modulo 2^64: a guest that has come from elsewhere may have had more before.
        let ticks = used.wrapping_sub(before.map_or(0, |before| before.load(Ordering::Relaxed)));
        ticks.cast_signed().max(0).cast_unsigned()
    }

    /// After a reset neither the ROM nor a function is decoded: returns whether that holds already.
    /// No vCPU runs.
    pub fn reset_pci(&'static self, cpu: &PerCpu<A>) -> bool {
        let rom = self.guest.rom.lock().follow(self, cpu, VpIndex(0), None);
        if !matches!(rom, Ok(Followed::WasThere)) {
            return false;
        }
        matches!(self.guest.owned.functions.lock().hide(self, cpu), Ok(Followed::WasThere))
    }

    /// The ROM's slot is where the device decodes it: returns whether that holds already. No vCPU
    /// runs.
    pub fn follow_pci(&'static self, cpu: &PerCpu<A>) -> bool {
        let base = self.guest.platform.lock().rom_base().map(Gpa);
        let followed = self.guest.rom.lock().follow(self, cpu, VpIndex(0), base);
        matches!(followed, Ok(Followed::WasThere))
    }

    /// The functions that the guest owns follow what it has written.
    ///
    /// # Errors
    ///
    /// [`Busy`] if the access must be retried.
    pub fn follow_functions(&'static self, cpu: &PerCpu<A>, by: VpIndex) -> Result<Followed, Busy> {
        if !self.guest.has_functions {
            return Ok(Followed::WasThere);
        }
        self.guest.owned.functions.lock().follow(self, cpu, by)
    }

    /// IN from a port, after passing on the real console's input.
    pub fn port_read(&'static self, port: u16, width: PortSize) -> u32 {
        if self.guest.has_functions && Pci::is_data_port(port) {
            self.guest.owned.functions.lock().follow_resets(self);
        }
        let value = self.guest.platform.lock().port_read(port, width, || self.wall_ns());
        if port == SerialPort::Com1.base() && self.has_input() {
            self.receive_console();
        }
        value
    }

    /// Passes on the real console's input, as far as the guest's FIFO has room.
    pub fn receive_console(&self) {
        let mut platform = self.guest.platform.lock();
        while platform.can_receive(SerialPort::Com1) {
            let Some(byte) = A::receive() else { break };
            let (_, message) = platform.receive(SerialPort::Com1, &[byte]);
            if let Some(message) = message {
                self.deliver(message, ApicId::NONE);
            }
        }
    }

    /// The input of a serial port: returns how many of the bytes its FIFO has room for; `None` if
    /// there is no such port.
    pub fn type_in(&self, port: u16, bytes: &[u8]) -> Option<usize> {
        let port = *[SerialPort::Com1, SerialPort::Com2].get(usize::from(port))?;
        let (taken, message) = self.guest.platform.lock().receive(port, bytes);
        if let Some(message) = message {
            self.deliver(message, ApicId::NONE);
        }
        Some(taken)
    }

    /// Lets the guest find its generation id, and interrupts it if that is new.
    pub fn show_generation(&self, is_new: bool) {
        let id = self.generation.lock().to_le_bytes();
        // Each guest has memory there.
        if self.space.slots().memory().write(Gpa(acpi::GENERATION), &id).is_err() {
            log::error!("the guest has no memory for its generation id");
        }
        if is_new {
            self.happens(power::GENERATION);
        }
    }

    /// A general-purpose event of ACPI's occurs.
    pub fn happens(&self, event: u8) {
        let message = self.guest.platform.lock().happens(event);
        if let Some(message) = message {
            self.deliver(message, ApicId::NONE);
        }
    }

    /// Guest memory as the hypercall decoder reads it.
    pub fn memory_source(&self) -> MemorySource<'_, A> {
        MemorySource {
            memslots: self.space.slots(),
            platform: self.guest.partition.platform(),
            processor: PhantomData,
        }
    }

    /// Prints the guest's crash report.
    #[cold]
    pub fn report_crash(&self, vcpu: VpIndex, report: &CrashReport) {
        log::error!(target: GUEST, "vCPU {vcpu}: the guest crashed: {:x?}", report.parameters);
        let Some((gpa, length)) = report.message.and_then(|message| message.end()) else { return };
        let mut text = [0; crash::TEXT_MAX];
        if self.space.slots().memory().read(Gpa(gpa), &mut text[..length]).is_ok() {
            for line in crash::lines(&text[..length]) {
                log::error!(target: GUEST, "  {}", line.escape_ascii());
            }
        }
    }
}
