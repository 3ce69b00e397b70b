//! Addresses of functions, and access to their configuration space.

use core::fmt;
use core::str::FromStr;

/// A function's address: bus, device and function. The segment is 0.
///
/// Its text is `00:04.0`: bus and device in hexadecimal, then the function. Parsing takes also the
/// form with the segment, `0000:00:04.0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(u16);

/// A text that is no address of segment 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAddress;

impl Address {
    /// The address of a function. `None` if `device` is above 31 or `function` above 7.
    pub const fn new(bus: u8, device: u8, function: u8) -> Option<Self> {
        if device > 31 || function > 7 {
            return None;
        }
        Some(Self((bus as u16) << 8 | (device as u16) << 3 | function as u16))
    }

    /// The function with this id.
    pub const fn from_id(id: u16) -> Self {
        Self(id)
    }

    /// The 16 bits by which requests name the function (PCIe, 2.2.6.2, requester id): the device id
    /// of AMD-Vi, and, with most firmware, the stream id of an SMMU.
    pub const fn id(self) -> u16 {
        self.0
    }

    /// Where a register is in configuration space in memory, which has `len` bytes (PCIe, 7.2.2);
    /// `None` if it is beyond. A register has 4 bytes: what is between two is the first one's.
    pub const fn offset(self, register: u16, len: u64) -> Option<u64> {
        let at = (self.0 as u64) << 12 | (register & 0xffc) as u64;
        if at + 4 <= len { Some(at) } else { None }
    }

    /// Number of the bus.
    pub const fn bus(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Number of the device on its bus, 31 at most.
    pub const fn device(self) -> u8 {
        (self.0 >> 3 & 31) as u8
    }

    /// Number of the function in its device, 7 at most.
    pub const fn function(self) -> u8 {
        (self.0 & 7) as u8
    }

    /// Whether both are functions of one device.
    pub const fn is_same_device(self, other: Self) -> bool {
        self.0 >> 3 == other.0 >> 3
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}:{:02x}.{}", self.bus(), self.device(), self.function())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Address {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Self, NoAddress> {
        let text = text.strip_prefix("0000:").unwrap_or(text);
        let (bus, rest) = text.split_once(':').ok_or(NoAddress)?;
        let (device, function) = rest.split_once('.').ok_or(NoAddress)?;
        Self::new(number(bus, 2)?, number(device, 2)?, number(function, 1)?).ok_or(NoAddress)
    }
}

/// A hexadecimal number of exactly this many digits, without a sign.
fn number(text: &str, digits: usize) -> Result<u8, NoAddress> {
    if text.len() != digits || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(NoAddress);
    }
    u8::from_str_radix(text, 16).map_err(|_| NoAddress)
}

/// Configuration space of the real machine, which the caller implements.
///
/// A register is a byte offset, a multiple of 4 below 4096. Registers that cannot be reached (a
/// function that is absent, or offsets from 256 without the extended mechanism) read as all ones
/// and ignore writes, as on the bus (PCI, 6.1).
pub trait ConfigSpace {
    /// Reads 4 bytes.
    fn read(&self, address: Address, register: u16) -> u32;
    /// Writes 4 bytes.
    fn write(&self, address: Address, register: u16, value: u32);
}

impl<T: ConfigSpace + ?Sized> ConfigSpace for &T {
    fn read(&self, address: Address, register: u16) -> u32 {
        (**self).read(address, register)
    }

    fn write(&self, address: Address, register: u16, value: u32) {
        (**self).write(address, register, value);
    }
}

/// Registers of the header (PCI, 6.1, and for bridges PCI-to-PCI Bridge Architecture Specification
/// 1.2, 3.2).
pub(crate) mod register {
    /// Vendor and device.
    pub(crate) const ID: u16 = 0x00;
    /// Command, and status in the upper half.
    pub(crate) const COMMAND: u16 = 0x04;
    /// Revision and class.
    pub(crate) const CLASS: u16 = 0x08;
    /// Cache line, latency, header type, self-test.
    pub(crate) const HEADER: u16 = 0x0c;
    /// The first BAR.
    pub(crate) const BAR: u16 = 0x10;
    /// Of a bridge: primary, secondary and subordinate bus.
    pub(crate) const BUSES: u16 = 0x18;
    /// Vendor and id of the subsystem.
    pub(crate) const SUBSYSTEM: u16 = 0x2c;
    /// Expansion ROM.
    pub(crate) const ROM: u16 = 0x30;
    /// The first capability.
    pub(crate) const CAPABILITIES: u16 = 0x34;
    /// Interrupt line and pin; of a bridge also its control, in the upper half.
    pub(crate) const INTERRUPT: u16 = 0x3c;
    /// End of the header.
    pub(crate) const HEADER_END: u16 = 0x40;
    /// The first extended capability.
    pub(crate) const EXTENDED: u16 = 0x100;
    /// End of configuration space.
    pub(crate) const END: u16 = 0x1000;
}

/// The status register's bit that there is a list of capabilities, in the double word of
/// [`register::COMMAND`].
pub(crate) const HAS_CAPABILITIES: u32 = 1 << 20;

/// Number of BARs of an ordinary function.
pub const BAR_COUNT: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn u63_the_last_register_of_the_last_bus_is_the_end_of_configuration_space() {
        for buses in [1, 2, 256] {
            let len = buses << 20;
            let last = Address::new((buses - 1) as u8, 31, 7).unwrap();
            assert_eq!(last.offset(0xffc, len), Some(len - 4));
            assert_eq!(last.offset(0xfff, len), Some(len - 4));
            assert_eq!(last.offset(0xffc, len - 1), None);
            assert_eq!(last.offset(0, len), Some(len - 4096));
        }
        let [first, second] = [0, 1].map(|bus| Address::new(bus, 0, 0).unwrap());
        assert_eq!((first.offset(0x12, 1 << 20), second.offset(0, 1 << 20)), (Some(0x10), None));
        assert_eq!(Address::new(0, 1, 2).unwrap().offset(8, 1 << 20), Some(0xa008));
        assert_eq!(first.offset(0, 0), None);
    }

    #[test]
    fn addresses_are_read_and_shown() {
        let address: Address = "3a:1f.7".parse().unwrap();
        assert_eq!((address.bus(), address.device(), address.function()), (0x3a, 0x1f, 7));
        assert_eq!(address.id(), 0x3aff);
        assert_eq!(address.to_string(), "3a:1f.7");
        assert_eq!("0000:00:04.0".parse(), Ok(Address::new(0, 4, 0).unwrap()));
        for id in 0..=u16::MAX {
            assert_eq!(Address::from_id(id).to_string().parse(), Ok(Address::from_id(id)));
        }
    }

    #[test]
    fn texts_that_are_no_addresses_are_refused() {
        for text in [
            "",
            "00",
            "00:04",
            "00:20.0",
            "00:04.8",
            "0:4.0",
            "00:+4.0",
            "0001:00:04.0",
            "00:04.00",
            "é:04.0",
        ] {
            assert_eq!(text.parse::<Address>(), Err(NoAddress), "{text}");
        }
        assert_eq!(Address::new(0, 32, 0), None);
        assert_eq!(Address::new(0, 0, 8), None);
    }
}
