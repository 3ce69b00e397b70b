//! The shared state of a guest's vCPUs on Arm64: interrupt distributor, serial port, VMID.

pub mod devices;
pub mod identity;
pub mod saved_state;
pub mod translations;

use ::pci::function::Windows;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use coherence::tlbi::{self, Limits, Setup, Stage2Tlb};
use coherence::vmid::{LocalMaintenance, Residents, VmidAllocator, VmidSlot};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use hostlink::architecture::{Architecture, Architectures};
use hostlink::config::{Config, FlushMode, ForeignSwitch, LocalTlbi, Stage2Unmap, Switches};
use spin::Mutex;
use stay::Cost;
use stay::broadcast::AddressSpace;

use super::controls::hcr_base;
use super::processor::{Arm64, Configuration, Features, Processor};
use super::vcpu::Inbox;
use super::vcpu::state::VcpuState;
use super::vcpu::stolen_time::Scale;
use crate::devices::virt::fdt::Wire;
use crate::devices::virt::gic::{Distributor, INTIDS_DEFAULT};
use crate::devices::virt::map;
use crate::devices::virt::pci::Pci;
use crate::devices::virt::pl011::Pl011;
use crate::devices::virt::pl031::Pl031;
use crate::devices::virt::psci::Start;
use crate::iommu::lines::{MachineDevices, Wired};
use crate::iommu::mirror::{Memory, Mirror};
use crate::loader::LoadError;
use crate::loader::virt::{self, Entry, GuestConfig};
use crate::owned::{self, Functions, Holding};
use crate::vm::load::Plan;
use crate::vm::percpu::{self, MAX_CPUS};
use crate::vm::space::VmMemory;
use crate::vm::{CreateError, Files, VpIndex};

/// Maximum number of input bytes that wait for the guest's serial port.
const QUEUE_MAX: usize = 4096;
/// Refuses a configuration that this image or processor cannot serve.
///
/// # Errors
///
/// What is wrong with the configuration.
pub fn check(config: &Config<'_>) -> Result<(), CreateError> {
    if config.flush == FlushMode::Ipi {
        // The guest's processors flush each other: the guest is not told how.
        return Err(CreateError::ForeignSwitch(ForeignSwitch { key: "flush", only: Architectures::X86 }));
    }
    match (config.switches.foreign(Architecture::Arm64), config.switches.defect) {
        (Some(foreign), _) => Err(CreateError::ForeignSwitch(foreign)),
        (None, Some(_)) if !cfg!(feature = "defects") => Err(CreateError::NoDefects),
        (None, Some(defect)) if !defect.architectures().include(Architecture::Arm64) => {
            Err(CreateError::ForeignDefect(defect))
        }
        _ => Ok(()),
    }
}

/// Devices that a guest which is being created owns.
pub type Claim = owned::Claim<Wired>;

/// Claims the functions that the configuration names.
///
/// # Errors
///
/// Why the guest does not get them.
pub fn claim(config: &Config<'static>, common: &Common) -> Result<Claim, CreateError> {
    let windows = Windows { low: map::PCI_MEMORY, high: 0..0 };
    let claim = Functions::claim(common.devices, config.devices, config.name, &windows);
    claim.map_err(CreateError::Devices)
}

/// Guest physical ranges of memory: RAM, and what firmware takes for its flash.
///
/// # Errors
///
/// If there is no room for that much.
pub fn ram<A: Arm64>(config: &Config<'_>) -> Result<Vec<Range<u64>>, LoadError> {
    let ram = virt::ram(config.memory)?;
    if ram.end > 1 << A::physical_address_bits() {
        return Err(LoadError::MemoryTooLarge { memory: config.memory });
    }
    let flash = config.is_firmware.then_some(map::FLASH);
    Ok(flash.into_iter().chain([ram]).collect())
}

/// The serial port, with the input that it has not received yet.
#[derive(Debug)]
pub struct Uart {
    /// The device that the guest sees.
    pub device: Pl011,
    waiting: VecDeque<u8>,
}

impl Uart {
    fn new() -> Self {
        Self { device: Pl011::default(), waiting: VecDeque::with_capacity(QUEUE_MAX) }
    }

    /// Queues a byte of input; false if the queue is full.
    pub fn queue(&mut self, byte: u8) -> bool {
        let has_room = self.waiting.len() < QUEUE_MAX;
        if has_room {
            self.waiting.push_back(byte);
        }
        has_room
    }

    /// Passes on as much as the device has room for.
    pub fn pass_on(&mut self) {
        while let Some(&byte) = self.waiting.front() {
            if !self.device.receive(byte) {
                break;
            }
            self.waiting.pop_front();
        }
    }
}

