//! The VM's devices behind their ports and addresses.
//!
//! Everything else that software may probe for is absent, and the ACPI tables say so: keyboard controller,
//! interrupt controller of the PC, VGA. A port without a device reads as all ones
//! and ignores writes. Every device at a port but [PCI's configuration](super::pci) is one byte wide, so wider accesses
//! find no device.

use super::cmos::{self, Cmos};
use super::ioapic::{self, IoApic, Messages};
use super::message::Message;
use super::pci::{self, Pci};
use super::pit::{self, Pit};
use super::power::{self, PowerEvent};
use crate::devices::region::Region;
use crate::devices::uart16550::{self, Uart16550};

/// Addresses that are devices'. Those of local APICs are also where messages of interrupts go (APM vol. 2 section 16.3.2).
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
    /// Where programs in the guest write their reports.
    Com2,
}

impl SerialPort {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Com1, Self::Com2];

    /// The first of its eight ports.
    #[must_use]
    pub const fn base(self) -> u16 {
        match self {
            Self::Com1 => 0x3f8,
            Self::Com2 => 0x2f8,
        }
    }

    /// Its pin at the I/O APIC.
    #[must_use]
    pub const fn pin(self) -> u8 {
        match self {
            Self::Com1 => 4,
            Self::Com2 => 3,
        }
    }

    /// The port and register that an I/O port belongs to.
    const fn decode(port: u16) -> Option<(Self, u16)> {
        match port {
            0x3f8..=0x3ff => Some((Self::Com1, port - 0x3f8)),
            0x2f8..=0x2ff => Some((Self::Com2, port - 0x2f8)),
            _ => None,
        }
    }
}

/// Width of a port access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    #[must_use]
    pub const fn from_bytes(bytes: usize) -> Option<Self> {
        match bytes {
            1 => Some(Self::Byte),
            2 => Some(Self::Word),
            4 => Some(Self::Dword),
            _ => None,
        }
    }

    /// What a read without a device returns.
    #[must_use]
    pub const fn all_ones(self) -> u32 {
        match self {
            Self::Byte => 0xff,
            Self::Word => 0xffff,
            Self::Dword => 0xffff_ffff,
        }
    }
}

/// What leaves the platform by a port write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Nothing.
    None,
    /// A byte goes out of a serial port.
    Transmit(SerialPort, u8),
    /// The machine is to end or to start again.
    Power(PowerEvent),
}

/// What a port write asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct PlatformEffect {
    /// What leaves the platform.
    pub output: Output,
    /// An interrupt to deliver.
    pub interrupt: Option<Message>,
}

impl PlatformEffect {
    /// Nothing to do.
    pub const NONE: Self = Self { output: Output::None, interrupt: None };
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
}

impl PcBoard {
    /// All devices after reset.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// All devices as after reset. The clock goes on.
    pub fn reset(&mut self) {
        let mut cmos = core::mem::take(&mut self.cmos);
        cmos.reset();
        *self = Self { cmos, ..Self::default() };
    }

    /// IN from a port. Reading can only lower interrupt lines, so there is no effect to deliver. `wall_ns` is asked by the clock and by the
    /// interval timer alone, in nanoseconds since the beginning of 1970.
    #[must_use]
    pub fn port_read(&mut self, port: u16, size: PortSize, wall_ns: impl FnOnce() -> u64) -> u32 {
        if let Some(value) = self.pci.port_read(port, size) {
            return value;
        }
        if size != PortSize::Byte {
            return size.all_ones();
        }
        if let Some((serial, offset)) = SerialPort::decode(port) {
            let value = self.uart(serial).read(offset);
            if !self.uart(serial).irq_level() {
                let _ = self.ioapic.set_line(usize::from(serial.pin()), false);
            }
            return u32::from(value);
        }
        if matches!(port, cmos::INDEX | cmos::DATA) {
            return u32::from(self.cmos.read(port, wall_ns()));
        }
        if pit::has_port(port) {
            return u32::from(self.pit.read(port, wall_ns()));
        }
        power::read(port).map_or(size.all_ones(), u32::from)
    }

