//! What the vCPUs of a guest share on Arm64: interrupt distributor, serial port, VMID.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use coherence::tlbi::{self, Errata, Granule, Limits, Setup, Stage2Tlb};
use coherence::vmid::{LocalMaintenance, VmidAllocator, VmidSlot};
use hostlink::config::{Config, LocalTlbi, Stage2Unmap};
use memslots::Memslots;
use paging::Level;
use spin::Mutex;

use super::features::{self, Features, STAGE2_BITS};
use super::flush::Tlb;
use super::state::{self, VcpuState};
use super::sysreg::read;
use super::vcpu::Inbox;
use super::{cost, cpu, stage2};
use crate::arch::PerCpu;
use crate::arch::Space;
use crate::devices::gic::{Distributor, INTIDS_DEFAULT};
use crate::devices::pl011::Pl011;
use crate::devices::pl031::Pl031;
use crate::devices::psci::Start;
use crate::loader::arm64::{self, Machine as Wanted};
use crate::loader::{LoadError, arm64::Entry};
use crate::sched::VcpuIndex;
use crate::vm::machine;
use crate::vm::percpu::MAX_CPUS;
use crate::vm::{CreateError, Files};
use stay::Measured;
use stay::arm64::AddressSpace;

/// Bytes of input that wait for the guest's serial port.
const QUEUE_MAX: usize = 4096;
/// Range instructions, above which the whole VMID goes.
const RANGES_MAX: u32 = 16;

/// Width of guest physical addresses.
pub(crate) fn physical_address_bits() -> u32 {
    STAGE2_BITS.min(features::physical_bits())
}

/// Largest page of stage 2.
pub(crate) fn largest_page() -> Level {
    Level::Page1G
}

/// Whether the processor notes in stage 2 which pages are stored to.
pub(crate) fn notes_stores() -> bool {
    Features::get().contains(Features::DIRTY_STATE)
}

/// Refuses a configuration that this image or processor cannot serve.
pub(crate) fn check(config: &Config<'_>) -> Result<(), CreateError> {
    match config.switches.defect {
        Some(_) if !cfg!(feature = "defects") => Err(CreateError::NoDefects),
        Some(defect) if !defect.is_of_arm() => Err(CreateError::ForeignDefect(defect)),
        _ if config.switches.pretend => Err(CreateError::NoAuditor),
        _ => Ok(()),
    }
}

/// Guest physical ranges of RAM.
pub(crate) fn ram(size: u64) -> Result<Vec<Range<u64>>, LoadError> {
    let ram = Wanted { memory_size: size, vcpu_count: 1, command_line: "" }.ram()?;
    if ram.end > 1 << physical_address_bits() {
        return Err(LoadError::MemoryTooLarge { memory: size });
    }
    Ok(vec![ram])
}

/// The serial port, with what it has not received yet.
pub(crate) struct Uart {
    pub(crate) device: Pl011,
    waiting: VecDeque<u8>,
}

impl Uart {
    fn new() -> Self {
        Self { device: Pl011::new(), waiting: VecDeque::with_capacity(QUEUE_MAX) }
    }

    /// Takes in a byte from outside; what comes when the queue is full is lost.
    pub(crate) fn queue(&mut self, byte: u8) {
        if self.waiting.len() < QUEUE_MAX {
            self.waiting.push_back(byte);
        }
    }

    /// Passes on what the device has room for.
    pub(crate) fn pass_on(&mut self) {
        while let Some(&byte) = self.waiting.front() {
            if !self.device.receive(byte) {
                break;
            }
            self.waiting.pop_front();
        }
    }
}

/// What the vCPUs share beyond memory and scheduler.
pub(crate) struct Shared {
    pub(crate) distributor: Box<Mutex<Distributor>>,
    pub(crate) uart: Mutex<Uart>,
    pub(crate) rtc: Mutex<Pl031>,
    pub(crate) vmids: Box<VmidAllocator<MAX_CPUS>>,
    pub(crate) vmid: VmidSlot,
    /// As the configuration's switch of that name.
    pub(crate) vmid_churn: u32,
    setup: Setup,
    root: u64,
    configuration: u64,
    local_maintenance: LocalMaintenance,
    vcpus: u32,
}

