//! PCI functions as a program uses them, on either architecture. Source: PCI Local Bus
//! Specification 3.0, sections 6.1, 6.2 and 6.7.

pub use crate::arch::pci::ConfigSpace;

/// Registers: command and status, class, first base address, first capability.
pub const COMMAND: u8 = 0x04;
/// The class, behind the revision.
pub const CLASS: u8 = 0x08;
/// The first base address.
pub const BAR: u8 = 0x10;
const CAPABILITIES: u8 = 0x34;
/// The capability MSI-X.
const MSIX: u8 = 0x11;
/// MSI-X is enabled.
pub const MSIX_ENABLE: u32 = 1 << 31;
/// The type of a BAR: of 64 bits.
const IS_64_BIT: u32 = 4;
/// The command register: memory is decoded, DMA is on.
pub const MEMORY_AND_DMA: u32 = 6;

/// A function's messages of MSI-X.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Messages {
    /// The register of their control.
    pub control: u8,
    /// The BAR with their table, and the table's offset in it.
    pub table: (u8, u64),
    /// How many there are, each of [`Messages::BYTES`].
    pub count: u64,
}

impl Messages {
    /// Bytes of an entry of the table: the address, the data, and a word whose bit 0 masks it.
    pub const BYTES: u64 = 16;
}

impl ConfigSpace {
    /// Its messages, if it has any.
    pub fn messages(&self) -> Option<Messages> {
        let control = self.capability(MSIX)?;
        let (count, place) = (u64::from(self.read(control) >> 16 & 0x7ff) + 1, self.read(control + 4));
        Some(Messages { control, table: (place as u8 & 7, u64::from(place & !7)), count })
    }

    /// Where a BAR is now.
    pub fn base(&self, number: u8) -> u64 {
        let register = BAR + number * 4;
        let low = self.read(register);
        let high = if low & 6 == IS_64_BIT { self.read(register + 4) } else { 0 };
        u64::from(low & !15) | u64::from(high) << 32
    }

    /// Puts a BAR at an address.
    pub fn place(&self, number: u8, address: u64) {
        let register = BAR + number * 4;
        if self.read(register) & 6 == IS_64_BIT {
            self.write(register + 4, (address >> 32) as u32);
        }
        self.write(register, address as u32);
    }

    /// The register of a capability.
    pub fn capability(&self, id: u8) -> Option<u8> {
        self.capability_where(|at| self.read(at) as u8 == id)
    }

    /// The register of the first capability for which this is so.
    pub fn capability_where(&self, is_it: impl Fn(u8) -> bool) -> Option<u8> {
        let mut at = self.read(CAPABILITIES) as u8;
        // As many as have room.
        for _ in 0..48 {
            match at {
                0 => return None,
                _ if is_it(at) => return Some(at),
                _ => at = (self.read(at) >> 8) as u8,
            }
        }
        None
    }
}
