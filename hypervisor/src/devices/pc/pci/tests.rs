use super::*;
use PortSize::{Byte, Dword, Word};

/// Configuration address of a register of 00:01.0.
const fn rom_register(offset: u32) -> u32 {
    ENABLE | 1 << 11 | offset
}

const COMMAND_OFFSET: u32 = 0x04;
const ROM_OFFSET: u32 = 0x30;
const LEN: u64 = 256 << 10;

fn select(pci: &mut Pci, address: u32) {
    assert!(pci.port_write(CONFIG_ADDRESS, Dword, address));
}

fn read(pci: &mut Pci, address: u32) -> u32 {
    select(pci, address);
    pci.port_read(CONFIG_DATA, Dword).unwrap()
}

/// The ROM's previous and present address.
type Move = (Option<u64>, Option<u64>);

fn write(pci: &mut Pci, address: u32, value: u32) -> Option<Move> {
    select(pci, address);
    write_data(pci, CONFIG_DATA, Dword, value)
}

/// Writes to a port of the data register; returns how the ROM has moved, if it has.
fn write_data(pci: &mut Pci, port: u16, size: PortSize, value: u32) -> Option<Move> {
    let from = pci.rom_base();
    assert!(pci.port_write(port, size, value));
    let to = pci.rom_base();
    (from != to).then_some((from, to))
}

fn moved(from: Option<u64>, to: Option<u64>) -> Option<Move> {
    Some((from, to))
}

#[test]
fn address_register_is_a_double_word() {
    let mut pci = Pci::default();
    select(&mut pci, u32::MAX);
    assert_eq!(pci.port_read(CONFIG_ADDRESS, Dword), Some(0x80ff_fffc), "reserved bits are 0");
    select(&mut pci, 0x8000_0800);
    for port in CONFIG_ADDRESS..CONFIG_DATA {
        for size in [Byte, Word] {
            assert!(!pci.port_write(port, size, 0), "{size:?} at {port:#x}");
            assert_eq!(pci.port_read(port, size), None);
        }
    }
    for port in [0xcf7, 0xcf9, 0xcfa, 0xcfb, 0xd00, 0, 0xffff] {
        assert!(!pci.port_write(port, Dword, 0), "double word at {port:#x}");
        assert_eq!(pci.port_read(port, Dword), None);
    }
    assert_eq!(pci.port_read(CONFIG_ADDRESS, Dword), Some(0x8000_0800), "none of them was for it");
}

#[test]
fn two_devices_and_nothing_else() {
    let mut pci = Pci::default();
    for bus in [0, 1, 0x7f, 0xff] {
        for function in 0..=0xff {
            let address = ENABLE | bus << 16 | function << 8;
            let expected = match (bus, function) {
                (0, 0) => 0x10f0_1af4,
                (0, 8) => 0x10f1_1af4,
                _ => u32::MAX,
            };
            assert_eq!(read(&mut pci, address), expected, "{bus}:{function:#x}");
            if expected == u32::MAX {
                assert_eq!(write(&mut pci, address | ROM_OFFSET, 0xe000_0001), None);
                assert_eq!(read(&mut pci, address | ROM_OFFSET), u32::MAX);
            }
        }
    }
    assert_eq!(read(&mut pci, 0x10f1), u32::MAX, "without the enable bit nothing is selected");
    assert_eq!(write(&mut pci, rom_register(ROM_OFFSET) & !ENABLE, 0xe000_0001), None);
    assert_eq!(pci.rom_base(), None);
}

#[test]
fn headers() {
    let mut pci = Pci::default();
    assert_eq!(read(&mut pci, ENABLE | 0x08), 0x0600_0000, "a host bridge, for which Linux looks");
    assert_eq!(read(&mut pci, rom_register(0x08)), 0xff00_0000, "a device of no class");
    for offset in (0..0x100).step_by(4) {
        let bridge = read(&mut pci, ENABLE | offset);
        assert_eq!(bridge != 0, matches!(offset, 0x00 | 0x04 | 0x08), "bridge, {offset:#x}");
        let rom = read(&mut pci, rom_register(offset));
        assert_eq!(rom != 0, matches!(offset, 0x00 | 0x04 | 0x08 | 0x2c), "ROM, {offset:#x}");
    }
    for offset in (0..0x100).step_by(4).filter(|offset| !matches!(*offset, COMMAND_OFFSET | ROM_OFFSET)) {
        let [bridge, rom] =
            [ENABLE, rom_register(0)].map(|device| (device | offset, read(&mut pci, device | offset)));
        for (address, before) in [bridge, rom] {
            for value in [u32::MAX, 0] {
                assert_eq!(write(&mut pci, address, value), None);
                assert_eq!(read(&mut pci, address), before, "{address:#x} is read-only");
            }
        }
    }
}

