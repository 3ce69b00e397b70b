//! The ACPI tables that describe the platform to the guest (ACPI 6.5, hardware-reduced).
//!
//! RSDP, XSDT, FADT, MADT and a DSDT with soft-off, the PCI bus and the two serial ports. There is
//! no FACS, no SCI, no fixed power management hardware; the boot architecture flags say that the
//! PC's legacy devices are absent.

use super::cmos;
use super::ioapic;
use super::lapic::APIC_BASE_ADDRESS;
use super::pci;
use super::pit;
use super::platform::SerialPort;
use super::power;
use acpi_tables::aml::{
    AddressSpace as Window, AddressSpaceCacheable, Device, EISAName, IO, Interrupt, Name, Package,
    ResourceTemplate,
};
use acpi_tables::fadt::{FADTBuilder, Flags, PmProfile};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, AmlSink, aml_as_bytes};
use alloc::vec::Vec;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{Immutable, IntoBytes};

const OEM_ID: [u8; 6] = *b"QUELL ";
const OEM_TABLE_ID: [u8; 8] = *b"QUELLVM ";
const OEM_REVISION: u32 = 1;
/// Revision 2 makes AML's integers 64 bits wide.
const DSDT_REVISION: u8 = 2;
const TABLE_HEADER_LEN: u32 = 36;
/// Required alignment of the RSDP; the other tables have it too.
const ALIGN: usize = 16;

/// IA-PC boot architecture flags (ACPI 6.5 table 5.11): no VGA. Absent flags mean no legacy devices
/// and no keyboard controller.
const BOOT_ARCH: u16 = 1 << 2;
/// The flag for no MSI: where no device on the PCI bus interrupts.
const NO_MSI: u16 = 1 << 3;

/// The MADT has local APIC entries for ids below this, and x2APIC entries for the others.
const X2APIC_ID_MIN: u32 = 255;

/// The tables, ready to be copied into guest memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    /// Guest physical address of the first byte.
    pub base: u64,
    /// The tables with their padding.
    pub bytes: Vec<u8>,
    /// Guest physical address of the RSDP.
    pub rsdp: u64,
}

/// Builds the tables for the vCPUs with these APIC ids, to be placed at `base` (aligned to 16, and
/// low enough for the tables to end below 2^64). With `has_msi` devices on the PCI bus interrupt.
/// 255 vCPUs take less than 8 KiB.
#[must_use]
pub fn build(apic_ids: &[u32], base: u64, has_msi: bool) -> Tables {
    let mut area = Area { base, bytes: Vec::new() };
    let rsdp = area.add(&Rsdp::new(OEM_ID, 0));
    let dsdt = area.add(&dsdt());
    let tables = [area.add(&fadt(dsdt, has_msi)), area.add(&madt(apic_ids))];
    let mut xsdt = XSDT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    tables.into_iter().for_each(|table| xsdt.add_entry(table));
    let xsdt = area.add(&xsdt);

    // The root pointer is first, to be found at the base, and is built last.
    let mut root = Vec::new();
    Rsdp::new(OEM_ID, xsdt).to_aml_bytes(&mut root);
    area.bytes[..root.len()].copy_from_slice(&root);
    Tables { base, bytes: area.bytes, rsdp }
}

struct Area {
    base: u64,
    bytes: Vec<u8>,
}

impl Area {
    /// Appends a table; returns its guest physical address.
    fn add(&mut self, table: &dyn Aml) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), 0);
        let address = self.base + self.bytes.len() as u64;
        table.to_aml_bytes(&mut self.bytes);
        address
    }
}

fn fadt(dsdt: u64, has_msi: bool) -> impl Aml {
    let port = |port: u16| GAS::new(AddressSpace::SystemIo, 8, 0, AccessSize::ByteAccess, u64::from(port));
    let mut fadt = FADTBuilder::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION)
        .dsdt_64(dsdt)
        .preferred_pm_profile(PmProfile::EnterpriseServer)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::Wbinvd)
        .flag(Flags::ResetRegSup)
        .flag(Flags::Headless)
        // There is neither a button nor a clock alarm in fixed hardware.
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton)
        .flag(Flags::FixRtc)
        // The I/O APIC's eight logical bits reach the first cluster only.
        .flag(Flags::ForceApicPhysicalDestinationMode);
    fadt.century = cmos::CENTURY;
    fadt.iapc_boot_arch = U16::new(BOOT_ARCH | if has_msi { 0 } else { NO_MSI });
    fadt.reset_reg = port(power::RESET);
    fadt.reset_value = power::RESET_VALUE;
    fadt.sleep_control_reg = port(power::SLEEP_CONTROL);
    fadt.sleep_status_reg = port(power::SLEEP_STATUS);
    fadt.finalize()
}

