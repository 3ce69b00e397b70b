//! What the firmware's ACPI tables say about the machine.

use core::ptr::NonNull;

use acpi::fadt::Fadt;
use acpi::madt::{Madt, MadtEntry};
use acpi::{AcpiHandler, AcpiTables, PhysicalMapping};
use arrayvec::ArrayVec;

use crate::vm::percpu::MAX_CPUS;

/// The machine as far as it matters to us.
pub(crate) struct Machine {
    /// APIC ids of the CPUs that may be used, in the firmware's order.
    pub(crate) apic_ids: ArrayVec<u32, MAX_CPUS>,
    /// Register page of the I/O APIC that takes interrupt 0 upwards.
    pub(crate) io_apic: Option<u64>,
    /// Register pages of all I/O APICs.
    pub(crate) io_apics: ArrayVec<u64, MAX_IO_APICS>,
    /// Where ISA interrupt 4 (COM1) arrives.
    pub(crate) serial_pin: u32,
    /// Where ISA interrupt 3 (COM2 and COM4) arrives.
    pub(crate) control_pin: u32,
    /// I/O port of the power management timer.
    pub(crate) pm_timer: u16,
}

/// Most I/O APICs that are put to rest.
const MAX_IO_APICS: usize = 32;

/// Memory is mapped one to one while the tables are read.
#[derive(Clone)]
struct Identity;

impl AcpiHandler for Identity {
    unsafe fn map_physical_region<T>(&self, address: usize, size: usize) -> PhysicalMapping<Self, T> {
        let start = NonNull::new(address as *mut T).expect("ACPI tables are not at address 0");
        // SAFETY: the boot tables map everything below 4 GiB one to one.
        unsafe { PhysicalMapping::new(address, start, size, size, Self) }
    }

    fn unmap_physical_region<T>(_: &PhysicalMapping<Self, T>) {}
}

/// Local APIC flags: the CPU is enabled.
const CPU_ENABLED: u32 = 1;

/// Reads the tables that the RSDP at `rsdp` leads to.
///
/// # Safety
///
/// The boot page tables are active; `rsdp` is what the boot protocol gave, or 0.
pub(crate) unsafe fn read(rsdp: u64) -> Result<Machine, &'static str> {
    // SAFETY: the caller vouches for the address; the tables' checksums are verified.
    let tables = unsafe {
        match rsdp {
            0 => AcpiTables::search_for_rsdp_bios(Identity),
            _ => AcpiTables::from_rsdp(Identity, rsdp as usize),
        }
    };
    let tables = tables.map_err(|_| "there are no valid ACPI tables")?;
    let madt = tables.find_table::<Madt>().map_err(|_| "ACPI has no MADT, the list of CPUs")?;
    let fadt = tables.find_table::<Fadt>().map_err(|_| "ACPI has no FADT")?;
    let timer = fadt.pm_timer_block().ok().flatten().ok_or("ACPI has no power management timer")?;
    let mut machine = Machine {
        apic_ids: ArrayVec::new(),
        io_apic: None,
        io_apics: ArrayVec::new(),
        serial_pin: 4,
        control_pin: 3,
        pm_timer: timer.address as u16,
    };
    for entry in madt.get().entries() {
        match entry {
            MadtEntry::LocalApic(cpu) if cpu.flags & CPU_ENABLED != 0 => {
                add_cpu(&mut machine, cpu.apic_id.into());
            }
            MadtEntry::LocalX2Apic(cpu) if cpu.flags & CPU_ENABLED != 0 => {
                add_cpu(&mut machine, cpu.x2apic_id);
            }
            MadtEntry::IoApic(io) => {
                let base = io.io_apic_address.into();
                if io.global_system_interrupt_base == 0 {
                    machine.io_apic = Some(base);
                }
                if machine.io_apics.try_push(base).is_err() {
                    log::warn!("more than {MAX_IO_APICS} I/O APICs; the one at {base:#x} stays as it is");
                }
            }
            MadtEntry::InterruptSourceOverride(isa) if isa.irq == 4 => {
                machine.serial_pin = isa.global_system_interrupt;
            }
            MadtEntry::InterruptSourceOverride(isa) if isa.irq == 3 => {
                machine.control_pin = isa.global_system_interrupt;
            }
            _ => {}
        }
    }
    Ok(machine)
}

fn add_cpu(machine: &mut Machine, apic_id: u32) {
    if !machine.apic_ids.contains(&apic_id) && machine.apic_ids.try_push(apic_id).is_err() {
        log::warn!("more than {MAX_CPUS} CPUs; the one with APIC id {apic_id} stays parked");
    }
}
