//! Entries of the event log: two double words. Source: 48882, 2.5.

use core::fmt;

use crate::{DeviceId, DomainId};

/// An entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The device's entry of the device table is invalid.
    IllegalEntry {
        /// The device.
        device: DeviceId,
        /// Device-visible address of the access.
        address: u64,
    },
    /// A device has used an address that it must not.
    PageFault {
        /// The device.
        device: DeviceId,
        /// Its domain.
        domain: DomainId,
        /// Device-visible address of the access.
        address: u64,
        /// The device wanted to write. Known only if there is a translation.
        is_write: bool,
        /// There is a translation, without the permission or malformed.
        is_present: bool,
        /// The translation has reserved bits, or a level that cannot be.
        is_malformed: bool,
        /// It is an interrupt, and not an access to memory.
        is_interrupt: bool,
    },
    /// The IOMMU could not read the device table or a page table.
    TableError {
        /// The device.
        device: DeviceId,
        /// Host physical address of the entry.
        address: u64,
    },
    /// A command is invalid. The IOMMU reads no more of them.
    IllegalCommand {
        /// Host physical address of the command.
        address: u64,
    },
    /// The IOMMU could not read the command ring. It reads no more of it.
    CommandError {
        /// Host physical address of the command.
        address: u64,
    },
    /// A device has not answered an invalidation. What it keeps is unknown, whether or not the
    /// completion behind it was reported: the log is read before memory is freed by which such a
    /// device may have had access.
    DeviceTimeout {
        /// The device.
        device: DeviceId,
    },
    /// A device has made a request that it must not, for example for a translation.
    InvalidRequest {
        /// The device.
        device: DeviceId,
        /// Device-visible address of the request.
        address: u64,
    },
    /// Another one.
    Unknown([u64; 2]),
}

impl Event {
    /// Decodes an entry, as it is in memory. The tail may have moved before the entry is there:
    /// clear entries after reading, and look again while the first double word is 0.
    #[must_use]
    pub fn decode(entry: [u64; 2]) -> Self {
        let [first, address] = entry;
        let device = DeviceId(first as u16);
        let has = |bit: u32| first >> bit & 1 != 0;
        match first >> 60 {
            1 => Self::IllegalEntry { device, address },
            2 => Self::PageFault {
                device,
                domain: DomainId((first >> 32) as u16),
                address,
                is_write: has(53),
                is_present: has(52),
                is_malformed: has(55),
                is_interrupt: has(51),
            },
            3 | 4 => Self::TableError { device, address },
            5 => Self::IllegalCommand { address },
            6 => Self::CommandError { address },
            7 => Self::DeviceTimeout { device },
            8 => Self::InvalidRequest { device, address },
            _ => Self::Unknown(entry),
        }
    }

    /// The device that caused it, if it was one.
    #[must_use]
    pub const fn device(&self) -> Option<DeviceId> {
        match *self {
            Self::IllegalEntry { device, .. }
            | Self::PageFault { device, .. }
            | Self::TableError { device, .. }
            | Self::DeviceTimeout { device }
            | Self::InvalidRequest { device, .. } => Some(device),
            Self::IllegalCommand { .. } | Self::CommandError { .. } | Self::Unknown(_) => None,
        }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}:{:02x}.{}", self.0 >> 8, self.0 >> 3 & 31, self.0 & 7)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::IllegalEntry { device, address } => {
                write!(f, "device {device} has an invalid entry; it wanted address {address:#x}")
            }
            Self::PageFault { device, is_interrupt: true, address, .. } => {
                write!(f, "device {device} sent an interrupt that it must not: {address:#x}")
            }
            Self::PageFault { device, address, is_malformed: true, .. } => {
                write!(f, "the translation of address {address:#x} for device {device} is malformed")
            }
            Self::PageFault { device, address, is_present: false, .. } => {
                write!(f, "device {device} used address {address:#x}: nothing is there")
            }
            Self::PageFault { device, address, is_write, .. } => {
                let what = if is_write { "write to" } else { "read" };
                write!(f, "device {device} wanted to {what} address {address:#x}, which it may not")
            }
            Self::TableError { device, address } => {
                write!(f, "a table for device {device} cannot be read at {address:#x}")
            }
            Self::IllegalCommand { address } => write!(f, "the command at {address:#x} is invalid"),
            Self::CommandError { address } => write!(f, "the command at {address:#x} cannot be read"),
            Self::DeviceTimeout { device } => {
                write!(f, "device {device} does not answer an invalidation of its translations")
            }
            Self::InvalidRequest { device, address } => {
                write!(f, "device {device} made an invalid request for address {address:#x}")
            }
            Self::Unknown([first, second]) => write!(f, "unknown event {first:#018x} {second:#018x}"),
        }
    }
}
