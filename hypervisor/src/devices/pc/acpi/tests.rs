use core::ops::Range;

use super::*;
use acpi::fadt::Fadt;
use acpi::madt::{Madt, MadtEntry};
use acpi::{AcpiHandler, AcpiTables, PhysicalMapping};
use core::ptr::NonNull;

/// Where the loader puts the tables.
const AREA: Range<u64> = 0xe_0000..0xf_0000;

/// Guest memory at the tables' base, for the parser.
#[derive(Clone)]
struct Memory<'a>(&'a Tables);

impl AcpiHandler for Memory<'_> {
    unsafe fn map_physical_region<T>(&self, address: usize, size: usize) -> PhysicalMapping<Self, T> {
        let offset = address - self.0.base as usize;
        let region = &self.0.bytes[offset..offset + size];
        let start = NonNull::from(region).cast();
        // SAFETY: `start` points to `size` bytes that outlive the handler; the parser only
        // reads them.
        unsafe { PhysicalMapping::new(address, start, size, size, self.clone()) }
    }

    fn unmap_physical_region<T>(_: &PhysicalMapping<Self, T>) {}
}

fn parse(tables: &Tables) -> AcpiTables<Memory<'_>> {
    // SAFETY: the handler maps the tables' own bytes, and panics elsewhere.
    unsafe { AcpiTables::from_rsdp(Memory(tables), tables.rsdp as usize) }.unwrap()
}

/// APIC id and UID of each.
fn cpus(tables: &Tables) -> Vec<(ApicId, u32)> {
    let parsed = parse(tables);
    let madt = parsed.find_table::<Madt>().unwrap();
    let cpus = madt.get().entries().filter_map(|entry| match entry {
        MadtEntry::LocalApic(cpu) if { cpu.flags } == 1 => {
            Some((ApicId(cpu.apic_id.into()), u32::from(cpu.processor_id)))
        }
        MadtEntry::LocalX2Apic(cpu) if { cpu.flags } == 1 => Some((ApicId(cpu.x2apic_id), cpu.processor_uid)),
        _ => None,
    });
    cpus.collect()
}

#[test]
fn messages_of_devices_are_announced_where_there_are_any() {
    for has_msi in [false, true] {
        let tables = build(&[ApicId(0)], AREA.start, has_msi);
        let fadt = tables.bytes.windows(4).position(|word| word == b"FACP").unwrap();
        // IAPC_BOOT_ARCH is at offset 109; bit 3 forbids messages.
        assert_eq!(tables.bytes[fadt + 109] & 8 == 0, has_msi);
    }
}

#[test]
fn every_checksum_is_right() {
    let tables = build(&[0, 1, 2, 7, 300].map(ApicId), AREA.start, false);
    let sum = |bytes: &[u8]| bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    let at = |address: u64| &tables.bytes[(address - tables.base) as usize..];
    let u64_at = |bytes: &[u8]| u64::from_le_bytes(*bytes.first_chunk().unwrap());
    let checked = |address: u64| {
        let len = u32::from_le_bytes(*at(address)[4..].first_chunk().unwrap()) as usize;
        assert_eq!(sum(&at(address)[..len]), 0, "table at {address:#x}");
        assert_eq!(address % ALIGN as u64, 0);
        &at(address)[..len]
    };
    let rsdp = at(tables.rsdp);
    assert_eq!(&rsdp[..8], b"RSD PTR ");
    assert_eq!((sum(&rsdp[..20]), sum(&rsdp[..36])), (0, 0));
    let xsdt = checked(u64_at(&rsdp[24..]));
    let entries: Vec<&[u8]> = xsdt[36..].chunks(8).map(|entry| checked(u64_at(entry))).collect();
    assert_eq!(entries.iter().map(|table| &table[..4]).collect::<Vec<_>>(), [b"FACP", b"APIC"]);
    let dsdt = checked(u64_at(&entries[0][140..]));
    assert_eq!(&dsdt[..4], b"DSDT");
    assert_eq!(parse(&tables).dsdt().unwrap().length as usize, dsdt.len() - 36);
}

