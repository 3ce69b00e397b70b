//! The address of ACPI's root pointer as UEFI firmware provides it.
//!
//! Source: UEFI Specification 2.10, sections 4.3 "EFI System Table" and 4.6 "EFI Configuration
//! Table & Properties Table".

use uefi_raw::table::configuration::ConfigurationTable;
use uefi_raw::table::system::SystemTable;
use uefi_raw::{Guid, guid};

const ACPI_2: Guid = guid!("8868e871-e4f1-11d3-bc22-0080c73c8881");
const ACPI_1: Guid = guid!("eb9d2d30-2d88-11d3-9a16-0090273fc14d");

/// The most entries of the configuration table that are examined.
const ENTRIES_MAX: usize = 256;
/// Addresses below this are mapped.
const MAPPED: u64 = 1 << 32;

/// ACPI's root pointer from the system table at `address`, the newer one if there are two; 0 if the
/// firmware names none, or none below 4 GiB.
///
/// # Safety
///
/// `address` is a loader's value for the system table of 64-bit firmware, and memory below 4 GiB is
/// mapped one to one.
pub(super) unsafe fn rsdp(address: u64) -> u64 {
    let is_mapped = |address: u64, bytes: usize| {
        address != 0 && address.is_multiple_of(8) && address.saturating_add(bytes as u64) <= MAPPED
    };
    if !is_mapped(address, size_of::<SystemTable>()) {
        return 0;
    }
    // SAFETY: the caller's promise; it is mapped and aligned, and any bytes are a valid table.
    let system = unsafe { &*(address as usize as *const SystemTable) };
    let count = system.number_of_configuration_table_entries.min(ENTRIES_MAX);
    let table = system.configuration_table;
    let is_table = system.header.signature == SystemTable::SIGNATURE;
    if !is_table || !is_mapped(table.addr() as u64, count * size_of::<ConfigurationTable>()) {
        return 0;
    }
    // SAFETY: the firmware's table has that many entries; it is mapped and aligned, and nothing
    // writes to it any more.
    let entries = unsafe { core::slice::from_raw_parts(table.cast_const(), count) };
    let named = |guid| entries.iter().find(|entry| entry.vendor_guid == guid);
    let pointer = named(ACPI_2).or_else(|| named(ACPI_1)).map_or(0, |entry| entry.vendor_table.addr() as u64);
    if pointer < MAPPED { pointer } else { 0 }
}
