//! The machine's PCI bus and its IOMMUs.

use alloc::boxed::Box;
use alloc::vec::Vec;
use baremetal::HardwareId;
use baremetal::x86_64::firmware::{Ecam, FirmwareTables};
use baremetal::x86_64::pci::ConfigSpace as Ports;
use core::ops::Range;
use iommu::DeviceId;
use iommu::amd::ivrs::{firmware_memory, units};
use pci::physical::{Capabilities, Node};
use pci::{Address, ConfigSpace};
use spin::{Mutex, Once};

use crate::image::registers::MappedBus;
use crate::iommu::amd_vi::{Iommu, Registers};
use crate::iommu::messages::MachineDevices;
use crate::iommu::routes::Routes;
use crate::owned;
use crate::x86::vectors;

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
    /// A copy of the table of IOMMUs.
    ivrs: Vec<u8>,
    /// Registers that must be mapped.
    pub(crate) registers: Vec<Range<u64>>,
}

/// Looks for IOMMUs, and for the registers of functions behind them. `None` without an IOMMU.
///
/// # Safety
///
/// Everything below 4 GiB is mapped one to one, and nobody else uses the bus.
pub(crate) unsafe fn find(firmware: &FirmwareTables) -> Option<Found> {
    let table = firmware.ivrs.clone()?;
    let len = (table.end - table.start) as usize;
    // SAFETY: firmware has put the table there, below 4 GiB; the caller vouches for the mapping.
    let ivrs = unsafe { core::slice::from_raw_parts(table.start as *const u8, len) }.to_vec();
    // Configuration space below 4 GiB is mapped; elsewhere the ports are used.
    let ecam = firmware.ecam.filter(|ecam| ecam.range().end <= 1 << 32);
    let bus: &'static HostBus = Box::leak(Box::new(HostBus { ecam, ports: Mutex::new(()) }));
    let mut registers: Vec<Range<u64>> = ecam.iter().map(Ecam::range).collect();
    registers.extend(units(&ivrs).map(|unit| unit.registers..unit.registers + REGISTERS_LEN));
    let own: Vec<DeviceId> = units(&ivrs).map(|unit| unit.device).collect();
    let nodes = owned::nodes(bus);
    for node in &nodes {
        if !node.identity.is_bridge() && !own.contains(&DeviceId(node.address.id())) {
            registers.extend(owned::hypervisors_pages(bus, node.address));
        }
    }
    Some(Found { bus, nodes, ivrs, registers: owned::merged(registers) })
}

impl Found {
    /// Puts the IOMMUs into operation: from now on no function reaches memory, unless a guest owns
    /// it. The registers are mapped.
    pub(crate) fn start(&self, cpu: HardwareId) {
        let buses = owned::buses(&self.nodes);
        let mut iommus = Vec::new();
        let mut own = Vec::new();
        for unit in units(&self.ivrs) {
            let registers: &'static Mapped = Box::leak(Box::new(Mapped(unit.registers)));
            match Iommu::start(registers, &unit, buses) {
                Ok(iommu) => {
                    log::info!("IOMMU {} at {:#x}", unit.device, unit.registers);
                    self.send_events(Address::from_id(unit.device.0), cpu);
                    iommus.push(iommu);
                    own.push(unit.device);
                }
                Err(stuck) => log::error!("IOMMU {} is not used: {stuck}", unit.device),
            }
        }
        DEVICES.call_once(|| {
            (!iommus.is_empty()).then(|| {
                let all = MachineDevices::new(self.bus, self.nodes.clone(), iommus, own, Routes::default());
                all.without(firmware_memory(&self.ivrs).collect())
            })
        });
    }

    /// Lets an IOMMU interrupt a CPU for its events, by MSI. Its own interrupts are not remapped.
    fn send_events(&self, iommu: Address, cpu: HardwareId) {
        let Some(cpu) = vectors::destination(cpu) else {
            return log::error!("IOMMU {iommu} reports nothing: the boot CPU has APIC id {cpu}");
        };
        if let Some(msi) = Capabilities::read(&self.bus, iommu).msi {
            msi.send(&self.bus, iommu, Some(vectors::message(cpu, vectors::IOMMU)));
        }
    }
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