#[test]
fn all_255_vcpus_are_listed_and_the_tables_fit() {
    let ids: Vec<_> = (0..255).map(ApicId).collect();
    let tables = build(&ids, AREA.start, false);
    assert!(tables.base + tables.bytes.len() as u64 <= AREA.end);
    assert!(tables.bytes.len() < 8 << 10);
    assert_eq!(cpus(&tables), ids.iter().map(|&id| (id, id.0)).collect::<Vec<_>>());
}

#[test]
fn h13_ids_in_any_order_and_from_255_on() {
    let ids = [7, 3, 65, 254, 255, 256, 0x1_0000].map(ApicId);
    let tables = build(&ids, AREA.start, false);
    assert_eq!(cpus(&tables), ids.into_iter().zip(0..).collect::<Vec<_>>());
    let many: Vec<_> = (0..400).rev().map(ApicId).collect();
    assert_eq!(cpus(&build(&many, AREA.start, false)), many.into_iter().zip(0..).collect::<Vec<_>>());
}

#[test]
fn ioapic_is_where_the_platform_has_it_and_no_8259() {
    let tables = build(&[ApicId(0)], AREA.start, false);
    let parsed = parse(&tables);
    let madt = parsed.find_table::<Madt>().unwrap();
    assert!(!madt.get().supports_8259());
    let ioapics = madt.get().entries().filter_map(|entry| match entry {
        MadtEntry::IoApic(ioapic) => Some((ioapic.io_apic_address, ioapic.global_system_interrupt_base)),
        _ => None,
    });
    assert_eq!(ioapics.collect::<Vec<_>>(), [(ioapic::BASE as u32, 0)]);
}

#[test]
fn fadt_denies_legacy_hardware_and_names_the_power_ports() {
    let tables = build(&[ApicId(0)], AREA.start, false);
    let parsed = parse(&tables);
    let mapping = parsed.find_table::<Fadt>().unwrap();
    let fadt = mapping.get();
    let (flags, arch) = (fadt.flags, fadt.iapc_boot_arch);
    assert!(!flags.system_is_hw_reduced_acpi() && flags.supports_system_reset_via_fadt());
    assert!(flags.power_button_is_control_method() && flags.sleep_button_is_control_method());
    assert!(!flags.no_rtc_wake_in_fixed_register_space(), "the alarm wakes");
    assert!(flags.local_xapics_must_use_physical_destination_mode());
    assert!(!arch.motherboard_implements_8042() && !arch.legacy_devices_are_accessible());
    assert!(arch.dont_probe_vga() && !arch.use_time_and_alarm_namespace_for_rtc() && arch.dont_enable_msi());
    assert_eq!(fadt.reset_register().unwrap().address, u64::from(power::RESET));
    assert_eq!(fadt.reset_value, power::RESET_VALUE);
    let block = |register: acpi::address::GenericAddress| (register.address, register.bit_width);
    assert_eq!(block(fadt.pm1a_event_block().unwrap()), (power::EVENTS.into(), 32));
    assert_eq!(block(fadt.pm1a_control_block().unwrap()), (power::CONTROL.into(), 16));
    assert_eq!(block(fadt.gpe0_block().unwrap().unwrap()), (power::GENERAL.into(), 16));
    let facs = fadt.facs_address().unwrap();
    assert_eq!((facs % 64, &tables.bytes[facs - tables.base as usize..][..4]), (0, &b"FACS"[..]));
}

