//! The firmware's ACPI tables: processors, the power management timer, the register that switches
//! the machine off, PCI's configuration space, IOMMUs.

use crate::HardwareId;
use core::ops::Range;
use core::ptr::NonNull;

use acpi::fadt::Fadt;
use acpi::madt::{Madt, MadtEntry};
use acpi::mcfg::Mcfg;
use acpi::sdt::{SdtHeader, Signature};
use acpi::{AcpiHandler, AcpiTable, AcpiTables, PhysicalMapping, address::AddressSpace};
use arrayvec::ArrayVec;

use super::clock;
use super::power::{self, Switch};
use crate::processors::MAX_PROCESSORS;
use crate::sleep::sleep_type_s5;

/// The contents of the tables.
pub struct FirmwareTables {
    /// APIC ids of the usable processors, in the firmware's order, without duplicates.
    pub apic_ids: ArrayVec<HardwareId, MAX_PROCESSORS>,
    /// Processors for which there was no room.
    pub left_out: usize,
    /// Register page of the I/O APIC that takes interrupt 0 upwards, and its number.
    pub io_apic: Option<(u64, u8)>,
    /// The pin of each ISA interrupt, counted over all I/O APICs.
    pub isa_pins: [u32; 16],
    /// I/O port of the power management timer.
    pub pm_timer: Option<u16>,
    /// PCI's configuration space in memory, of segment 0 from bus 0 on.
    pub ecam: Option<Ecam>,
    /// Where the table of IOMMUs by AMD (IVRS) is.
    pub ivrs: Option<Range<u64>>,
    /// Where that of Intel's (DMAR) is.
    pub dmar: Option<Range<u64>>,
}

/// Configuration space in memory: 4 KiB for each function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ecam {
    /// Physical address of that of function 00:00.0.
    pub base: u64,
    /// Number of buses.
    pub buses: u16,
}

impl Ecam {
    /// Its addresses.
    pub const fn range(&self) -> Range<u64> {
        self.base..self.base + ((self.buses as u64) << 20)
    }
}

/// The table of IOMMUs by AMD.
#[repr(transparent)]
struct Ivrs(SdtHeader);

/// That of Intel's.
#[repr(transparent)]
struct Dmar(SdtHeader);

// SAFETY: each table begins with the header, and no more is read as this type.
unsafe impl AcpiTable for Ivrs {
    const SIGNATURE: Signature = Signature::IVRS;

    fn header(&self) -> &SdtHeader {
        &self.0
    }
}

// SAFETY: as above.
unsafe impl AcpiTable for Dmar {
    const SIGNATURE: Signature = Signature::DMAR;

    fn header(&self) -> &SdtHeader {
        &self.0
    }
}

/// Where a table is.
fn place<T: AcpiTable>(tables: &AcpiTables<Identity>) -> Option<Range<u64>> {
    let table = tables.find_table::<T>().ok()?;
    let start = table.physical_start() as u64;
    Some(start..start + u64::from(table.get().header().length))
}

/// Memory is mapped one to one.
#[derive(Clone)]
struct Identity;

impl AcpiHandler for Identity {
    unsafe fn map_physical_region<T>(&self, address: usize, size: usize) -> PhysicalMapping<Self, T> {
        let start = NonNull::new(address as *mut T).expect("no ACPI table is at address 0");
        // SAFETY: everything below 4 GiB is mapped one to one, as the callers of `read` and
        // `switch` promise.
        unsafe { PhysicalMapping::new(address, start, size, size, Self) }
    }

    fn unmap_physical_region<T>(_: &PhysicalMapping<Self, T>) {}
}

/// Flags of a processor's entry: it is enabled.
const ENABLED: u32 = 1;

/// Finds the tables by the root pointer at `rsdp`; if it is 0, searches for the root pointer.
///
/// # Safety
///
/// As [`read`].
unsafe fn tables(rsdp: u64) -> Result<AcpiTables<Identity>, &'static str> {
    // SAFETY: the caller's promise; signatures and checksums are checked.
    let tables = unsafe {
        match rsdp {
            0 => AcpiTables::search_for_rsdp_bios(Identity),
            _ => AcpiTables::from_rsdp(Identity, rsdp as usize),
        }
    };
    tables.map_err(|_| "there are no valid ACPI tables")
}

