//! The machine's PCI bus and its IOMMUs.

use alloc::boxed::Box;
use alloc::vec::Vec;
use baremetal::x86_64::firmware::{Ecam, FirmwareTables};
use baremetal::x86_64::pci::ConfigSpace as Ports;
use baremetal::{HardwareId, encodings};
use core::ops::Range;
use iommu::DeviceId;
use iommu::amd::ivrs::{firmware_memory, units};
use iommu::vtd::dmar::{Behind, Dmar};
use iommu::vtd::interrupt::LocalApics;
use pci::physical::{Capabilities, Node};
use pci::{Address, ConfigSpace, Message};
use spin::{Mutex, Once};

use super::{apic, svm};
use crate::arch::Local;
use crate::image::registers::MappedBus;
use crate::iommu::messages::MachineDevices;
use crate::iommu::remapping::Iommu;
use crate::iommu::routes::Routes;
use crate::iommu::vtd::HalfRegisters;
use crate::iommu::{Registers, amd_vi, vtd};
use crate::owned;
use crate::x86::{cpuid, vectors};

/// Length of an IOMMU's registers, as far as the driver uses them.
const REGISTERS_LEN: u64 = 0x4000;

/// The functions that guests may own; `None` on a machine without IOMMU.
static DEVICES: Once<Option<MachineDevices>> = Once::new();

/// The same, once they are known.
pub(crate) fn devices() -> Option<&'static MachineDevices> {
    DEVICES.get()?.as_ref()
}

/// What was found before the hypervisor's own tables were active.
pub(crate) struct Found {
    bus: &'static HostBus,
    nodes: Vec<Node>,
    table: Table,
    /// Registers that must be mapped.
    pub(crate) registers: Vec<Range<u64>>,
}

/// The firmware's table of IOMMUs, copied: AMD's or Intel's.
enum Table {
    Ivrs(Vec<u8>),
    Dmar(Vec<u8>),
}

/// Looks for IOMMUs, and for the registers of functions behind them. `None` without an IOMMU.
///
/// An IOMMU of the other vendor is none: it does not walk the tables that guests have here.
///
/// # Safety
///
/// Everything below 4 GiB is mapped one to one, and nobody else uses the bus.
pub(crate) unsafe fn find(firmware: &FirmwareTables) -> Option<Found> {
    let is_amd = svm::features::is_there();
    let place = if is_amd { firmware.ivrs.clone() } else { firmware.dmar.clone() }?;
    let len = (place.end - place.start) as usize;
    // SAFETY: firmware has put the table there, below 4 GiB; the caller vouches for the mapping.
    let table = unsafe { core::slice::from_raw_parts(place.start as *const u8, len) }.to_vec();
    let table = if is_amd { Table::Ivrs(table) } else { Table::Dmar(table) };
    // Configuration space below 4 GiB is mapped; elsewhere the ports are used.
    let ecam = firmware.ecam.filter(|ecam| ecam.range().end <= 1 << 32);
    let bus: &'static HostBus = Box::leak(Box::new(HostBus { ecam, ports: Mutex::new(()) }));
    let mut registers: Vec<Range<u64>> = ecam.iter().map(Ecam::range).collect();
    let own = table.own();
    let nodes = owned::nodes(bus);
    registers.extend(table.registers(&nodes));
    for node in &nodes {
        if !node.identity.is_bridge() && !own.contains(&DeviceId(node.address.id())) {
            registers.extend(owned::hypervisors_pages(bus, node.address));
        }
    }
    Some(Found { bus, nodes, table, registers: owned::merged(registers) })
}

/// The buses behind a bridge.
fn behind(nodes: &[Node], bridge: DeviceId) -> Option<Behind> {
    let node = nodes.iter().find(|node| node.address.id() == bridge.0)?;
    node.buses.map(|buses| Behind { first: buses.secondary, last: buses.subordinate })
}

impl Table {
    /// The IOMMUs' own functions. VT-d's have none.
    fn own(&self) -> Vec<DeviceId> {
        match self {
            Self::Ivrs(table) => units(table).map(|unit| unit.device).collect(),
            Self::Dmar(_) => Vec::new(),
        }
    }

    /// Where the IOMMUs' registers are.
    fn registers(&self, nodes: &[Node]) -> Vec<Range<u64>> {
        match self {
            Self::Ivrs(table) => {
                units(table).map(|unit| unit.registers..unit.registers + REGISTERS_LEN).collect()
            }
            Self::Dmar(table) => {
                let bridges = |bridge| behind(nodes, bridge);
                let units = Dmar::new(table, &bridges).units();
                units.map(|unit| unit.registers..unit.registers + vtd::REGISTERS_LEN).collect()
            }
        }
    }
}

impl Found {
    /// Puts the IOMMUs into operation: from now on no function reaches memory, unless a guest owns
    /// it. The registers are mapped.
    pub(crate) fn start(&self, cpu: HardwareId) {
        let buses = owned::buses(&self.nodes);
        let bridges = |bridge| behind(&self.nodes, bridge);
        let (iommus, own, firmwares) = match &self.table {
            Table::Ivrs(table) => {
                let (iommus, own) = self.start_amd(table, buses, cpu);
                (iommus, own, firmware_memory(table).collect())
            }
            Table::Dmar(table) => {
                let dmar = Dmar::new(table, &bridges);
                (start_intel(dmar, buses, cpu), Vec::new(), dmar.firmware_memory().collect())
            }
        };
        DEVICES.call_once(|| {
            (!iommus.is_empty()).then(|| {
                let all = MachineDevices::new(self.bus, self.nodes.clone(), iommus, own, Routes::default());
                all.without(firmwares)
            })
        });
    }

