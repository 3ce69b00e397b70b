//! Fault recording registers, of 128 bits. Source: D51397, 7.3 and 11.4.14.

use core::fmt;

use crate::DeviceId;

/// In the second double word: the register holds a fault, until software writes 1 to this bit.
pub const HELD: u64 = 1 << 63;

/// What a device has done, or the IOMMU found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The device.
    pub device: DeviceId,
    /// Device-visible address of the access, by pages; of an interrupt its index.
    pub address: u64,
    /// The device wanted to write.
    pub is_write: bool,
    /// The specification's number of the reason (7.2.3 and 7.2.4).
    pub reason: u8,
}

impl Fault {
    /// Decodes a register; `None` if it holds no fault.
    #[must_use]
    pub fn decode([first, second]: [u64; 2]) -> Option<Self> {
        let reason = (second >> 32) as u8;
        let is_interrupt = (0x20..0x40).contains(&reason);
        (second & HELD != 0).then_some(Self {
            device: DeviceId(second as u16),
            address: if is_interrupt { first >> 48 } else { first & !0xfff },
            is_write: second >> 62 & 1 == 0,
            reason,
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, address, is_write, reason } = *self;
        match reason {
            1 | 2 => write!(f, "device {device} is blocked; it wanted address {address:#x}"),
            4 => write!(f, "device {device} used address {address:#x}: nothing can be there"),
            5 | 6 => {
                let what = if is_write { "write to" } else { "read" };
                write!(f, "device {device} wanted to {what} address {address:#x}, which it may not")
            }
            3 | 7..=13 => write!(
                f,
                "a table for device {device} is malformed or cannot be read (reason {reason:#x}); it wanted \
                 address {address:#x}"
            ),
            0x20..=0x3f => write!(
                f,
                "device {device} sent an interrupt that it must not: number {address:#x} (reason {reason:#x})"
            ),
            _ => write!(f, "device {device} caused fault {reason:#x} at address {address:#x}"),
        }
    }
}