impl Shared {
    /// For a guest whose stage 2 is `space`'s.
    pub(crate) fn new(config: &Config<'_>, space: &Space) -> Result<Self, CreateError> {
        let broadcasts = config.switches.local_tlbi == LocalTlbi::Broadcast;
        let features = Features::get();
        let most = if features.contains(Features::VMID16) { 16 } else { 8 };
        let bits = config.switches.vmid_bits.map_or(most, |bits| u32::from(bits).min(most));
        let shared = Self {
            distributor: Box::new(Mutex::new(Distributor::new(config.vcpus as u8, INTIDS_DEFAULT))),
            uart: Mutex::new(Uart::new()),
            rtc: Mutex::new(Pl031::default()),
            vmids: Box::new(VmidAllocator::new(bits, PerCpu::all().count()).ok_or(CreateError::Vmids)?),
            vmid: VmidSlot::new(),
            vmid_churn: config.switches.vmid_churn,
            setup: setup(config.switches.stage2_unmap),
            root: space.root().0,
            configuration: state::configuration(broadcasts),
            local_maintenance: if broadcasts { LocalMaintenance::Broadcast } else { LocalMaintenance::Local },
            vcpus: config.vcpus,
        };
        let _before_the_first_guest = tlbi::invalidate_all_vms(&Tlb, &shared.setup);
        Ok(shared)
    }

    /// What translations are tagged with.
    #[inline(always)]
    pub(crate) fn address_space(&self) -> AddressSpace<'_, MAX_CPUS> {
        AddressSpace { vmids: &self.vmids, vmid: &self.vmid, root: self.root, setup: &self.setup }
    }

    /// VTTBR_EL2 as it has to be while the guest runs.
    #[cfg(feature = "audit")]
    pub(crate) fn current_vttbr(&self) -> u64 {
        tlbi::Vttbr::new(self.root, self.vmid.current().unwrap_or(0)).bits()
    }

    /// How far the guest's local maintenance reaches.
    #[inline(always)]
    pub(crate) fn local_maintenance(&self) -> LocalMaintenance {
        self.local_maintenance
    }

    /// The state of a vCPU after power-on.
    pub(crate) fn new_vcpu(&self, index: VcpuIndex) -> VcpuState {
        VcpuState::new(index, self.vcpus, self.configuration)
    }

    /// Puts kernel, device tree and initial RAM disk into memory, which is zeroed; `boot` begins at the entry. Steps are short, with
    /// a `pause` between them.
    pub(crate) fn load(
        &self,
        files: &Files,
        vcpus: u32,
        slots: &Memslots,
        (inbox, boot): (&Inbox, &mut VcpuState),
        pause: &mut dyn FnMut(),
    ) -> Result<(), LoadError> {
        let wanted = Wanted {
            memory_size: files.config.memory,
            vcpu_count: vcpus as u8,
            command_line: files.config.cmdline,
        };
        let plan = arm64::plan(files.kernel, files.initrd, &wanted)?;
        for place in &plan.placements {
            machine::place(slots, place.gpa, &place.bytes, pause);
        }
        if cpu::must_clean() {
            // The guest begins with its caches off.
            machine::sweep(slots, pause, |_, piece| cpu::clean(piece.host));
        }
        Tlb.instruction_cache();
        Tlb.complete();
        Tlb.context_sync();
        let Entry { pc, x0 } = plan.entry;
        inbox.power.reset();
        if inbox.power.turn_on(Start { entry: pc, context: x0 }).is_ok()
            && let Some(start) = inbox.power.take_start()
        {
            boot.start(start);
        }
        Ok(())
    }

    /// All devices as after power-on.
    pub(crate) fn reset(&self) {
        *self.distributor.lock() = Distributor::new(self.vcpus as u8, INTIDS_DEFAULT);
        *self.uart.lock() = Uart::new();
        self.rtc.lock().reset();
    }
}

/// Up to how many pages are invalidated one by one, where there is no instruction for a range.
fn page_limit() -> u32 {
    let cost = cost::measure();
    let Measured { page, miss, ticks_per_us, .. } = cost.measured();
    let ns = |ticks: u64| ticks * 1000 / ticks_per_us.max(1);
    log::info!(
        "IPAS2E1IS takes {} ns, a TLB miss {} ns: up to {} pages are invalidated one by one",
        ns(page),
        ns(miss),
        cost.page_limit()
    );
    u32::try_from(cost.page_limit()).unwrap_or(u32::MAX)
}

/// What the processors have. They are taken to be alike.
fn setup(way: Stage2Unmap) -> Setup {
    let mut features =
        tlbi::Features::from_id(read!("id_aa64isar0_el1"), read!("s3_0_c0_c7_2"), read!("ctr_el0"));
    let limits = match way {
        Stage2Unmap::Range => Limits { pages_max: page_limit(), ranges_max: RANGES_MAX },
        Stage2Unmap::Page => {
            features.range = false;
            Limits { pages_max: u32::MAX, ranges_max: 0 }
        }
        Stage2Unmap::Whole => Limits { pages_max: 0, ranges_max: 0 },
    };
    stage2::init();
    Setup { granule: Granule::Size4K, features, errata: Errata::of(read!("midr_el1")), limits }
}
