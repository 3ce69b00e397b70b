//! The PCI device with the expansion ROM, by configuration mechanism #1.

use core::sync::atomic::{AtomicU64, Ordering};

use baremetal::pci::ConfigSpace;
use hostlink::rom;

use crate::paging::PAGE;
use crate::report::{Failure, ensure};

/// Where the bus decodes memory; the ROM is placed at its beginning.
pub(crate) const WINDOW: u64 = 0xe000_0000;

/// Device 1 of bus 0.
pub(crate) const DEVICE: ConfigSpace = ConfigSpace::new(1 << 3);
/// Its registers: ids, command, and the ROM's base address.
pub(crate) const ID: u8 = 0x00;
pub(crate) const COMMAND: u8 = 0x04;
pub(crate) const ROM: u8 = 0x30;
/// Bit of the command register: memory is decoded.
pub(crate) const COMMAND_MEMORY: u32 = 1 << 1;
/// Bit of the base address: the ROM is decoded.
pub(crate) const ROM_ENABLE: u32 = 1;
const SIZE_MASK: u32 = !0x7ff;

pub(crate) fn place_rom(base: Option<u32>) {
    DEVICE.write(ROM, base.map_or(0, |base| base | ROM_ENABLE));
}

pub(crate) struct Rom {
    /// Its size in bytes.
    pub(crate) size: u64,
}

impl Rom {
    /// Finds the device and the size of its ROM, and disables the ROM.
    pub(crate) fn find() -> Result<Self, Failure> {
        let id = DEVICE.read(ID);
        ensure!(id as u16 == rom::VENDOR_ID, "the device at 00:01.0 is {id:#010x}");
        DEVICE.write(COMMAND, COMMAND_MEMORY);
        DEVICE.write(ROM, SIZE_MASK);
        let size = u64::from((!(DEVICE.read(ROM) & SIZE_MASK)).wrapping_add(1));
        DEVICE.write(ROM, WINDOW as u32);
        ensure!(size.is_power_of_two() && size >= PAGE, "a ROM of {size:#x} bytes");
        Ok(Self { size })
    }

    pub(crate) fn place(&self, base: u64) {
        place_rom(Some(base as u32));
    }

    /// Makes it visible at the beginning of the window.
    pub(crate) fn enable(&self) {
        self.place(WINDOW);
    }

    pub(crate) fn disable(&self) {
        DEVICE.write(ROM, WINDOW as u32);
    }

    /// Reads a word of each of its pages, and compares it with the expected contents.
    pub(crate) fn read_each_page(&self) -> Result<(), Failure> {
        for offset in (0..self.size).step_by(PAGE as usize) {
            let (found, expected) = (word(WINDOW + offset), self.expected(offset));
            ensure!(found == expected, "{found:#x} in the ROM at {offset:#x} instead of {expected:#x}");
        }
        Ok(())
    }

    /// The expected word at an offset, a multiple of 8.
    pub(crate) fn expected(&self, offset: u64) -> u64 {
        let line = rom::line(self.size as u32, (offset / u64::from(rom::LINE)) as u32);
        let at = (offset % u64::from(rom::LINE)) as usize;
        let bytes = line.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    }
}

/// The word at a physical address below 4 GiB, which need not be memory.
pub(crate) fn place(address: u64) -> &'static AtomicU64 {
    // SAFETY: everything below 4 GiB is mapped one to one, and the program uses nothing there.
    unsafe { &*(address as *const AtomicU64) }
}

pub(crate) fn word(address: u64) -> u64 {
    place(address).load(Ordering::Relaxed)
}
