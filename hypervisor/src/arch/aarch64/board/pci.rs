//! The machine's PCI bus: the hypervisor's serial ports, functions that guests own, and the SMMU.
//!
//! A 16550 on PCI has one base address register, in port space; a host bridge maps port space at an
//! address. Source: PCI Local Bus Specification 3.0, sections 6.2 and 6.2.5.

use alloc::boxed::Box;
use alloc::vec::Vec;
use baremetal::HardwareId;
use baremetal::devicetree::{PciHost, Smmu as SmmuPlace};
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};
use iommu::DeviceId;
use iommu::smmu::registers::Register;
use pci::physical::{Identity, Node, place};
use pci::{Address, ConfigSpace};
use spin::Once;

use super::gic;
use crate::arch::PerCpu;
use crate::arch::aarch64::sysreg::{dsb_ld, dsb_st};
use crate::devices::virt::map::PCI_LINES;
use crate::image::registers::MappedBus;
use crate::iommu::lines::{Gate, InterruptLines, MachineDevices};
use crate::iommu::smmu::{Registers, Smmu};
use crate::owned;

/// Vendor and device of QEMU's 16550s: one, two, four ports.
const SERIAL_2X: u32 = 0x0003_1b36;

const COMMAND: u64 = 0x04;
const BAR0: u64 = 0x10;
const PORT_SPACE: u32 = 1 << 0;
/// Size of a function's configuration space in bytes, and number of functions of a device.
const FUNCTION: u64 = 4096;
const FUNCTIONS: u64 = 8;
const PORT: u32 = 0x1000;

/// The functions that guests may own; `None` on a machine without SMMU.
static DEVICES: Once<Option<MachineDevices>> = Once::new();

/// INTID of the SMMU's event queue; 0 if there is none.
static EVENTS: AtomicU32 = AtomicU32::new(0);

/// The same, once they are known.
pub(crate) fn devices() -> Option<&'static MachineDevices> {
    DEVICES.get()?.as_ref()
}

/// Finds a card with two serial ports on the first bus; returns the address of their registers, and
/// its INTID.
pub(crate) fn find_ports(host: &PciHost) -> Option<(u64, Option<u32>)> {
    let space = host.ports?;
    for device in 0..32 {
        let function = host.ecam.start + device * FUNCTIONS * FUNCTION;
        if function + FUNCTION > host.ecam.end || read(function) != SERIAL_2X {
            continue;
        }
        write(function + BAR0, PORT);
        write(function + COMMAND, read(function + COMMAND) & 0xffff | PORT_SPACE);
        // Pin A of device n is wired like pin A of device n % 4.
        return Some((space.start + u64::from(PORT), host.pins[device as usize % 4]));
    }
    None
}

fn read(address: u64) -> u32 {
    // SAFETY: the device tree says that configuration space is there, and it is mapped as device
    // memory; reading it changes nothing.
    unsafe { (address as *const u32).read_volatile() }
}

fn write(address: u64, value: u32) {
    // SAFETY: as above; what is written concerns a function that the caller has to itself.
    unsafe { (address as *mut u32).write_volatile(value) };
}

/// What was found before the hypervisor's own tables were active.
pub(crate) struct Found {
    bus: &'static HostBus,
    nodes: Vec<Node>,
    smmu: SmmuPlace,
    /// The hypervisor's serial ports.
    own: Option<Address>,
    /// Registers that must be mapped.
    pub(crate) registers: Vec<Range<u64>>,
}

/// Looks for functions behind an SMMU, and gives their registers addresses where nobody has: there
/// may be no firmware that does it. `None` without an SMMU.
///
/// # Safety
///
/// Configuration space is mapped, and nobody else uses the bus.
pub(crate) unsafe fn find(host: &PciHost) -> Option<Found> {
    let smmu = host.smmu?;
    let pins = host.pins;
    let bus: &'static HostBus = Box::leak(Box::new(HostBus { ecam: host.ecam.into(), pins }));
    let nodes = owned::nodes(bus);
    let is_own = |id: &Identity| u32::from(id.device) << 16 | u32::from(id.vendor) == SERIAL_2X;
    let own = nodes.iter().find(|node| is_own(&node.identity)).map(|node| node.address);
    let mut free: Range<u64> = host.memory.map_or(0..0, Range::from);
    let mut registers = alloc::vec![Range::from(host.ecam), Range::from(smmu.registers)];
    for node in &nodes {
        if !node.identity.is_bridge() && Some(node.address) != own && node.address.bus() == 0 {
            // Without addresses they are given to nobody.
            let _ = place(&bus, node.address, &mut free);
            registers.extend(owned::hypervisors_pages(bus, node.address));
        }
    }
    Some(Found { bus, nodes, smmu, own, registers: owned::merged(registers) })
}

