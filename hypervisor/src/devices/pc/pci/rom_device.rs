//! A device with only an expansion ROM (PCI Local Bus Specification 3.0, section 6.2.5.2).
//!
//! A ROM is visible while the device decodes memory and its ROM is enabled; most operating systems
//! enable it to read it, and disable it again. So a guest adds and removes memory by two
//! configuration writes, which is the purpose of this device.

use super::{CLASS, COMMAND, ID, WINDOW};
use hostlink::rom::{self, DEVICE_ID, VENDOR_ID};
use migration::{Archive, Described, Flaw, fields};

/// Index of the double words with the subsystem's ids and with the ROM's base address.
const SUBSYSTEM: u8 = 0x2c / 4;
const ROM_BASE: u8 = 0x30 / 4;

/// Bit of the command register: the device decodes memory. Its other bits are 0, because they would
/// control nothing.
const MEMORY_SPACE: u32 = 1 << 1;
/// Bit of the ROM's base address: the ROM is decoded.
const ROM_ENABLE: u32 = 1 << 0;

/// Size of a ROM in bytes: a power of two from a page to 16 MiB, the maximum that can be requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RomLen(u32);

impl RomLen {
    /// A ROM of this many bytes.
    pub const fn new(bytes: u32) -> Option<Self> {
        if bytes.is_power_of_two() && bytes >= 4096 && bytes <= 16 << 20 { Some(Self(bytes)) } else { None }
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u32 {
        self.0
    }
}

impl Default for RomLen {
    fn default() -> Self {
        const { Self::new(rom::LEN).unwrap() }
    }
}

impl From<RomLen> for u64 {
    fn from(len: RomLen) -> Self {
        len.0.into()
    }
}

impl Described for RomDevice {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let base = self.address_bits() | ROM_ENABLE;
        fields!(self, archive: command & MEMORY_SPACE, rom_base & base; same len)
    }
}

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
    /// The device in the state in which a PC's firmware hands it over; there is no firmware here.
    /// Memory is decoded, the ROM is not, and has no address yet. Linux relies on the former, and
    /// sets up the latter.
    pub(super) const fn new(len: RomLen) -> Self {
        Self { len, command: MEMORY_SPACE, rom_base: 0 }
    }

    /// Guest physical address of the ROM while it is visible, which is possible within [`WINDOW`]
    /// only.
    pub(super) fn base(&self) -> Option<u64> {
        let base = u64::from(self.rom_base & self.address_bits());
        let is_decoded = self.command & MEMORY_SPACE != 0 && self.rom_base & ROM_ENABLE != 0;
        let is_inside = base >= WINDOW.start && base + u64::from(self.len.bytes()) <= WINDOW.end;
        (is_decoded && is_inside).then_some(base)
    }

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

    /// Writes the bits in `mask` of a double word. Writes to the status, in the command's upper
    /// half, clear bits that are never set.
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

    /// The implemented address bits, from which software determines the size.
    const fn address_bits(&self) -> u32 {
        !(self.len.bytes() - 1)
    }
}
