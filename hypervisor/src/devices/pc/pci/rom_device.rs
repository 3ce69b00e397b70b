//! A device that has an expansion ROM and nothing else (PCI Local Bus Specification 3.0, section
//! 6.2.5.2).
//!
//! A ROM is seen while the device decodes memory and its ROM is enabled; most operating systems
//! enable it to read it, and disable it again. So a guest adds and removes memory by two
//! configuration writes, and that is what this device is for.

use super::{CLASS, COMMAND, ID, WINDOW};
use hostlink::rom::{self, DEVICE_ID, VENDOR_ID};

/// Index of the double words with the subsystem's ids and with the ROM's base address.
const SUBSYSTEM: u8 = 0x2c / 4;
const ROM_BASE: u8 = 0x30 / 4;

/// Of the command register: the device decodes memory. Its other bits are 0, for there is nothing
/// that they control.
const MEMORY_SPACE: u32 = 1 << 1;
/// Of the ROM's base address: the ROM is decoded.
const ROM_ENABLE: u32 = 1 << 0;

/// Bytes of a ROM: a power of two from a page to 16 MiB, which is as much as can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RomLen(u32);

impl RomLen {
    /// A ROM of so many bytes.
    #[must_use]
    pub const fn new(bytes: u32) -> Option<Self> {
        if bytes.is_power_of_two() && bytes >= 4096 && bytes <= 16 << 20 { Some(Self(bytes)) } else { None }
    }

    /// The bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        self.0
    }
}

impl Default for RomLen {
    fn default() -> Self {
        const { Self::new(rom::LEN).unwrap() }
    }
}

/// The device's registers.
#[derive(Clone, Debug)]
pub(super) struct RomDevice {
    len: RomLen,
    command: u32,
    rom_base: u32,
}

impl Default for RomDevice {
    fn default() -> Self {
        Self::new(RomLen::default())
    }
}

impl RomDevice {
    /// The device as a PC's firmware hands it over, of which there is none here: memory is decoded,
    /// the ROM is not, and has no address yet. Linux relies on the former, and sees to the latter.
    pub(super) const fn new(len: RomLen) -> Self {
        Self { len, command: MEMORY_SPACE, rom_base: 0 }
    }

    /// Guest physical address of the ROM while it is seen, which is within [`WINDOW`] only.
    pub(super) fn base(&self) -> Option<u64> {
        let base = u64::from(self.rom_base & self.address_bits());
        let is_decoded = self.command & MEMORY_SPACE != 0 && self.rom_base & ROM_ENABLE != 0;
        let is_inside = base >= WINDOW.start && base + u64::from(self.len.bytes()) <= WINDOW.end;
        (is_decoded && is_inside).then_some(base)
    }

    /// The double word `register` of configuration space.
    pub(super) fn read(&self, register: u8) -> u32 {
        match register {
            ID | SUBSYSTEM => u32::from(VENDOR_ID) | u32::from(DEVICE_ID) << 16,
            COMMAND => self.command,
            CLASS => rom::CLASS << 8,
            ROM_BASE => self.rom_base,
            // Header type 0, one function; no other base address, no capability, no interrupt pin.
            _ => 0,
        }
    }

    /// Writes the bits in `mask` of a double word. What is written of the status, in the command's
    /// upper half, clears bits that are never set.
    pub(super) fn write(&mut self, register: u8, value: u32, mask: u32) {
        let (bits, writable) = match register {
            COMMAND => (&mut self.command, MEMORY_SPACE),
            ROM_BASE => {
                let writable = self.address_bits() | ROM_ENABLE;
                (&mut self.rom_base, writable)
            }
            _ => return,
        };
        let mask = mask & writable;
        *bits = *bits & !mask | value & mask;
    }

    /// The address bits that exist, by which software learns the size.
    const fn address_bits(&self) -> u32 {
        !(self.len.bytes() - 1)
    }
}