#[test]
fn dsdt_has_soft_off_and_both_serial_ports() {
    let Dsdt(table) = dsdt();
    let has = |bytes: &[u8]| table.as_slice().windows(bytes.len()).any(|window| window == bytes);
    // NameOp, name, PackageOp, length, four elements, BytePrefix 5, three times ZeroOp.
    assert!(
        has(b"\x08_S5_\x12\x07\x04\x0a\x05\x00\x00\x00")
            || has(b"\x08_S5_\x12\x0a\x04\x0a\x05\x0a\x00\x0a\x00\x0a\x00")
    );
    for (port, name) in [(0x3f8_u16, b"COM1"), (0x2f8, b"COM2")] {
        let [low, high] = port.to_le_bytes();
        assert!(has(name));
        assert!(has(&[0x47, 1, low, high, low, high, 1, 8]), "16-bit decoded I/O at {port:#x}");
    }
    for pin in [4, 3, cmos::PIN] {
        assert!(has(&[0x89, 6, 0, 0b0011, 1, pin, 0, 0, 0]), "edge, active high, exclusive, {pin}");
    }
}

#[test]
fn dsdt_has_the_pci_bus_with_what_it_decodes() {
    let Dsdt(table) = dsdt();
    let has = |bytes: &[u8]| table.as_slice().windows(bytes.len()).any(|window| window == bytes);
    // PNP0A03 as an EISA id.
    assert!(has(b"PCI0\x08_HID\x0c\x41\xd0\x0a\x03"));
    assert!(has(b"_BBN\x00"), "it begins with bus 0");
    // Word address space of 13 bytes: bus numbers, fixed; from 0 to 0, no translation, 1.
    assert!(has(&[0x88, 13, 0, 2, 0b1100, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]), "and ends with it");
    assert!(has(&[0x47, 1, 0xf8, 0x0c, 0xf8, 0x0c, 1, 8]), "the configuration ports");
    // Double-word address space of 23 bytes: memory, fixed, writable and not cacheable.
    let window = [0, 0xe000_0000, 0xefff_ffff, 0, 0x1000_0000_u32].map(u32::to_le_bytes).concat();
    assert!(has(&[&[0x87, 23, 0, 0, 0b1100, 1][..], &window].concat()), "the window");
}

#[test]
fn u67_the_sleep_button_wakes_by_its_event() {
    let Dsdt(table) = dsdt();
    let has = |bytes: &[u8]| table.as_slice().windows(bytes.len()).any(|window| window == bytes);
    // PNP0C0E as an EISA id; a package of event 0 and state S0.
    let wake = [&b"SLPB\x08_HID\x0c\x41\xd0\x0c\x0e\x08_PRW\x12"[..], b"\x04\x02\x00\x00"].concat();
    let wide = [&b"SLPB\x08_HID\x0c\x41\xd0\x0c\x0e\x08_PRW\x12"[..], b"\x06\x02\x0a\x00\x0a\x00"].concat();
    assert!(has(&wake) || has(&wide));
    // The method for the level-triggered event 0 notifies the button of a wake.
    assert!(has(b"\\_GPE\x14") && has(b"_L00\x00\x86\\\x2e_SB_SLPB\x0a\x02"));
}

#[test]
fn m11_the_generation_id_is_found_and_its_event_notifies() {
    let Dsdt(table) = dsdt();
    let at = |bytes: &[u8]| table.as_slice().windows(bytes.len()).position(|window| window == bytes);
    for name in ["_HID\x0dQUELVGID\0", "_CID\x0dVM_Gen_Counter\0", "_DDN\x0dVM_Gen_Counter\0"] {
        assert!(at(name.as_bytes()).is_some(), "{name:?}");
    }
    // A package of two elements: a double word, and zero.
    let address = (GENERATION as u32).to_le_bytes();
    let place = [&b"\x08ADDR\x12\x08\x02\x0c"[..], &address, b"\0"].concat();
    let wide = [&b"\x08ADDR\x12\x0c\x02\x0c"[..], &address, b"\x0c\0\0\0\0"].concat();
    assert!(at(&place).or(at(&wide)).is_some());
    assert_eq!(GENERATION % 8, 0);
    // The method for the edge-triggered event 1 notifies the device of 0x80.
    assert!(at(b"_E01\x00\x86\\\x2e_SB_VGEN\x0a\x80").is_some());
    assert_eq!(power::GENERATION, 1);
}