/// Processor local x2APIC (ACPI 6.5 section 5.2.12.12), which the library lacks.
#[repr(C, packed)]
#[derive(Clone, Copy, IntoBytes, Immutable)]
struct LocalX2Apic {
    kind: u8,
    length: u8,
    reserved: U16,
    x2apic_id: U32,
    flags: U32,
    processor_uid: U32,
}

aml_as_bytes!(LocalX2Apic);

/// UIDs count from 0 in the order of the ids.
fn madt(apic_ids: &[u32]) -> MADT {
    let controller = LocalInterruptController::Address(APIC_BASE_ADDRESS as u32);
    let mut madt = MADT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION, controller);
    for (uid, &id) in apic_ids.iter().enumerate() {
        match u8::try_from(uid) {
            Ok(uid) if id < X2APIC_ID_MIN => {
                madt.add_structure(ProcessorLocalApic::new(uid, id as u8, EnabledStatus::Enabled));
            }
            _ => madt.add_structure(LocalX2Apic {
                kind: 9,
                length: size_of::<LocalX2Apic>() as u8,
                reserved: U16::ZERO,
                x2apic_id: U32::new(id),
                flags: U32::new(EnabledStatus::Enabled as u32),
                processor_uid: U32::new(uid as u32),
            }),
        }
    }
    madt.add_structure(IoApic::new(0, ioapic::BASE as u32, 0));
    madt
}

/// A definition block with its header.
struct Dsdt(Sdt);

impl Aml for Dsdt {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        sink.vec(self.0.as_slice());
    }
}

