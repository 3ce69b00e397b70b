//! The VM's devices behind their ports and addresses.
//!
//! Everything else that software may probe for is absent, and the ACPI tables say so: keyboard
//! controller, the PC's legacy interrupt controller, VGA. A port without a device reads as all ones
//! and ignores writes. Wider accesses than a device has (`device_at`) find no device.

#[cfg(test)]
mod tests;

use ::pci::Function;
use alloc::vec::Vec;
use migration::described;

use super::cmos::{self, Cmos};
use super::ioapic::{self, IoApic, Messages};
use super::message::Message;
use super::pci::{self, Pci};
use super::pit::{self, Pit};
use super::power::{self, Power, PowerEvent};
use crate::devices::region::Region;
use crate::devices::uart16550::{self, Uart16550};

/// Addresses that belong to devices. Those of local APICs are also the destination of interrupt
/// messages (APM vol. 2 section 16.3.2).
pub const REGIONS: [Region; 3] = [
    Region { name: "the PCI bus's window", range: pci::WINDOW },
    Region::new("the I/O APIC", ioapic::BASE, ioapic::LEN),
    Region::new("the local APICs", 0xfee0_0000, 1 << 20),
];

/// A serial port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SerialPort {
    /// The guest's console.
    Com1,
    /// The port to which programs in the guest write their reports.
    Com2,
}

impl SerialPort {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Com1, Self::Com2];

    /// The first of its eight ports.
    pub const fn base(self) -> u16 {
        match self {
            Self::Com1 => 0x3f8,
            Self::Com2 => 0x2f8,
        }
    }

    /// Its pin on the I/O APIC.
    pub const fn pin(self) -> u8 {
        match self {
            Self::Com1 => 4,
            Self::Com2 => 3,
        }
    }

    /// The one that a port of either belongs to.
    const fn of(port: u16) -> Self {
        if port >= Self::Com1.base() { Self::Com1 } else { Self::Com2 }
    }
}

/// Width of a port access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PortSize {
    /// One byte.
    Byte,
    /// Two bytes.
    Word,
    /// Four bytes.
    Dword,
}

impl PortSize {
    /// The width with this number of bytes.
    pub const fn from_bytes(bytes: usize) -> Option<Self> {
        match bytes {
            1 => Some(Self::Byte),
            2 => Some(Self::Word),
            4 => Some(Self::Dword),
            _ => None,
        }
    }

    /// The value of a read without a device.
    pub const fn all_ones(self) -> u32 {
        match self {
            Self::Byte => 0xff,
            Self::Word => 0xffff,
            Self::Dword => 0xffff_ffff,
        }
    }
}

/// A port write's effect outside the platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Nothing.
    None,
    /// A serial port transmits a byte.
    Transmit(SerialPort, u8),
    /// The machine must end or restart.
    Power(PowerEvent),
}

/// The effects of a port write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct PlatformEffect {
    /// The effect outside the platform.
    pub output: Output,
    /// An interrupt to deliver.
    pub interrupt: Option<Message>,
}

impl PlatformEffect {
    /// Nothing to do.
    pub const NONE: Self = Self { output: Output::None, interrupt: None };
}

#[derive(Clone, Copy)]
struct PortAccess<'a> {
    port: u16,
    size: PortSize,
    /// Returns nanoseconds since the beginning of 1970. Only clock and interval timer ask.
    wall_ns: &'a dyn Fn() -> u64,
}