    /// OUT to a port. Of `value` only the low bits of the access's size count. One to PCI's configuration may change
    /// [where the ROM is seen](Self::rom_base).
    pub fn port_write(
        &mut self,
        port: u16,
        size: PortSize,
        value: u32,
        wall_ns: impl FnOnce() -> u64,
    ) -> PlatformEffect {
        if self.pci.port_write(port, size, value) || size != PortSize::Byte {
            return PlatformEffect::NONE;
        }
        let value = value as u8;
        if let Some((serial, offset)) = SerialPort::decode(port) {
            let output = match self.uart(serial).write(offset, value) {
                uart16550::Effect::Transmit(byte) => Output::Transmit(serial, byte),
                uart16550::Effect::None => Output::None,
            };
            return PlatformEffect { output, interrupt: self.update_line(serial) };
        }
        if matches!(port, cmos::INDEX | cmos::DATA) {
            self.cmos.write(port, value, wall_ns());
            return PlatformEffect::NONE;
        }
        if pit::has_port(port) {
            self.pit.write(port, value, wall_ns());
            return PlatformEffect::NONE;
        }
        let output = power::write(port, value).map_or(Output::None, Output::Power);
        PlatformEffect { output, interrupt: None }
    }

    /// Offers input to a serial port: returns how many bytes it took, and an interrupt to deliver. Offer the
    /// rest again later, after the guest has read.
    pub fn receive(&mut self, serial: SerialPort, bytes: &[u8]) -> (usize, Option<Message>) {
        let uart = self.uart(serial);
        let taken = bytes.iter().take_while(|&&byte| uart.receive(byte)).count();
        (taken, self.update_line(serial))
    }

    /// Whether [`Self::receive`] would take a byte.
    #[must_use]
    pub fn can_receive(&self, serial: SerialPort) -> bool {
        match serial {
            SerialPort::Com1 => self.com1.can_receive(),
            SerialPort::Com2 => self.com2.can_receive(),
        }
    }

    /// Where the ROM on the PCI bus is seen.
    #[must_use]
    pub fn rom_base(&self) -> Option<u64> {
        self.pci.rom_base()
    }

    /// Whether a guest physical address is a device's.
    #[must_use]
    pub const fn is_mmio(gpa: u64) -> bool {
        gpa >= ioapic::BASE && gpa - ioapic::BASE < ioapic::LEN
    }

    /// A 32-bit read from a guest physical address; all ones where there is no device.
    #[must_use]
    pub fn mmio_read(&self, gpa: u64) -> u32 {
        if Self::is_mmio(gpa) { self.ioapic.read(gpa - ioapic::BASE) } else { u32::MAX }
    }

    /// A 32-bit write to a guest physical address: the interrupts that it sends.
    pub fn mmio_write(&mut self, gpa: u64, value: u32) -> Messages {
        if Self::is_mmio(gpa) { self.ioapic.write(gpa - ioapic::BASE, value) } else { Messages::new() }
    }

    /// A level-triggered vector left service at a local APIC: the interrupts that are sent again.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::pc::message::{Destination, MessageKind, Trigger};

    /// A platform whose I/O APIC sends the ports' interrupts: COM1 as 0x34 and COM2 as 0x33, edge-triggered.
    fn platform() -> PcBoard {
        let mut platform = PcBoard::new();
        for port in SerialPort::ALL {
            let register = 0x10 + 2 * u32::from(port.pin());
            let _ = platform.mmio_write(ioapic::BASE, register);
            let _ = platform.mmio_write(ioapic::BASE + 0x10, 0x30 + u32::from(port.pin()));
        }
        platform
    }

    fn out(platform: &mut PcBoard, port: u16, value: u8) -> PlatformEffect {
        platform.port_write(port, PortSize::Byte, value.into(), || 0)
    }

    fn vector(vector: u8) -> Option<Message> {
        let kind = MessageKind::Fixed(vector);
        Some(Message { kind, destination: Destination::Physical(0), trigger: Trigger::Edge })
    }