/// What all guests share.
pub struct Common {
    /// VMIDs of all machines.
    pub vmids: Box<VmidAllocator<MAX_CPUS>>,
    /// The method to invalidate stage 2 on these processors, without limits.
    setup: Setup,
    cost: Cost,
    /// The machine's PCI functions, for guests to own.
    pub devices: Option<&'static MachineDevices>,
    /// A root of stage 2 without entries.
    nowhere: Box<Table>,
}

#[repr(C, align(4096))]
struct Table([u64; 512]);

impl Common {
    /// For processors as `setup` describes them, where flushes have this cost.
    ///
    /// # Errors
    ///
    /// If there are not enough VMIDs.
    pub fn new<A: Arm64>(config: &Config<'_>, setup: Setup, cost: Cost) -> Result<Self, CreateError> {
        let most = if A::features().contains(Features::VMID16) { 16 } else { 8 };
        let bits = config.switches.vmid_bits.map_or(most, |bits| u32::from(bits).min(most));
        let vmids = VmidAllocator::new(bits, percpu::all::<A>().count()).ok_or(CreateError::Vmids)?;
        let _before_the_first_guest = tlbi::invalidate_all_vms(&A::TLB, &setup);
        let devices = A::devices();
        Ok(Self { vmids: Box::new(vmids), setup, cost, devices, nowhere: Box::new(Table([0; 512])) })
    }

    /// The method to invalidate stage 2 on these processors.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Root of the address space of no machine.
    pub fn nowhere(&self) -> u64 {
        self.nowhere.0.as_ptr().expose_provenance() as u64
    }

    fn setup_for(&self, switches: &Switches) -> Setup {
        let mut setup = self.setup;
        setup.limits = match switches.stage2_unmap {
            Stage2Unmap::Range => self.cost.limited_to(switches.flush_pages).limits(),
            Stage2Unmap::Page => {
                setup.features.range = false;
                Limits { pages_max: u32::MAX, ranges_max: 0 }
            }
            Stage2Unmap::Whole => Limits { pages_max: 0, ranges_max: 0 },
        };
        setup
    }

    /// The address space of the machine with this tag.
    pub fn address_space<'a>(&'a self, tag: &'a Tag) -> AddressSpace<'a, MAX_CPUS> {
        let Tag { vmid, residents, root } = tag;
        let root = root.load(Ordering::Relaxed);
        AddressSpace { vmids: &self.vmids, vmid, residents, root, setup: &self.setup }
    }
}

/// What tags a machine's translations. The allocator of its tables knows it, too.
#[derive(Debug, Default)]
pub struct Tag {
    /// Its VMID.
    pub vmid: VmidSlot,
    /// The vCPU that ran last on each CPU.
    residents: Residents<MAX_CPUS>,
    /// The root of its stage 2, once it has one.
    root: AtomicU64,
}

/// The state that vCPUs share besides memory and scheduler.
pub struct Shared {
    /// The GIC's distributor.
    pub distributor: Box<Mutex<Distributor>>,
    /// The serial port.
    pub uart: Mutex<Uart>,
    /// The real-time clock.
    pub rtc: Mutex<Pl031>,
    /// The PCI bus with the functions of the machine that the guest owns.
    pub pci: Mutex<Pci>,
    /// What the real ones do.
    pub owned: Holding<Wired>,
    /// By which they translate.
    mirror: Option<Box<Mutex<Mirror>>>,
    has_functions: bool,
    wires: Vec<Wire>,
    /// What it shares with the other machines.
    pub common: &'static Common,
    /// What it sees instead of the processor's ID registers.
    pub former: identity::Former,
    /// The VMID of this machine.
    pub tag: Arc<Tag>,
    /// The configuration's switch of that name.
    pub vmid_churn: u32,
    /// Converts a vCPU's stolen time.
    pub ns_per_tick: Scale,
    setup: Setup,
    root: u64,
    configuration: Configuration,
    local_maintenance: LocalMaintenance,
    vcpus: u32,
}