/// A device at ports: what accesses do that are not wider than this.
struct PortDevice {
    widest: PortSize,
    read: fn(&mut PcBoard, PortAccess<'_>) -> u32,
    write: fn(&mut PcBoard, PortAccess<'_>, u32) -> PlatformEffect,
}

/// The devices at ports, a row each. A reset makes each of them what it is [by
/// default](PcBoard::default).
const fn device_at(port: u16) -> Option<PortDevice> {
    let (byte, word, dword) = (PortSize::Byte, PortSize::Word, PortSize::Dword);
    Some(match port {
        0x2f8..=0x2ff | 0x3f8..=0x3ff => {
            PortDevice { widest: byte, read: PcBoard::serial_read, write: PcBoard::serial_write }
        }
        cmos::INDEX | cmos::DATA => PortDevice {
            widest: byte,
            read: |board, at| board.cmos.read(at.port, (at.wall_ns)()).into(),
            write: |board, at, value| {
                board.cmos.write(at.port, value as u8, (at.wall_ns)());
                PlatformEffect::NONE
            },
        },
        pit::COUNTERS..=pit::CONTROL | pit::SYSTEM => PortDevice {
            widest: byte,
            read: |board, at| board.pit.read(at.port, (at.wall_ns)()).into(),
            write: |board, at, value| {
                board.pit.write(at.port, value as u8, (at.wall_ns)());
                PlatformEffect::NONE
            },
        },
        power::EVENTS..=power::GENERAL_ENABLES => {
            PortDevice { widest: word, read: PcBoard::power_read, write: PcBoard::power_write }
        }
        power::RESET | power::KEYBOARD => {
            PortDevice { widest: byte, read: PcBoard::power_read, write: PcBoard::power_write }
        }
        pci::CONFIG_ADDRESS | pci::CONFIG_DATA..=pci::CONFIG_DATA_LAST => PortDevice {
            widest: dword,
            read: |board, at| board.pci.port_read(at.port, at.size).unwrap_or(at.size.all_ones()),
            write: |board, at, value| {
                board.pci.port_write(at.port, at.size, value);
                PlatformEffect::NONE
            },
        },
        _ => return None,
    })
}

/// The devices of one VM.
#[derive(Clone, Debug, Default)]
pub struct PcBoard {
    com1: Uart16550,
    com2: Uart16550,
    ioapic: IoApic,
    pci: Pci,
    cmos: Cmos,
    pit: Pit,
    power: Power,
}

described!(PcBoard: com1, com2, ioapic, pci, cmos, pit, power);

impl PcBoard {
    /// Resets all devices. The clock continues.
    pub fn reset(&mut self) {
        let mut cmos = core::mem::take(&mut self.cmos);
        cmos.reset();
        let mut pci = core::mem::take(&mut self.pci);
        pci.reset();
        *self = Self { cmos, pci, ..Self::default() };
    }

    /// IN from a port. Reading can only lower interrupt lines, so there is no effect to deliver.
    /// `wall_ns` returns nanoseconds since the beginning of 1970.
    #[must_use]
    pub fn port_read(&mut self, port: u16, size: PortSize, wall_ns: impl Fn() -> u64) -> u32 {
        match device_at(port) {
            Some(device) if size <= device.widest => {
                (device.read)(self, PortAccess { port, size, wall_ns: &wall_ns })
            }
            _ => size.all_ones(),
        }
    }

    /// OUT to a port. Only the low bits of `value`, as many as the access's size, are used. A write
    /// to PCI's configuration may change [where the ROM is visible](Self::rom_base).
    pub fn port_write(
        &mut self,
        port: u16,
        size: PortSize,
        value: u32,
        wall_ns: impl Fn() -> u64,
    ) -> PlatformEffect {
        match device_at(port) {
            Some(device) if size <= device.widest => {
                (device.write)(self, PortAccess { port, size, wall_ns: &wall_ns }, value)
            }
            _ => PlatformEffect::NONE,
        }
    }

    fn serial_read(&mut self, PortAccess { port, .. }: PortAccess<'_>) -> u32 {
        let serial = SerialPort::of(port);
        let value = self.uart(serial).read(port - serial.base());
        if !self.uart(serial).irq_level() {
            let _ = self.ioapic.set_line(usize::from(serial.pin()), false);
        }
        value.into()
    }

    fn serial_write(&mut self, PortAccess { port, .. }: PortAccess<'_>, value: u32) -> PlatformEffect {
        let serial = SerialPort::of(port);
        let output = match self.uart(serial).write(port - serial.base(), value as u8) {
            uart16550::Effect::Transmit(byte) => Output::Transmit(serial, byte),
            uart16550::Effect::None => Output::None,
        };
        PlatformEffect { output, interrupt: self.update_line(serial) }
    }

    fn power_read(&mut self, PortAccess { port, size, .. }: PortAccess<'_>) -> u32 {
        let byte = |port| self.power.read(port).unwrap_or(0xff);
        if size == PortSize::Byte {
            return byte(port).into();
        }
        u16::from_le_bytes([byte(port), byte(port + 1)]).into()
    }

    fn power_write(&mut self, PortAccess { port, size, .. }: PortAccess<'_>, value: u32) -> PlatformEffect {
        let [value, high, ..] = value.to_le_bytes();
        let mut event = self.power.write(port, value);
        if size != PortSize::Byte {
            event = event.or(self.power.write(port + 1, high));
        }
        let output = event.map_or(Output::None, Output::Power);
        PlatformEffect { output, interrupt: self.update_events() }
    }

    /// Passes on the lines of the clock and of ACPI's events. Called after each access to the
    /// clock's data, and when it is due next: returns interrupts to deliver, and that time in
    /// nanoseconds after the beginning of 1970.
    pub fn ring(&mut self, wall_ns: u64) -> ([Option<Message>; 2], Option<u64>) {
        self.cmos.pass(wall_ns);
        let level = self.cmos.irq_level();
        self.power.set_clock(level);
        let clock = self.ioapic.set_line(usize::from(cmos::PIN), level);
        ([clock, self.update_events()], self.cmos.due_ns())
    }

    /// A [general-purpose event](Power::happens) occurs; returns an interrupt to deliver.
    pub fn happens(&mut self, event: u8) -> Option<Message> {
        self.power.happens(event);
        self.update_events()
    }

    fn update_events(&mut self) -> Option<Message> {
        self.ioapic.set_line(usize::from(power::PIN), self.power.irq_level())
    }

    /// Offers input to a serial port: returns how many bytes it accepted, and an interrupt to
    /// deliver. Offer the rest again later, after the guest has read.
    pub fn receive(&mut self, serial: SerialPort, bytes: &[u8]) -> (usize, Option<Message>) {
        let uart = self.uart(serial);
        let taken = bytes.iter().take_while(|&&byte| uart.receive(byte)).count();
        (taken, self.update_line(serial))
    }

    /// Whether [`Self::receive`] would accept a byte.
    pub fn can_receive(&self, serial: SerialPort) -> bool {
        match serial {
            SerialPort::Com1 => self.com1.can_receive(),
            SerialPort::Com2 => self.com2.can_receive(),
        }
    }

    /// Puts functions of the real machine on the PCI bus.
    pub fn add_functions(&mut self, functions: Vec<Function>) {
        self.pci.add(functions);
    }

    /// The functions of the real machine that the guest owns.
    pub fn functions_mut(&mut self) -> &mut [Function] {
        self.pci.owned_mut()
    }

    /// The address at which the ROM on the PCI bus is visible.
    pub fn rom_base(&self) -> Option<u64> {
        self.pci.rom_base()
    }

    /// Whether a guest physical address belongs to a device.
    pub const fn is_mmio(gpa: u64) -> bool {
        gpa >= ioapic::BASE && gpa - ioapic::BASE < ioapic::LEN
    }

    /// A 32-bit read from a guest physical address; all ones where there is no device.
    pub fn mmio_read(&self, gpa: u64) -> u32 {
        if Self::is_mmio(gpa) { self.ioapic.read(gpa - ioapic::BASE) } else { u32::MAX }
    }

    /// A 32-bit write to a guest physical address; returns the interrupts that it sends.
    pub fn mmio_write(&mut self, gpa: u64, value: u32) -> Messages {
        if Self::is_mmio(gpa) { self.ioapic.write(gpa - ioapic::BASE, value) } else { Messages::new() }
    }

    /// A level-triggered vector left service at a local APIC; returns the interrupts that are sent
    /// again.
    pub fn eoi(&mut self, vector: u8) -> Messages {
        self.ioapic.eoi(vector)
    }

    const fn uart(&mut self, serial: SerialPort) -> &mut Uart16550 {
        match serial {
            SerialPort::Com1 => &mut self.com1,
            SerialPort::Com2 => &mut self.com2,
        }
    }

    fn update_line(&mut self, serial: SerialPort) -> Option<Message> {
        let level = self.uart(serial).irq_level();
        self.ioapic.set_line(usize::from(serial.pin()), level)
    }
}
