//! The shared state of a guest's vCPUs on Arm64: interrupt distributor, serial port, VMID.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use coherence::tlbi::{self, Setup, Stage2Tlb};
use coherence::vmid::{LocalMaintenance, Residents, VmidAllocator, VmidSlot};
use hostlink::config::{Architecture, Config, FlushMode, ForeignSwitch, LocalTlbi};
use memslots::Memslots;
use spin::Mutex;
use stay::arm64::AddressSpace;

use super::processor::{Arm64, Configuration, Features, Processor};
use super::state::VcpuState;
use super::vcpu::Inbox;
use crate::devices::virt::gic::{Distributor, INTIDS_DEFAULT};
use crate::devices::virt::pl011::Pl011;
use crate::devices::virt::pl031::Pl031;
use crate::devices::virt::psci::Start;
use crate::loader::LoadError;
use crate::loader::virt::{self, Entry, GuestConfig};
use crate::sched::VcpuIndex;
use crate::vm::percpu::{self, MAX_CPUS};
use crate::vm::space::VmMemory;
use crate::vm::{CreateError, Files, machine};

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
        return Err(CreateError::ForeignSwitch(ForeignSwitch { key: "flush", only: Architecture::Amd64 }));
    }
    match (config.switches.foreign(Architecture::Arm64), config.switches.defect) {
        (Some(foreign), _) => Err(CreateError::ForeignSwitch(foreign)),
        (None, Some(_)) if !cfg!(feature = "defects") => Err(CreateError::NoDefects),
        (None, Some(defect)) if !defect.is_of_arm() => Err(CreateError::ForeignDefect(defect)),
        _ => Ok(()),
    }
}

/// Guest physical ranges of RAM.
///
/// # Errors
///
/// If there is no room for that much.
pub fn ram<A: Arm64>(size: u64) -> Result<Vec<Range<u64>>, LoadError> {
    let ram = GuestConfig { memory_size: size, vcpu_count: 1, command_line: "" }.ram()?;
    if ram.end > 1 << A::physical_address_bits() {
        return Err(LoadError::MemoryTooLarge { memory: size });
    }
    Ok(vec![ram])
}

/// The serial port, with the input that it has not received yet.
pub struct Uart {
    /// The device that the guest sees.
    pub device: Pl011,
    waiting: VecDeque<u8>,
}

impl Uart {
    fn new() -> Self {
        Self { device: Pl011::new(), waiting: VecDeque::with_capacity(QUEUE_MAX) }
    }

