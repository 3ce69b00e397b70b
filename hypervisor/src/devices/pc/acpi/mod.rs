//! The ACPI tables that describe the platform to the guest (ACPI 6.5).
//!
//! RSDP, XSDT, FADT, FACS, MADT and a DSDT with soft-off, the PCI bus, the two serial ports, the
//! clock, the sleep button and the generation id. The boot architecture flags say that the PC's
//! legacy devices are absent.

#[cfg(test)]
mod tests;

use super::apic_ids::ApicId;
use super::lapic::APIC_BASE_ADDRESS;
use super::platform::SerialPort;
use super::{cmos, ioapic, pci, pit, power};
use acpi_tables::aml::{
    AddressSpace as Window, AddressSpaceCacheable, Device, EISAName, IO, Interrupt, Method, Name, Notify,
    Package, Path, ResourceTemplate, Scope,
};
use acpi_tables::facs::FACS;
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
/// Required alignment of the FACS; the other tables have it too.
const ALIGN: usize = 64;

/// IA-PC boot architecture flags (ACPI 6.5 table 5.11): no VGA. Absent flags mean no legacy devices
/// and no keyboard controller.
const BOOT_ARCH: u16 = 1 << 2;
/// The flag for no MSI: where no device on the PCI bus interrupts.
const NO_MSI: u16 = 1 << 3;

/// Address of the generation id: reserved, and in no place that kernels search for tables or for
/// adapters' ROMs.
pub const GENERATION: u64 = 0xd_f010;

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

/// Builds the tables for the vCPUs with these APIC ids, to be placed at `base` (aligned to 64, and
/// low enough for the tables to end below 2^64). With `has_msi` devices on the PCI bus interrupt.
/// 255 vCPUs take less than 8 KiB.
pub fn build(apic_ids: &[ApicId], base: u64, has_msi: bool) -> Tables {
    let mut area = Area { base, bytes: Vec::new() };
    let rsdp = area.add(&Rsdp::new(OEM_ID, 0));
    let dsdt = area.add(&dsdt());
    let facs = area.add(&FACS::new());
    let tables = [area.add(&fadt(dsdt, facs, has_msi)), area.add(&madt(apic_ids))];
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

fn fadt(dsdt: u64, facs: u64, has_msi: bool) -> impl Aml {
    let port = |port: u16| GAS::new(AddressSpace::SystemIo, 8, 0, AccessSize::ByteAccess, u64::from(port));
    let mut fadt = FADTBuilder::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION)
        .dsdt_64(dsdt)
        .firmware_ctrl_64(facs)
        .gpe_info(power::GENERAL.into(), 0, 2, 0, 0)
        .preferred_pm_profile(PmProfile::EnterpriseServer)
        .flag(Flags::Wbinvd)
        .flag(Flags::ProcC1)
        .flag(Flags::ResetRegSup)
        .flag(Flags::Headless)
        // There is no button in fixed hardware. The clock's alarm is there.
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton)
        // The I/O APIC's eight logical bits reach the first cluster only.
        .flag(Flags::ForceApicPhysicalDestinationMode);
    fadt.century = cmos::CENTURY;
    fadt.iapc_boot_arch = U16::new(BOOT_ARCH | if has_msi { 0 } else { NO_MSI });
    fadt.reset_reg = port(power::RESET);
    fadt.reset_value = power::RESET_VALUE;
    fadt.sci_int = U16::new(power::PIN.into());
    (fadt.pm1a_evt_blk, fadt.pm1_evt_len) = (U32::new(power::EVENTS.into()), 4);
    (fadt.pm1a_cnt_blk, fadt.pm1_cnt_len) = (U32::new(power::CONTROL.into()), 2);
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
fn madt(apic_ids: &[ApicId]) -> MADT {
    let controller = LocalInterruptController::Address(APIC_BASE_ADDRESS as u32);
    let mut madt = MADT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION, controller);
    for (uid, &ApicId(id)) in apic_ids.iter().enumerate() {
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
    let clock = IO::new(cmos::INDEX, cmos::INDEX, 1, 2);
    let alarm = Interrupt::new(true, true, false, false, u32::from(cmos::PIN));
    let ports = IO::new(pit::COUNTERS, pit::COUNTERS, 1, 4);
    let system = IO::new(pit::SYSTEM, pit::SYSTEM, 1, 1);
    // The clock; the timer without an interrupt; and the speaker, whose port controls the timer's
    // third counter.
    for (path, id, resources) in [
        ("_SB_.RTC_", "PNP0B00", &[&clock as &dyn Aml, &alarm][..]),
        ("_SB_.TIMR", "PNP0100", &[&ports]),
        ("_SB_.SPKR", "PNP0800", &[&system]),
    ] {
        let resources = ResourceTemplate::new(resources.into());
        let hid = Name::new("_HID".into(), &EISAName::new(id));
        let crs = Name::new("_CRS".into(), &resources);
        Device::new(path.into(), [&hid as &dyn Aml, &crs].into()).to_aml_bytes(&mut code);
    }
    sleep_button(&mut code);
    generation_id(&mut code);
    let mut table = Sdt::new(*b"DSDT", TABLE_HEADER_LEN, DSDT_REVISION, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    table.append_slice(&code);
    Dsdt(table)
}

/// The sleep button, which only wakes: its event says that it has (notification 2, ACPI 6.5
/// section 5.6.6), and not that it was pressed.
fn sleep_button(code: &mut Vec<u8>) {
    let hid = Name::new("_HID".into(), &EISAName::new("PNP0C0E"));
    // The event, and the deepest sleep state from which it wakes: S0, for a kernel that only idles.
    let prw = Name::new("_PRW".into(), &Package::new([&power::BUTTON as &dyn Aml, &0_u8].into()));
    Device::new("_SB_.SLPB".into(), [&hid as &dyn Aml, &prw].into()).to_aml_bytes(code);
    event("_L00", "\\_SB_.SLPB", 2, code);
}

/// The generation id (Microsoft, "Virtual Machine Generation ID"): kernels find the device by its
/// compatible id, and the address as two halves. Its event is edge-triggered: another one during
/// the handler is not lost. That the id has changed is notification 0x80.
fn generation_id(code: &mut Vec<u8>) {
    let name = "VM_Gen_Counter";
    let halves = [GENERATION as u32, (GENERATION >> 32) as u32];
    let hid = Name::new("_HID".into(), &"QUELVGID");
    let cid = Name::new("_CID".into(), &name);
    let ddn = Name::new("_DDN".into(), &name);
    let place =
        Name::new("ADDR".into(), &Package::new(halves.each_ref().map(|half| half as &dyn Aml).into()));
    Device::new("_SB_.VGEN".into(), [&hid as &dyn Aml, &cid, &ddn, &place].into()).to_aml_bytes(code);
    event("_E01", "\\_SB_.VGEN", 0x80, code);
}

/// The method of a general-purpose event, which notifies a device.
fn event(method: &str, device: &str, what: u8, code: &mut Vec<u8>) {
    let device = Path::new(device);
    let notify = Notify::new(&device, &what);
    let handler = Method::new(method.into(), 0, false, [&notify as &dyn Aml].into());
    Scope::new("\\_GPE".into(), [&handler as &dyn Aml].into()).to_aml_bytes(code);
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
