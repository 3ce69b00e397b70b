//! The IVRS: the ACPI table that says where IOMMUs are and which devices are behind each. Source:
//! 48882, 5.2.

use crate::DeviceId;
use crate::bytes::{u16_at, u64_at};
pub use crate::scope::Scope;
use crate::scope::requester;

/// Bytes of the table before its first block.
const HEADER: usize = 48;
/// Types of blocks that describe an IOMMU. Of several blocks for one IOMMU, the one with the
/// highest type counts (5.2.2).
const UNIT_TYPES: [u8; 3] = [0x10, 0x11, 0x40];

/// An IOMMU, as a block of the table describes it.
#[derive(Clone, Copy, Debug)]
pub struct Unit<'a> {
    kind: u8,
    /// The IOMMU's own function.
    pub device: DeviceId,
    /// Host physical address of its registers.
    pub registers: u64,
    /// Its PCI segment.
    pub segment: u16,
    /// The list of devices.
    entries: &'a [u8],
}

/// The IOMMUs that a table lists, each one once. What is malformed ends the list.
pub fn units(table: &[u8]) -> impl Iterator<Item = Unit<'_>> {
    blocks(table).filter(move |unit| {
        // The best description of this IOMMU.
        blocks(table).filter(|other| other.is_same(unit)).map(|other| other.kind).max() == Some(unit.kind)
    })
}

fn blocks(table: &[u8]) -> impl Iterator<Item = Unit<'_>> {
    all_blocks(table).filter_map(Unit::read)
}

fn all_blocks(table: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = table.get(HEADER..).unwrap_or_default();
    core::iter::from_fn(move || {
        let len = usize::from(u16_at(rest, 2)?);
        let block = rest.get(..len).filter(|_| len >= 4)?;
        rest = rest.get(len..)?;
        Some(block)
    })
}

/// Devices, from the first to the last, for which firmware wants memory mapped at its own address:
/// it has set them up to use that, and goes on (5.2.3).
pub fn firmware_memory(table: &[u8]) -> impl Iterator<Item = (DeviceId, DeviceId)> {
    all_blocks(table).filter_map(|block| {
        let first = u16_at(block, 4)?;
        let last = match *block.first()? {
            0x20 => return Some((DeviceId(0), DeviceId(u16::MAX))),
            0x21 => first,
            0x22 => u16_at(block, 6)?,
            _ => return None,
        };
        Some((DeviceId(first), DeviceId(last)))
    })
}

impl<'a> Unit<'a> {
    fn read(block: &'a [u8]) -> Option<Self> {
        let kind = *block.first()?;
        // The two later types have the extended features here.
        let header = if kind == 0x10 { 24 } else { 40 };
        UNIT_TYPES.contains(&kind).then_some(())?;
        Some(Self {
            kind,
            device: DeviceId(u16_at(block, 4)?),
            registers: u64_at(block, 8)?,
            segment: u16_at(block, 16)?,
            entries: block.get(header..)?,
        })
    }

    fn is_same(&self, other: &Self) -> bool {
        self.device == other.device && self.segment == other.segment
    }

    /// The devices behind it, in the order of the table. What is malformed ends the list.
    pub fn scopes(&self) -> impl Iterator<Item = Scope> + 'a {
        let mut rest = self.entries;
        // The first device of a range whose end comes next, and its alias.
        let mut open = None;
        core::iter::from_fn(move || {
            loop {
                let kind = *rest.first()?;
                let entry = rest.get(..entry_len(kind, rest)?)?;
                rest = rest.get(entry.len()..)?;
                let device = DeviceId(u16_at(entry, 1)?);
                let one = |alias| Scope::Devices { first: device, last: device, alias };
                let alias = || u16_at(entry, 5).map(DeviceId);
                match kind {
                    0x01 => {
                        return Some(Scope::Devices {
                            first: DeviceId(0),
                            last: DeviceId(u16::MAX),
                            alias: None,
                        });
                    }
                    0x02 | 0x46 => return Some(one(None)),
                    0x42 => return Some(one(alias())),
                    0x03 | 0x47 => open = Some((device, None)),
                    0x43 => open = Some((device, alias())),
                    0x04 => {
                        if let Some((first, alias)) = open.take() {
                            return Some(Scope::Devices { first, last: device, alias });
                        }
                    }
                    0x48 => {
                        // The id is behind the settings, and the kind at the end.
                        let device = DeviceId(u16_at(entry, 5)?);
                        match entry.get(7) {
                            Some(1) => return Some(Scope::IoApic { device, number: *entry.get(4)? }),
                            Some(2) => return Some(Scope::Hpet { device }),
                            _ => {}
                        }
                    }
                    // Padding, devices of ACPI without PCI, and what is unknown.
                    _ => {}
                }
            }
        })
    }

    /// The id with which requests of a device reach this IOMMU; `None` if it is not behind it.
    #[must_use]
    pub fn requester(&self, device: DeviceId) -> Option<DeviceId> {
        requester(self.scopes(), device)
    }
}

/// Length of an entry by its type (5.2.2.1).
fn entry_len(kind: u8, entry: &[u8]) -> Option<usize> {
    Some(match kind {
        0x00..=0x3f => 4,
        0x40..=0x7f => 8,
        0x80..=0xbf => 16,
        0xc0..=0xef => 32,
        // An identifier of ACPI, with the length of its text at its end.
        0xf0 => 22 + usize::from(*entry.get(21)?),
        _ => return None,
    })
}