/// Reads the tables that the root pointer at `rsdp` leads to, and masks the pins of the I/O APICs,
/// whose interrupts are not used. If `rsdp` is 0, searches for the root pointer.
///
/// # Errors
///
/// There are no tables, or no list of processors among them.
///
/// # Safety
///
/// `rsdp` is the loader's value, or 0; everything below 4 GiB is mapped one to one.
pub unsafe fn read(rsdp: u64) -> Result<FirmwareTables, &'static str> {
    // SAFETY: the caller's promise.
    let tables = unsafe { tables(rsdp) }?;
    let madt = tables.find_table::<Madt>().map_err(|_| "ACPI has no list of processors")?;
    let mut machine = FirmwareTables {
        apic_ids: ArrayVec::new(),
        left_out: 0,
        io_apic: None,
        isa_pins: core::array::from_fn(|irq| irq as u32),
        pm_timer: None,
        ecam: None,
        ivrs: place::<Ivrs>(&tables),
        dmar: place::<Dmar>(&tables),
    };
    for entry in madt.get().entries() {
        let id = match entry {
            MadtEntry::IoApic(io) => {
                let base = u64::from(io.io_apic_address);
                // SAFETY: ACPI says that it is there, and its page is mapped one to one; the memory
                // type ranges make it uncached.
                pic::mask_pins(&mut unsafe { pic::Mapped::new(base) });
                if io.global_system_interrupt_base == 0 {
                    machine.io_apic = Some((base, io.io_apic_id));
                }
                continue;
            }
            MadtEntry::InterruptSourceOverride(isa) => {
                if let Some(pin) = machine.isa_pins.get_mut(usize::from(isa.irq)) {
                    *pin = isa.global_system_interrupt;
                }
                continue;
            }
            MadtEntry::LocalApic(cpu) if cpu.flags & ENABLED != 0 => u32::from(cpu.apic_id),
            MadtEntry::LocalX2Apic(cpu) if cpu.flags & ENABLED != 0 => cpu.x2apic_id,
            _ => continue,
        };
        let id = HardwareId::from(id);
        if !machine.apic_ids.contains(&id) && machine.apic_ids.try_push(id).is_err() {
            machine.left_out += 1;
        }
    }
    if let Ok(fadt) = tables.find_table::<Fadt>() {
        let timer = fadt.pm_timer_block().ok().flatten();
        machine.pm_timer = timer.filter(|timer| timer.address_space == AddressSpace::SystemIo).and_then(port);
    }
    if let Ok(mcfg) = tables.find_table::<Mcfg>() {
        let first = mcfg.entries().iter().find(|entry| {
            let (segment, bus) = (entry.pci_segment_group, entry.bus_number_start);
            segment == 0 && bus == 0
        });
        machine.ecam =
            first.map(|entry| Ecam { base: entry.base_address, buses: u16::from(entry.bus_number_end) + 1 });
    }
    Ok(machine)
}

/// The same for a program, which then can be switched off, and whose clock has its rate: `hz` if
/// that is known, or by CPUID, or by the power management timer.
///
/// # Errors
///
/// As [`read`].
///
/// # Safety
///
/// As [`read`].
pub unsafe fn prepare(rsdp: u64, hz: Option<u64>) -> Result<FirmwareTables, &'static str> {
    // SAFETY: the caller's promise.
    let (tables, switch) = unsafe { (read(rsdp)?, switch(rsdp)) };
    power::set_switch(switch);
    let by_timer = || tables.pm_timer.and_then(clock::hz_by_pm_timer);
    if let Some(hz) = hz.or_else(clock::hz_by_cpuid).or_else(by_timer) {
        clock::set_hz(hz);
    }
    Ok(tables)
}

fn port(register: acpi::address::GenericAddress) -> Option<u16> {
    u16::try_from(register.address).ok().filter(|port| *port != 0)
}

/// The registers that take the sleep type of soft-off, which the DSDT names. Separate from
/// [`read`]: the hypervisor does not read the DSDT.
///
/// # Safety
///
/// As [`read`].
unsafe fn switch(rsdp: u64) -> Option<Switch> {
    // SAFETY: the caller's promise.
    let tables = unsafe { tables(rsdp) }.ok()?;
    let fadt = tables.find_table::<Fadt>().ok()?;
    let dsdt = tables.dsdt().ok()?;
    // SAFETY: the table's checksum has been verified, and the caller promises that it is mapped.
    let code = unsafe { core::slice::from_raw_parts(dsdt.address as *const u8, dsdt.length as usize) };
    let flags = fadt.flags;
    if flags.system_is_hw_reduced_acpi() {
        let control = port(fadt.sleep_control_register().ok().flatten()?)?;
        return Some(Switch::sleep_control(control, sleep_type_s5(code)?));
    }
    let control = port(fadt.pm1a_control_block().ok()?)?;
    Some(Switch::pm1(control, sleep_type_s5(code)?))
}