    fn start_amd(&self, table: &[u8], buses: u16, cpu: HardwareId) -> (Vec<Iommu>, Vec<DeviceId>) {
        let (mut iommus, mut own) = (Vec::new(), Vec::new());
        for unit in units(table) {
            let registers: &'static Mapped = Box::leak(Box::new(Mapped(unit.registers)));
            match amd_vi::Iommu::start(registers, &unit, buses) {
                Ok(iommu) => {
                    log::info!("IOMMU {} at {:#x}", unit.device, unit.registers);
                    self.send_events(Address::from_id(unit.device.0), cpu);
                    iommus.push(Iommu::AmdVi(iommu));
                    own.push(unit.device);
                }
                Err(stuck) => log::error!("IOMMU {} is not used: {stuck}", unit.device),
            }
        }
        (iommus, own)
    }

    /// Lets an IOMMU interrupt a CPU for its events, by MSI. Its own interrupts are not remapped.
    fn send_events(&self, iommu: Address, cpu: HardwareId) {
        if let Some((msi, message)) = Capabilities::read(&self.bus, iommu).msi.zip(events(cpu)) {
            msi.send(&self.bus, iommu, Some(message));
        }
    }
}

/// The message by which IOMMUs interrupt a CPU for their events.
fn events(cpu: HardwareId) -> Option<Message> {
    let to = vectors::destination(cpu);
    if to.is_none() {
        log::error!("IOMMUs report nothing: the boot CPU has APIC id {cpu}");
    }
    to.map(|to| vectors::message(to, vectors::IOMMU))
}

fn start_intel(dmar: Dmar<'_>, buses: u16, cpu: HardwareId) -> Vec<Iommu> {
    let mut iommus = Vec::new();
    if !dmar.remaps_interrupts() {
        log::error!("IOMMUs are not used: firmware does not let interrupts be remapped");
        return iommus;
    }
    let is_emulated = cpuid::host_is_virtual::<Local>();
    let apics = if apic::is_x2apic() { LocalApics::X2apic } else { LocalApics::Xapic };
    for unit in dmar.units() {
        let (at, registers): (_, &'static Mapped) =
            (unit.registers, Box::leak(Box::new(Mapped(unit.registers))));
        match vtd::Iommu::start(registers, unit, buses, apics, is_emulated) {
            Ok(iommu) => {
                log::info!("IOMMU at {at:#x}");
                if let Some(message) = events(cpu) {
                    iommu.send_events(message);
                }
                iommus.push(Iommu::Vtd(iommu));
            }
            Err(why) => log::error!("IOMMU at {at:#x} is not used: {why}"),
        }
    }
    iommus
}

/// What a pin of the machine's I/O APIC with this number is to have, so that it interrupts a CPU.
pub(crate) fn redirection(io_apic: u8, to: u8, vector: u8) -> u64 {
    let remapped = devices().and_then(|devices| {
        devices.iommus().find_map(|iommu| match iommu {
            Iommu::Vtd(iommu) => iommu.route_pin(io_apic, to, vector),
            Iommu::AmdVi(_) => None,
        })
    });
    remapped.unwrap_or(encodings::redirection(to, vector))
}

/// The bus: configuration space in memory, or by ports (PCI Local Bus Specification 3.0,
/// 3.2.2.3.2).
struct HostBus {
    ecam: Option<Ecam>,
    /// Held from the address to the data.
    ports: Mutex<()>,
}

impl HostBus {
    /// Where a register of a function is in memory.
    fn place(&self, address: Address, register: u16) -> Option<*mut u32> {
        let ecam = self.ecam?.range();
        let offset = address.offset(register, ecam.end - ecam.start)?;
        Some((ecam.start + offset) as *mut u32)
    }
}

impl ConfigSpace for HostBus {
    fn read(&self, address: Address, register: u16) -> u32 {
        match self.place(address, register) {
            // SAFETY: configuration space is mapped there, uncached.
            Some(place) => unsafe { place.read_volatile() },
            None if register >= 256 => u32::MAX,
            None => {
                let _held = self.ports.lock();
                Ports::new(address.id()).read(register as u8)
            }
        }
    }

    fn write(&self, address: Address, register: u16, value: u32) {
        match self.place(address, register) {
            // SAFETY: configuration space is mapped there, uncached. What is written concerns a
            // function that the caller has to itself.
            Some(place) => unsafe { place.write_volatile(value) },
            None if register >= 256 => {}
            None => {
                let _held = self.ports.lock();
                Ports::new(address.id()).write(register as u8, value);
            }
        }
    }
}

// SAFETY: `find` lists these registers, and the hypervisor's tables map what it lists, uncached.
unsafe impl MappedBus for HostBus {}

/// Registers of an IOMMU, mapped.
struct Mapped(u64);

impl Registers for Mapped {
    fn read(&self, offset: u64) -> u64 {
        // SAFETY: the IOMMU's registers are mapped, uncached, and the driver names registers of
        // them, which are aligned.
        unsafe { ((self.0 + offset) as *const u64).read_volatile() }
    }

    fn write(&self, offset: u64, value: u64) {
        // SAFETY: as for `read`. Stores are in order, and this one is uncached: the IOMMU finds
        // what was stored before (APM volume 2, 7.4.2).
        unsafe { ((self.0 + offset) as *mut u64).write_volatile(value) };
    }
}

impl HalfRegisters for Mapped {
    fn read_half(&self, offset: u64) -> u32 {
        // SAFETY: as for `read`.
        unsafe { ((self.0 + offset) as *const u32).read_volatile() }
    }

    fn write_half(&self, offset: u64, value: u32) {
        // SAFETY: as for `write`.
        unsafe { ((self.0 + offset) as *mut u32).write_volatile(value) };
    }
}
