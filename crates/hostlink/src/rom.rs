//! The contents of the expansion ROM on the guest's PCI bus, byte by byte: the hypervisor creates
//! them, and programs in guests check them.
//!
//! The ROM holds one image (PCI Firmware Specification 3.0, section 5.1): its header, the PCI data
//! structure, and then lines of text with their offsets, so that a byte reveals its position. No
//! byte of the text is `0xff`, which is read where there is no ROM.
//!
//! | offset | what |
//! |---|---|
//! | `0x00` | `55 aa`; the size of what initialises, in units of 512 bytes; its code, which returns at once |
//! | `0x06` | makes the first 512 bytes add up to 0 |
//! | `0x18` | offset of the PCI data structure, which is `0x20` |
//! | `0x40` | `Quell 00000040.`, a line feed, `Quell 00000050.`, and so on to the end |

/// Vendor id of the device with the ROM, and of the bridge to its bus. According to QEMU's
/// `docs/specs/pci-ids.rst`, this vendor's device ids `0x10f0` to `0x10ff` are free for
/// experiments. Virtio devices, which also have the vendor's id, end below: Linux's driver for them
/// probes every device of the vendor, and declines these.
pub const VENDOR_ID: u16 = 0x1af4;
/// Device id of the device that has the ROM.
pub const DEVICE_ID: u16 = 0x10f1;
/// Class code: a device that fits no defined class.
pub const CLASS: u32 = 0xff_0000;
/// Bytes of the ROM by default.
pub const LEN: u32 = 256 << 10;

/// Bytes of a line.
pub const LINE: u32 = 16;

/// Offset of the PCI data structure.
const DATA: u32 = 0x20;
/// Where the text begins.
const TEXT: u32 = 0x40;
/// Unit of the sizes in the headers, and of the checksummed block.
const BLOCK: u32 = 512;
/// Offset of the byte that corrects the sum.
const CHECKSUM: u32 = 6;

/// The 16 bytes at `index * LINE` of the image in a ROM of `len` bytes, a multiple of 512 below 32
/// MiB.
#[must_use]
pub const fn line(len: u32, index: u32) -> [u8; LINE as usize] {
    if index != 0 {
        return plain_line(len, index);
    }
    let mut first = plain_line(len, 0);
    let mut sum: u8 = 0;
    let mut offset = 0;
    while offset < BLOCK {
        let line = plain_line(len, offset / LINE);
        sum = sum.wrapping_add(line[(offset % LINE) as usize]);
        offset += 1;
    }
    first[CHECKSUM as usize] = sum.wrapping_neg();
    first
}

/// A line; the first still lacks its checksum.
const fn plain_line(len: u32, index: u32) -> [u8; LINE as usize] {
    let [vendor, device] = [VENDOR_ID.to_le_bytes(), DEVICE_ID.to_le_bytes()];
    let [class, blocks] = [CLASS.to_le_bytes(), (len / BLOCK).to_le_bytes()];
    match index * LINE {
        // One block of initialisation code: a far return.
        0x00 => [0x55, 0xaa, 1, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        0x10 => [0, 0, 0, 0, 0, 0, 0, 0, DATA as u8, 0, 0, 0, 0, 0, 0, 0],
        // Structure of 24 bytes, revision 0.
        DATA => [
            b'P', b'C', b'I', b'R', vendor[0], vendor[1], device[0], device[1], 0, 0, 24, 0, 0, class[0],
            class[1], class[2],
        ],
        // Length of the image, for a PC, the last one.
        0x30 => [blocks[0], blocks[1], 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        offset => text(offset),
    }
}

const fn text(offset: u32) -> [u8; LINE as usize] {
    let mut line = *b"Quell 00000000.\n";
    let mut digit = 0;
    while digit < 8 {
        let value = (offset >> (4 * (7 - digit)) & 0xf) as u8;
        line[6 + digit] = if value < 10 { b'0' + value } else { b'a' + value - 10 };
        digit += 1;
    }
    line
}

const _: () = assert!(TEXT == 0x30 + LINE && BLOCK.is_multiple_of(LINE));

/// Offset of the first of `bytes`, read starting at `start`, that differs from an image of `len`
/// bytes; bytes beyond the image's end are wrong.
#[must_use]
pub fn first_wrong(len: u32, start: u32, bytes: &[u8]) -> Option<u32> {
    let mut left = bytes;
    let mut offset = start;
    while !left.is_empty() {
        if offset >= len {
            return Some(offset);
        }
        let line = line(len, offset / LINE);
        let expected = &line[(offset % LINE) as usize..];
        let (part, rest) = left.split_at(expected.len().min(left.len()));
        if let Some(wrong) = part.iter().zip(expected).position(|(byte, expected)| byte != expected) {
            return Some(offset + wrong as u32);
        }
        offset += part.len() as u32;
        left = rest;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn image(len: u32) -> Vec<u8> {
        (0..len / LINE).flat_map(|index| line(len, index)).collect()
    }

    /// The way Linux's `pci_get_rom_size` and a PC's firmware look for it.
    #[test]
    fn headers_are_those_of_the_specification() {
        for len in [4096, LEN, 16 << 20] {
            let image = image(len);
            assert_eq!(image.len(), len as usize);
            assert_eq!(image[..2], [0x55, 0xaa]);
            let checked = usize::from(image[2]) * 512;
            assert_eq!(image[..checked].iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)), 0);
            assert_eq!(image[3], 0xcb, "initialisation returns");
            let data = &image[usize::from(u16::from_le_bytes([image[0x18], image[0x19]]))..];
            assert_eq!(&data[..4], b"PCIR");
            assert_eq!(data[4..8], [0xf4, 0x1a, 0xf1, 0x10]);
            assert_eq!(data[13..16], [0, 0, 0xff]);
            assert_eq!(u32::from(u16::from_le_bytes([data[16], data[17]])) * 512, len);
            assert_eq!((data[20], data[21]), (0, 0x80), "for PCs, and the last");
        }
    }

    #[test]
    fn text_tells_where_it_is() {
        let image = image(LEN);
        assert_eq!(&image[0x40..0x60], b"Quell 00000040.\nQuell 00000050.\n");
        assert_eq!(&image[LEN as usize - 16..], b"Quell 0003fff0.\n");
        assert!(!image[0x40..].contains(&0xff));
    }

    #[test]
    fn every_wrong_byte_is_found_at_its_offset() {
        let mut image = image(4096);
        assert_eq!(first_wrong(4096, 0, &image), None);
        for (start, end) in [(0, 1), (5, 70), (17, 4096), (4095, 4096), (9, 9)] {
            assert_eq!(first_wrong(4096, start, &image[start as usize..end]), None);
        }
        for offset in [0, 6, 15, 16, 0x32, 0x46, 0x200, 0xfff] {
            image[offset] ^= 1;
            assert_eq!(first_wrong(4096, 0, &image), Some(offset as u32));
            assert_eq!(first_wrong(4096, offset as u32, &image[offset..]), Some(offset as u32));
            image[offset] ^= 1;
        }
        assert_eq!(first_wrong(4096, 0x40, &image[0x50..]), Some(0x4c), "the right text in the wrong place");
        assert_eq!(first_wrong(4096, 4095, &[image[4095], 0]), Some(4096));
        assert_eq!(first_wrong(LEN, 0, &[0xff; 4]), Some(0));
    }
}