#[test]
fn bytes_and_words_of_the_data_register() {
    let mut pci = Pci::default();
    select(&mut pci, rom_register(0));
    let bytes = 0x10f1_1af4_u32.to_le_bytes();
    for (lane, byte) in (0..).zip(bytes) {
        assert_eq!(pci.port_read(CONFIG_DATA + lane, Byte), Some(byte.into()));
    }
    assert_eq!(pci.port_read(CONFIG_DATA, Word), Some(0x1af4));
    assert_eq!(pci.port_read(CONFIG_DATA + 1, Word), Some(0xf11a));
    assert_eq!(pci.port_read(CONFIG_DATA + 2, Word), Some(0x10f1));
    assert_eq!(pci.port_read(CONFIG_DATA + 3, Word), Some(0xff10), "the second byte is beyond");
    assert_eq!(pci.port_read(CONFIG_DATA + 3, Dword), Some(0xffff_ff10));
    assert_eq!(pci.port_read(CONFIG_DATA + 1, Dword), Some(0xff10_f11a));

    select(&mut pci, rom_register(ROM_OFFSET));
    assert_eq!(write_data(&mut pci, CONFIG_DATA + 3, Byte, 0xe3), None);
    assert_eq!(write_data(&mut pci, CONFIG_DATA + 2, Byte, 0x04), None);
    assert_eq!(pci.port_read(CONFIG_DATA, Dword), Some(0xe304_0000));
    assert_eq!(write_data(&mut pci, CONFIG_DATA, Byte, 0xff), moved(None, Some(0xe304_0000)));
    let found = write_data(&mut pci, CONFIG_DATA + 2, Word, 0xe000);
    assert_eq!(found, moved(Some(0xe304_0000), Some(0xe000_0000)));
    let found = write_data(&mut pci, CONFIG_DATA + 3, Dword, 0xffff_ffe4);
    assert_eq!(found, moved(Some(0xe000_0000), Some(0xe400_0000)), "what is beyond is lost");
    assert_eq!(pci.port_read(CONFIG_DATA, Dword), Some(0xe400_0001));
}

#[test]
fn sizes_are_learnt_by_writing_ones() {
    for bytes in [4096, LEN as u32, 16 << 20] {
        let mut pci = Pci::new(RomLen::new(bytes).unwrap());
        assert_eq!(write(&mut pci, rom_register(ROM_OFFSET), 0xffff_fffe), None);
        assert_eq!(read(&mut pci, rom_register(ROM_OFFSET)), (bytes - 1) ^ u32::MAX);
        assert_eq!(write(&mut pci, rom_register(ROM_OFFSET), u32::MAX), None, "enabled at the end of 4 GiB");
        assert_eq!(read(&mut pci, rom_register(ROM_OFFSET)), (bytes - 1) ^ u32::MAX | 1);
        assert_eq!(write(&mut pci, rom_register(ROM_OFFSET), 0), None);
    }
    for bytes in [0, 1, 2048, 4095, 4097, 12288, 32 << 20, u32::MAX] {
        assert_eq!(RomLen::new(bytes), None);
    }
}

#[test]
fn both_bits_are_needed() {
    let mut pci = Pci::default();
    let (command, rom) = (rom_register(COMMAND_OFFSET), rom_register(ROM_OFFSET));
    let base = Some(0xe010_0000);
    assert_eq!(read(&mut pci, command), 2, "memory is decoded from the start");
    assert_eq!(write(&mut pci, rom, 0xe010_0000), None);
    assert_eq!(write(&mut pci, rom, 0xe010_0001), moved(None, base));
    assert_eq!(write(&mut pci, rom, 0xe010_0001), None, "as it was");
    assert_eq!((write(&mut pci, command, 0), write(&mut pci, rom, 0xe010_0000)), (moved(base, None), None));
    assert_eq!(write(&mut pci, command, u32::MAX), None);
    assert_eq!(read(&mut pci, command), 2, "the other bits do not exist");
    assert_eq!(write(&mut pci, rom, 0xe010_0001), moved(None, base));
    assert_eq!(write(&mut pci, rom, 0xe010_0800), moved(base, None), "bits within the ROM do not count");
    assert_eq!(read(&mut pci, rom), 0xe010_0000);
}

#[test]
fn moves_within_the_window_only() {
    let mut pci = Pci::default();
    let rom = rom_register(ROM_OFFSET);
    let (start, end) = (WINDOW.start, WINDOW.end);
    let mut was = None;
    for (base, is_seen) in [
        (start, true),
        (start + LEN, true),
        (end - LEN, true),
        (end, false),
        (0, false),
        (start - LEN, false),
        (ioapic::BASE, false),
        (0xc000_0000, false),
        (0x10_0000, false),
        (0x1_0000_0000 - LEN, false),
        (start, true),
    ] {
        let now = is_seen.then_some(base);
        let expected = if was == now { None } else { moved(was, now) };
        assert_eq!(write(&mut pci, rom, base as u32 | 1), expected, "{base:#x}");
        assert_eq!(read(&mut pci, rom), base as u32 | 1, "the register takes any address");
        assert_eq!(pci.rom_base(), now);
        was = now;
    }
}