fn dsdt() -> Dsdt {
    let mut code = Vec::new();
    let (soft_off, none) = (power::SLEEP_TYPE_S5, 0_u8);
    let sleep = Package::new([&soft_off, &none, &none, &none].map(|byte| byte as &dyn Aml).into());
    Name::new("_S5_".into(), &sleep).to_aml_bytes(&mut code);
    pci_root(&mut code);
    for (uid, port) in (1_u8..).zip(SerialPort::ALL) {
        let path = match port {
            SerialPort::Com1 => "_SB_.COM1",
            SerialPort::Com2 => "_SB_.COM2",
        };
        let ports = IO::new(port.base(), port.base(), 1, 8);
        let interrupt = Interrupt::new(true, true, false, false, u32::from(port.pin()));
        let resources = ResourceTemplate::new([&ports as &dyn Aml, &interrupt].into());
        let hid = Name::new("_HID".into(), &EISAName::new("PNP0501"));
        let uid = Name::new("_UID".into(), &uid);
        let crs = Name::new("_CRS".into(), &resources);
        Device::new(path.into(), [&hid as &dyn Aml, &uid, &crs].into()).to_aml_bytes(&mut code);
    }
    let ports = IO::new(cmos::INDEX, cmos::INDEX, 1, 2);
    let resources = ResourceTemplate::new([&ports as &dyn Aml].into());
    let hid = Name::new("_HID".into(), &EISAName::new("PNP0B00"));
    let crs = Name::new("_CRS".into(), &resources);
    Device::new("_SB_.RTC_".into(), [&hid as &dyn Aml, &crs].into()).to_aml_bytes(&mut code);
    let ports = IO::new(*pit::COUNTERS.start(), *pit::COUNTERS.start(), 1, 4);
    let system = IO::new(pit::SYSTEM, pit::SYSTEM, 1, 1);
    // The timer without an interrupt, and the speaker, whose port controls the timer's third
    // counter.
    for (path, id, port) in [("_SB_.TIMR", "PNP0100", ports), ("_SB_.SPKR", "PNP0800", system)] {
        let resources = ResourceTemplate::new([&port as &dyn Aml].into());
        let hid = Name::new("_HID".into(), &EISAName::new(id));
        let crs = Name::new("_CRS".into(), &resources);
        Device::new(path.into(), [&hid as &dyn Aml, &crs].into()).to_aml_bytes(&mut code);
    }
    let mut table = Sdt::new(*b"DSDT", TABLE_HEADER_LEN, DSDT_REVISION, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    table.append_slice(&code);
    Dsdt(table)
}

/// The host bridge: its one bus, its ports, the memory that it decodes. Without interrupts there is
/// no _PRT.
fn pci_root(code: &mut Vec<u8>) {
    let (first, last) = (pci::WINDOW.start as u32, (pci::WINDOW.end - 1) as u32);
    // Software may probe these buses for devices, one by one: there is no other.
    let buses = Window::new_bus_number(u16::from(pci::BUS), u16::from(pci::BUS));
    let ports = IO::new(pci::CONFIG_ADDRESS, pci::CONFIG_ADDRESS, 1, pci::PORT_COUNT);
    let memory = Window::new_memory(AddressSpaceCacheable::NotCacheable, true, first, last, None);
    let resources = ResourceTemplate::new([&buses as &dyn Aml, &ports, &memory].into());
    let hid = Name::new("_HID".into(), &EISAName::new("PNP0A03"));
    let uid = Name::new("_UID".into(), &0_u8);
    let bus = Name::new("_BBN".into(), &pci::BUS);
    let crs = Name::new("_CRS".into(), &resources);
    Device::new("_SB_.PCI0".into(), [&hid as &dyn Aml, &uid, &bus, &crs].into()).to_aml_bytes(code);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loader::pc::layout;
    use acpi::fadt::Fadt;
    use acpi::madt::{Madt, MadtEntry};
    use acpi::{AcpiHandler, AcpiTables, PhysicalMapping};
    use core::ptr::NonNull;

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

    fn cpus(tables: &Tables) -> Vec<(u32, u32)> {
        let parsed = parse(tables);
        let madt = parsed.find_table::<Madt>().unwrap();
        let cpus = madt.get().entries().filter_map(|entry| match entry {
            MadtEntry::LocalApic(cpu) if { cpu.flags } == 1 => {
                Some((u32::from(cpu.apic_id), u32::from(cpu.processor_id)))
            }
            MadtEntry::LocalX2Apic(cpu) if { cpu.flags } == 1 => Some((cpu.x2apic_id, cpu.processor_uid)),
            _ => None,
        });
        cpus.collect()
    }

    #[test]
    fn messages_of_devices_are_announced_where_there_are_any() {
        for has_msi in [false, true] {
            let tables = build(&[0], layout::ACPI.start, has_msi);
            let fadt = tables.bytes.windows(4).position(|word| word == b"FACP").unwrap();
            // IAPC_BOOT_ARCH is at offset 109; bit 3 forbids messages.
            assert_eq!(tables.bytes[fadt + 109] & 8 == 0, has_msi);
        }
    }

    #[test]
    fn every_checksum_is_right() {
        let tables = build(&[0, 1, 2, 7, 300], layout::ACPI.start, false);
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
        let ids: Vec<u32> = (0..255).collect();
        let tables = build(&ids, layout::ACPI.start, false);
        assert!(tables.base + tables.bytes.len() as u64 <= layout::ACPI.end);
        assert!(tables.bytes.len() < 8 << 10);
        assert_eq!(cpus(&tables), ids.iter().map(|&id| (id, id)).collect::<Vec<_>>());
    }

    #[test]
    fn h13_ids_in_any_order_and_from_255_on() {
        let ids = [7, 3, 65, 254, 255, 256, 0x1_0000];
        let tables = build(&ids, layout::ACPI.start, false);
        assert_eq!(cpus(&tables), ids.into_iter().zip(0..).collect::<Vec<_>>());
        let many: Vec<u32> = (0..400).rev().collect();
        assert_eq!(
            cpus(&build(&many, layout::ACPI.start, false)),
            many.into_iter().zip(0..).collect::<Vec<_>>()
        );
    }

    #[test]
    fn ioapic_is_where_the_platform_has_it_and_no_8259() {
        let tables = build(&[0], layout::ACPI.start, false);
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
        let tables = build(&[0], layout::ACPI.start, false);
        let parsed = parse(&tables);
        let mapping = parsed.find_table::<Fadt>().unwrap();
        let fadt = mapping.get();
        let (flags, arch) = (fadt.flags, fadt.iapc_boot_arch);
        assert!(flags.system_is_hw_reduced_acpi() && flags.supports_system_reset_via_fadt());
        assert!(flags.power_button_is_control_method() && flags.no_rtc_wake_in_fixed_register_space());
        assert!(flags.local_xapics_must_use_physical_destination_mode());
        assert!(!arch.motherboard_implements_8042() && !arch.legacy_devices_are_accessible());
        assert!(
            arch.dont_probe_vga() && !arch.use_time_and_alarm_namespace_for_rtc() && arch.dont_enable_msi()
        );
        assert_eq!(fadt.reset_register().unwrap().address, u64::from(power::RESET));
        assert_eq!(fadt.reset_value, power::RESET_VALUE);
        let control = fadt.sleep_control_register().unwrap().unwrap();
        assert_eq!(control.address, u64::from(power::SLEEP_CONTROL));
        let status = fadt.sleep_status_register().unwrap().unwrap();
        assert_eq!(status.address, u64::from(power::SLEEP_STATUS));
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
        for pin in [4, 3] {
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
}