    /// Queues a byte of input; bytes that arrive when the queue is full are lost.
    pub fn queue(&mut self, byte: u8) {
        if self.waiting.len() < QUEUE_MAX {
            self.waiting.push_back(byte);
        }
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

/// The state that vCPUs share besides memory and scheduler.
pub struct Shared {
    /// The GIC's distributor.
    pub distributor: Box<Mutex<Distributor>>,
    /// The serial port.
    pub uart: Mutex<Uart>,
    /// The real-time clock.
    pub rtc: Mutex<Pl031>,
    /// VMIDs of all machines.
    pub vmids: Box<VmidAllocator<MAX_CPUS>>,
    /// The VMID of this machine.
    pub vmid: VmidSlot,
    residents: Box<Residents<MAX_CPUS>>,
    /// The configuration's switch of that name.
    pub vmid_churn: u32,
    setup: Setup,
    root: u64,
    configuration: Configuration,
    local_maintenance: LocalMaintenance,
    vcpus: u32,
}

impl Shared {
    /// For a guest whose stage 2 is in `space`, on processors as `setup` describes them.
    ///
    /// # Errors
    ///
    /// If there are not enough VMIDs.
    pub fn new<A: Arm64>(
        config: &Config<'_>,
        space: &VmMemory<A>,
        setup: Setup,
    ) -> Result<Self, CreateError> {
        let broadcasts = config.switches.local_tlbi == LocalTlbi::Broadcast;
        let features = A::features();
        let most = if features.contains(Features::VMID16) { 16 } else { 8 };
        let bits = config.switches.vmid_bits.map_or(most, |bits| u32::from(bits).min(most));
        let shared = Self {
            distributor: Box::new(Mutex::new(Distributor::new(config.vcpus as u8, INTIDS_DEFAULT))),
            uart: Mutex::new(Uart::new()),
            rtc: Mutex::new(Pl031::default()),
            vmids: Box::new(VmidAllocator::new(bits, percpu::all::<A>().count()).ok_or(CreateError::Vmids)?),
            vmid: VmidSlot::new(),
            residents: Box::new(Residents::new()),
            vmid_churn: config.switches.vmid_churn.unwrap_or(0),
            setup,
            root: space.root().0,
            configuration: Configuration::new(A::base_configuration(), broadcasts),
            local_maintenance: if broadcasts { LocalMaintenance::Broadcast } else { LocalMaintenance::Local },
            vcpus: config.vcpus,
        };
        let _before_the_first_guest = tlbi::invalidate_all_vms(&A::TLB, &shared.setup);
        Ok(shared)
    }

    /// The VMID that tags the guest's translations, and their root.
    #[inline(always)]
    pub fn address_space(&self) -> AddressSpace<'_, MAX_CPUS> {
        let Self { vmids, vmid, residents, root, setup, .. } = self;
        AddressSpace { vmids, vmid, residents, root: *root, setup }
    }

    /// The value that VTTBR_EL2 must have while the guest runs.
    #[cfg(feature = "audit")]
    pub fn current_vttbr(&self) -> u64 {
        tlbi::Vttbr::new(self.root, self.vmid.current().unwrap_or(0)).bits()
    }

    /// The reach of the guest's local maintenance.
    #[inline(always)]
    pub fn local_maintenance(&self) -> LocalMaintenance {
        self.local_maintenance
    }

    /// The state of a vCPU after power-on.
    pub fn new_vcpu<P: Processor>(&self, index: VcpuIndex) -> VcpuState<P> {
        VcpuState::new(index, self.vcpus, self.configuration)
    }

    /// Puts kernel, device tree and initial RAM disk into memory, which is zeroed; `boot` begins at
    /// the entry. Works in short steps, with a `pause` between them.
    ///
    /// # Errors
    ///
    /// If the files are malformed, or do not fit.
    pub fn load<A: Arm64>(
        &self,
        files: &Files,
        vcpus: u32,
        slots: &Memslots,
        (inbox, boot): (&Inbox, &mut VcpuState<A>),
        pause: &mut dyn FnMut(),
    ) -> Result<(), LoadError> {
        let wanted = GuestConfig {
            memory_size: files.config.memory,
            vcpu_count: vcpus as u8,
            command_line: files.config.cmdline,
        };
        let plan = virt::plan(files.kernel, files.initrd, &wanted)?;
        for place in &plan.placements {
            machine::place(slots, place.gpa, &place.bytes, pause);
        }
        if A::must_clean() {
            // The guest starts with its caches off.
            machine::sweep(slots, pause, |_, piece| A::clean(piece.host));
        }
        A::TLB.instruction_cache();
        A::TLB.complete();
        A::TLB.context_sync();
        let Entry { pc, x0 } = plan.entry;
        inbox.power.reset();
        if inbox.power.turn_on(Start { entry: pc, context: x0 }).is_ok()
            && let Some(start) = inbox.power.take_start()
        {
            boot.start(start);
        }
        Ok(())
    }

    /// Resets all devices to their state after power-on.
    pub fn reset(&self) {
        *self.distributor.lock() = Distributor::new(self.vcpus as u8, INTIDS_DEFAULT);
        *self.uart.lock() = Uart::new();
        self.rtc.lock().reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_nothing_on_arm_is_refused() {
        for (line, key) in
            [("flush=ipi", "flush"), ("apic_ids=reversed", "apic_ids"), ("pretend=on", "pretend")]
        {
            let config = Config::parse(line).expect("parses");
            let found = check(&config);
            assert!(
                matches!(found, Err(CreateError::ForeignSwitch(foreign)) if foreign.key == key),
                "{line}"
            );
        }
        assert!(
            check(
                &Config::parse("vmid_bits=2\nstage2_unmap=page\nflush=hypercall\nflush_pages=64")
                    .expect("parses")
            )
            .is_ok()
        );
    }
}