impl Shared {
    /// For a guest whose stage 2 is in `space`, and whose translations have this tag.
    ///
    /// # Errors
    ///
    /// If there is no memory for the tables of its devices.
    pub fn new<A: Arm64>(
        config: &Config<'static>,
        common: &'static Common,
        space: &VmMemory<A>,
        tag: Arc<Tag>,
        claim: Claim,
    ) -> Result<Self, CreateError> {
        let Claim { functions, mut shown, domains } = claim;
        let has_functions = !functions.is_empty();
        let wires = functions.wire(&mut shown);
        let mirror = match domains {
            None => None,
            Some(_) => {
                let memory = Memory::new(|| A::TLB.order_stores());
                let mirror = Mirror::new(memory).ok_or(CreateError::NoTables)?;
                Some(Box::new(Mutex::new(mirror)))
            }
        };
        let broadcasts = config.switches.local_tlbi == LocalTlbi::Broadcast;
        tag.root.store(space.root().0, Ordering::Relaxed);
        Ok(Self {
            distributor: Box::new(Mutex::new(distributor(config.vcpus, &wires))),
            pci: Mutex::new(Pci::new(shown)),
            owned: Holding { functions: Mutex::new(functions), domains },
            mirror,
            has_functions,
            wires,
            uart: Mutex::new(Uart::new()),
            rtc: Mutex::new(Pl031::default()),
            common,
            former: identity::Former::default(),
            tag,
            vmid_churn: config.switches.vmid_churn.unwrap_or(0),
            ns_per_tick: Scale::new(A::hz()),
            setup: common.setup_for(&config.switches),
            root: space.root().0,
            configuration: Configuration::new(hcr_base(&A::description()), broadcasts),
            local_maintenance: if broadcasts { LocalMaintenance::Broadcast } else { LocalMaintenance::Local },
            vcpus: config.vcpus,
        })
    }

    /// Whether there are PCI functions, real ones or others.
    pub fn has_functions(&self) -> bool {
        self.has_functions
    }

    /// The tables by which the guest's devices translate.
    pub fn mirror(&self) -> Option<&Mutex<Mirror>> {
        self.mirror.as_deref()
    }

    /// The VMID that tags the guest's translations, and their root.
    #[inline(always)]
    pub fn address_space(&self) -> AddressSpace<'_, MAX_CPUS> {
        let Tag { vmid, residents, .. } = &*self.tag;
        AddressSpace { vmids: &self.common.vmids, vmid, residents, root: self.root, setup: &self.setup }
    }

    /// The root of stage 2.
    pub fn root(&self) -> u64 {
        self.root
    }

    /// The VMID that VTTBR_EL2 must have while the guest runs.
    #[cfg(any(test, feature = "audit"))]
    pub fn current_vmid(&self) -> u16 {
        self.tag.vmid.current().unwrap_or(0)
    }

    /// HCR_EL2 of the guest's vCPUs, but for what varies with each of them.
    #[cfg(any(test, feature = "audit"))]
    pub fn configuration(&self) -> Configuration {
        self.configuration
    }

    /// The reach of the guest's local maintenance.
    #[inline(always)]
    pub fn local_maintenance(&self) -> LocalMaintenance {
        self.local_maintenance
    }

    /// The state of a vCPU after power-on.
    pub fn new_vcpu<P: Processor>(&self, index: VpIndex, identity: u32) -> VcpuState<P> {
        VcpuState::new((index, identity), self.vcpus, self.configuration)
    }

    /// What is put into memory: kernel, device tree and initial RAM disk.
    ///
    /// # Errors
    ///
    /// If the files are malformed, or do not fit.
    pub fn plan(&self, files: &Files, vcpus: u32) -> Result<Plan<Entry>, LoadError> {
        let wanted = GuestConfig {
            memory_size: files.config.memory,
            vcpu_count: vcpus as u8,
            command_line: files.config.cmdline,
            functions: &self.wires,
            is_firmware: files.config.is_firmware,
        };
        let virt::Plan { placements, entry } = virt::plan(files.kernel, files.initrd, &wanted)?;
        Ok(Plan { placements, entry })
    }

    /// Resets all devices to their state after power-on.
    pub fn reset(&self) {
        *self.distributor.lock() = distributor(self.vcpus, &self.wires);
        self.pci.lock().reset();
        *self.uart.lock() = Uart::new();
        self.rtc.lock().reset();
    }
}

/// The distributor after power-on, for a guest with these functions.
fn distributor(vcpus: u32, wires: &[Wire]) -> Distributor {
    let mut distributor = Distributor::new(vcpus as u8, INTIDS_DEFAULT);
    distributor.forward(wires.iter().map(|wire| wire.intid));
    distributor
}

/// Memory is as planned: lets the boot vCPU begin when it next looks at its inbox.
pub fn begin<A: Arm64>(entry: Entry, (inbox, _): (&Inbox, &mut VcpuState<A>)) {
    saved_state::drop_instructions::<A>();
    let Entry { pc, x0 } = entry;
    inbox.power.reset();
    let _it_was_off = inbox.power.turn_on(Start { entry: pc, context: x0 });
}

#[cfg(test)]
mod tests;