    #[test]
    fn absent_ports_read_all_ones_in_every_size() {
        let mut platform = platform();
        for port in [
            0, 0x20, 0x3f, 0x44, 0x60, 0x62, 0x64, 0x6f, 0x72, 0x80, 0x2e8, 0x3e8, 0x400, 0xcf4, 0xd00,
            0xffff,
        ] {
            for (bytes, ones) in [(1, 0xff), (2, 0xffff), (4, 0xffff_ffff)] {
                let size = PortSize::from_bytes(bytes).unwrap();
                assert_eq!(platform.port_read(port, size, || 0), ones, "port {port:#x}, {bytes}");
                assert_eq!(platform.port_write(port, size, 0, || 0), PlatformEffect::NONE);
            }
        }
        for bytes in [0, 3, 5, 8, usize::MAX] {
            assert_eq!(PortSize::from_bytes(bytes), None);
        }
    }

    #[test]
    fn wide_accesses_find_no_byte_wide_device() {
        let mut platform = platform();
        // A configuration address as PCI probing writes it: covers the reset port, and must not reset.
        assert_eq!(platform.port_write(0xcf8, PortSize::Dword, 0x8000_0600, || 0), PlatformEffect::NONE);
        assert_eq!(platform.port_write(0xcf9, PortSize::Word, 0x0606, || 0), PlatformEffect::NONE);
        assert_eq!(platform.port_write(0x600, PortSize::Dword, 0x34, || 0), PlatformEffect::NONE);
        assert_eq!(platform.port_write(0x3f8, PortSize::Word, 0x41, || 0), PlatformEffect::NONE);
        assert_eq!(platform.port_read(0x3fd, PortSize::Word, || 0), 0xffff);
    }

    #[test]
    fn the_clocks_ports_ask_for_the_time_and_a_reset_leaves_it() {
        let mut platform = platform();
        let now = || 1_795_383_836_000_000_000;
        let year = |platform: &mut PcBoard| {
            let _ = platform.port_write(0x70, PortSize::Byte, 9, now);
            platform.port_read(0x71, PortSize::Byte, now)
        };
        assert_eq!(year(&mut platform), 0x26);
        let _ = platform.port_write(0x71, PortSize::Byte, 0x30, now);
        platform.reset();
        assert_eq!(year(&mut platform), 0x30);
        assert_eq!(platform.mmio_read(ioapic::BASE), 0, "all else begins anew");
    }

    #[test]
    fn u26_the_interval_timer_is_at_its_ports() {
        let mut platform = platform();
        let start = 1_795_383_836_000_000_000;
        for (port, value) in [(0x61, 1), (0x43, 0xb0), (0x42, 0xa9), (0x42, 0x04)] {
            let _ = platform.port_write(port, PortSize::Byte, value, || start);
        }
        let output = |platform: &mut PcBoard, us: u64| {
            platform.port_read(0x61, PortSize::Byte, || start + us * 1000) & 0x20 != 0
        };
        assert!(!output(&mut platform, 999) && output(&mut platform, 1001), "1193 ticks are 1 ms");
        assert_eq!(platform.port_read(0x61, PortSize::Word, || start), 0xffff);
        platform.reset();
        assert_eq!(platform.port_read(0x61, PortSize::Byte, || start) & 0x2f, 0x20, "its gate is closed");
    }

    #[test]
    fn power_ports_act() {
        let mut platform = platform();
        assert_eq!(
            out(&mut platform, power::SLEEP_CONTROL, 0x34).output,
            Output::Power(PowerEvent::PowerOff)
        );
        assert_eq!(out(&mut platform, power::RESET, 0x06).output, Output::Power(PowerEvent::Reset));
        assert_eq!(platform.port_read(power::SLEEP_STATUS, PortSize::Byte, || 0), 0);
    }

    #[test]
    fn configuration_ports_are_pcis() {
        let mut platform = platform();
        assert_eq!(platform.port_read(0xcfc, PortSize::Dword, || 0), u32::MAX, "nothing is selected yet");
        assert_eq!(platform.port_write(0xcf8, PortSize::Dword, 0x8000_0830, || 0), PlatformEffect::NONE);
        assert_eq!(platform.rom_base(), None);
        assert_eq!(platform.port_write(0xcfc, PortSize::Dword, 0xe000_0001, || 0), PlatformEffect::NONE);
        assert_eq!(platform.rom_base(), Some(0xe000_0000));
        assert_eq!(platform.port_read(0xcf8, PortSize::Dword, || 0), 0x8000_0830);
        assert_eq!(platform.port_read(0xcff, PortSize::Byte, || 0), 0xe0);
        assert_eq!(platform.port_read(0xcf9, PortSize::Byte, || 0), 0, "the reset register lies between");
        assert_eq!(out(&mut platform, 0xcf9, 0x06).output, Output::Power(PowerEvent::Reset));
    }