impl Found {
    /// Puts the SMMU into operation: from now on no function reaches memory, unless a guest owns
    /// it. The registers are mapped; this CPU gets the interrupts of functions and SMMU.
    pub(crate) fn start(&self, cpu: &PerCpu) {
        let registers: &'static Mapped = Box::leak(Box::new(Mapped(self.smmu.registers.start)));
        let smmu = match Smmu::start(registers, self.smmu.first_stream) {
            Ok(smmu) => smmu,
            Err(why) => return log::error!("the SMMU is not used: {why}"),
        };
        log::info!("SMMU at {:#x}", self.smmu.registers.start);
        if let Some(intid) = self.smmu.events {
            EVENTS.store(intid, Ordering::Relaxed);
            gic::route_edge(intid, cpu);
        }
        let lines = InterruptLines::new(self.bus, self.own);
        for line in (0..PCI_LINES).filter(|&line| !lines.is_own(line)) {
            if let Some(intid) = self.bus.intid(line) {
                gic::route_masked(intid, cpu);
            }
        }
        let own = self.own.iter().map(|own| DeviceId(own.id())).collect();
        DEVICES.call_once(|| {
            Some(MachineDevices::new(self.bus, self.nodes.clone(), alloc::vec![smmu], own, lines))
        });
    }
}

/// An interrupt has arrived, and was not deactivated yet. False if it is neither of a function that
/// a guest may own nor of the SMMU.
pub(crate) fn on_interrupt(intid: u32) -> bool {
    let Some(devices) = devices() else { return false };
    if intid == EVENTS.load(Ordering::Relaxed) {
        devices.report_events();
        return true;
    }
    devices.routes.deliver(intid)
}

/// Register with the command and, above it, the status.
const COMMAND_STATUS: u16 = 0x04;
/// Its bit that says that the function wants an interrupt by its pin.
const INTERRUPT_STATUS: u32 = 1 << 19;

/// The bus: configuration space in memory.
struct HostBus {
    ecam: Range<u64>,
    /// INTIDs of the lines.
    pins: [Option<u32>; PCI_LINES],
}

impl HostBus {
    fn place(&self, address: Address, register: u16) -> Option<u64> {
        let offset = address.offset(register, self.ecam.end - self.ecam.start)?;
        Some(self.ecam.start + offset)
    }
}

impl ConfigSpace for HostBus {
    fn read(&self, address: Address, register: u16) -> u32 {
        self.place(address, register).map_or(u32::MAX, read)
    }

    fn write(&self, address: Address, register: u16, value: u32) {
        if let Some(place) = self.place(address, register) {
            write(place, value);
        }
    }
}

// SAFETY: `find` lists these registers, and the hypervisor's tables map what it lists as device
// memory.
unsafe impl MappedBus for HostBus {}

impl Gate for HostBus {
    fn intid(&self, line: usize) -> Option<u32> {
        *self.pins.get(line)?
    }

    fn set_open(&self, line: usize, is_open: bool) {
        if let Some(intid) = self.intid(line) {
            gic::set_enabled(intid, is_open);
        }
    }

    fn aim(&self, line: usize, cpu: HardwareId) {
        if let Some(intid) = self.intid(line) {
            gic::aim(intid, cpu);
        }
    }

    fn is_high(&self, function: Address) -> bool {
        self.read(function, COMMAND_STATUS) & INTERRUPT_STATUS != 0
    }
}

/// Registers of an SMMU, mapped.
struct Mapped(u64);

impl Registers for Mapped {
    fn read(&self, register: Register) -> u32 {
        // SAFETY: both pages of the SMMU are mapped as device memory, and the driver names
        // registers in them, which are aligned.
        let value = unsafe { ((self.0 + u64::from(register.offset)) as *const u32).read_volatile() };
        dsb_ld();
        value
    }

    fn write(&self, register: Register, value: u64) {
        let address = self.0 + u64::from(register.offset);
        dsb_st();
        // SAFETY: as for `read`.
        unsafe {
            match register.is_wide {
                true => (address as *mut u64).write_volatile(value),
                false => (address as *mut u32).write_volatile(value as u32),
            }
        }
    }
}
