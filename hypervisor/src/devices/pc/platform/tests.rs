use super::*;
use crate::devices::pc::apic_ids::ApicId;
use crate::devices::pc::message::{Destination, MessageKind, Trigger};

/// A platform whose I/O APIC sends the ports' interrupts: COM1 as 0x34 and COM2 as 0x33,
/// edge-triggered.
fn platform() -> PcBoard {
    let mut platform = PcBoard::default();
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
    Some(Message { kind, destination: Destination::Physical(ApicId(0)), trigger: Trigger::Edge })
}

#[test]
fn absent_ports_read_all_ones_in_every_size() {
    let mut platform = platform();
    for port in
        [0, 0x20, 0x3f, 0x44, 0x60, 0x62, 0x6f, 0x72, 0x80, 0x92, 0x2e8, 0x3e8, 0x400, 0xcf4, 0xd00, 0xffff]
    {
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
    // A configuration address as PCI probing writes it: it covers the reset port, and must not
    // reset.
    assert_eq!(platform.port_write(0xcf8, PortSize::Dword, 0x8000_0600, || 0), PlatformEffect::NONE);
    assert_eq!(platform.port_write(0xcf9, PortSize::Word, 0x0606, || 0), PlatformEffect::NONE);
    assert_eq!(platform.port_write(0x602, PortSize::Dword, 0x3400_0000, || 0), PlatformEffect::NONE);
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
    let off = Output::Power(PowerEvent::PowerOff);
    assert_eq!(out(&mut platform, power::SLEEP, 0x34).output, off);
    assert_eq!(platform.port_write(power::CONTROL, PortSize::Word, 0x3401, || 0).output, off);
    assert_eq!(out(&mut platform, power::RESET, 0x06).output, Output::Power(PowerEvent::Reset));
    assert_eq!(platform.port_read(power::CONTROL, PortSize::Word, || 0), 1);
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

/// Linux' interrupt handler returns when IIR shows nothing: then the line must be low, or an
/// edge-triggered interrupt would never be raised again.
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
    assert_eq!((platform.mmio_read(0xfec0_0010), platform.mmio_read(0xfee0_0020)), (0x0017_0020, u32::MAX));
    assert!(platform.mmio_write(0xfee0_00b0, 0).is_empty());
    assert!(platform.eoi(0x34).is_empty());
}