    #[test]
    fn serial_ports_transmit_apart() {
        let mut platform = platform();
        assert_eq!(out(&mut platform, 0x3f8, b'a').output, Output::Transmit(SerialPort::Com1, b'a'));
        assert_eq!(out(&mut platform, 0x2f8, b'b').output, Output::Transmit(SerialPort::Com2, b'b'));
    }

    #[test]
    fn enabling_the_transmit_interrupt_sends_it_and_iir_lowers_the_line() {
        let mut platform = platform();
        assert_eq!(out(&mut platform, 0x3f9, 0x02).interrupt, vector(0x34));
        assert_eq!(out(&mut platform, 0x3f8, b'x').interrupt, None, "the line is high already");
        assert_eq!(platform.port_read(0x3fa, PortSize::Byte, || 0), 0x02);
        assert_eq!(platform.port_read(0x3fa, PortSize::Byte, || 0), 0x01);
        assert_eq!(out(&mut platform, 0x3f8, b'y').interrupt, vector(0x34), "a new edge");
        assert_eq!(out(&mut platform, 0x2f9, 0x02).interrupt, vector(0x33));
    }

    #[test]
    fn input_interrupts_and_what_does_not_fit_is_left() {
        let mut platform = platform();
        assert_eq!(platform.receive(SerialPort::Com1, b"ab"), (1, None), "no FIFO, no interrupt enabled");
        let _ = out(&mut platform, 0x3fa, 0x01);
        assert_eq!(out(&mut platform, 0x3f9, 0x01).interrupt, None, "the FIFO was cleared");
        assert_eq!(platform.receive(SerialPort::Com1, &[b'z'; 40]), (16, vector(0x34)));
        assert!(!platform.can_receive(SerialPort::Com1) && platform.can_receive(SerialPort::Com2));
        assert_eq!(platform.receive(SerialPort::Com1, b"q"), (0, None));
        assert_eq!(platform.port_read(0x3f8, PortSize::Byte, || 0), u32::from(b'z'));
        assert_eq!(platform.receive(SerialPort::Com1, b"q"), (1, None), "still high: no second edge");
    }

    /// Linux' interrupt handler leaves when IIR shows nothing: then the line must be low, or an
    /// edge-triggered interrupt would never come again.
    #[test]
    fn the_line_is_low_whenever_iir_shows_nothing() {
        let mut platform = platform();
        let _ = out(&mut platform, 0x3fa, 0xc1);
        let _ = out(&mut platform, 0x3f9, 0x0f);
        for round in 0..300_u32 {
            let taken = platform.receive(SerialPort::Com1, &[0; 3][..(round % 4) as usize]).0;
            let _ = out(&mut platform, 0x3f8, 0);
            let _ = out(&mut platform, 0x3fc, (round % 32) as u8);
            for _ in 0..64 {
                if platform.port_read(0x3fa, PortSize::Byte, || 0) & 1 != 0 {
                    break;
                }
                let _ = platform.port_read(0x3fd, PortSize::Byte, || 0);
                let _ = platform.port_read(0x3fe, PortSize::Byte, || 0);
                let _ = platform.port_read(0x3f8, PortSize::Byte, || 0);
            }
            assert!(!platform.com1.irq_level(), "round {round}, {taken} bytes");
        }
    }

    #[test]
    fn registers_of_the_io_apic_are_where_the_tables_say() {
        let mut platform = platform();
        assert!(PcBoard::is_mmio(0xfec0_0000) && PcBoard::is_mmio(0xfec0_0fff));
        assert!(!PcBoard::is_mmio(0xfec0_1000) && !PcBoard::is_mmio(0xfebf_ffff) && !PcBoard::is_mmio(0));
        let _ = platform.mmio_write(0xfec0_0000, 1);
        assert_eq!(platform.mmio_read(0xfec0_0010), 0x0017_0020);
        assert_eq!(platform.mmio_read(0xfee0_0020), u32::MAX);
        assert!(platform.mmio_write(0xfee0_00b0, 0).is_empty());
        assert!(platform.eoi(0x34).is_empty());
    }
}
