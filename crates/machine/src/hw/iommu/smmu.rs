//! The commands of SMMUv3, and what it reads, decoded from the specification, not by the crate
//! under test: Arm System Memory Management Unit Architecture Specification, version 3 (IHI 0070),
//! 4.3, 4.4, 4.7, 5.2 and 5.4.
//!
//! Streams are numbered like devices. A change of a word is seen at once or not before CFGI; that
//! mixtures of words are invalid is tested beside the steps of a change (`iommu::smmu::change`).

use paging::Level;
use stay::iommu::smmu::Structure;

use super::{DeviceEntry, Order};
use crate::hw::cache::Invalidation;

/// Where the context descriptors are: that of domain 0 is the first. The address is not used.
pub(crate) const DESCRIPTORS: u64 = 0x4_0000;
const DESCRIPTOR_BYTES: u64 = 64;
/// Structures of each kind.
const COUNT: usize = 32;

/// Bits of an address in words of entries and descriptors.
const ADDRESS: u64 = 0x000f_ffff_ffff_fff0;

/// The entries of streams and the context descriptors.
#[derive(Debug, Default)]
pub(crate) struct Structures {
    entries: [[u64; 8]; COUNT],
    descriptors: [[u64; 8]; COUNT],
}

impl Structures {
    pub(crate) fn load(&self, of: Structure) -> [u64; 8] {
        match of {
            Structure::Entry(stream) => self.entries[stream.0 as usize],
            Structure::Descriptor(domain) => self.descriptors[usize::from(domain.0)],
        }
    }

    pub(super) fn store(&mut self, of: Structure, word: usize, value: u64) {
        let words = match of {
            Structure::Entry(stream) => &mut self.entries[stream.0 as usize],
            Structure::Descriptor(domain) => &mut self.descriptors[usize::from(domain.0)],
        };
        words[word] = value;
    }

    /// How a device translates. `None` if it does not: no other way than by stage 1 is used.
    pub(super) fn entry(&self, device: u16) -> Option<DeviceEntry> {
        let [head, ..] = self.entries[usize::from(device)];
        // V, and Config: stage 1.
        if head & 1 == 0 || head >> 1 & 7 != 5 {
            return None;
        }
        let offset = (head & ADDRESS & !0x3f).checked_sub(DESCRIPTORS)?;
        let [head, table, ..] = *self.descriptors.get((offset / DESCRIPTOR_BYTES) as usize)?;
        // V, AA64, T0SZ of 48 bits, TG0 of 4 KiB, EPD0.
        let is_usable = head >> 31 & 1 == 1 && head >> 41 & 1 == 1 && head & 0x3f == 16;
        let is_walked = head >> 6 & 3 == 0 && head >> 14 & 1 == 0;
        let entry = DeviceEntry { domain: (head >> 48) as u16, root: table & ADDRESS };
        (is_usable && is_walked).then_some(entry)
    }
}

/// The meaning of a command; `None` if it is none, or one that the machine's software has no use
/// for.
pub(crate) fn decode([first, second]: [u64; 2]) -> Option<Order> {
    let has_only = |bits: u64| first & !(bits | 0xff) == 0;
    let device = u16::try_from(first >> 32).ok();
    match first & 0xff {
        0x03 if has_only(0xffff << 32) && second == 1 => Some(Order::Entry { former: None, device: device? }),
        0x05 if has_only(0xffff << 32) && second == 1 => Some(Order::Descriptor { device: device? }),
        0x11 if has_only(0xffff << 48) && second == 0 => {
            let what = Invalidation::Nested { start: 0, len: u64::MAX, level: None, walk: true };
            Some(Order::Pages { domain: (first >> 48) as u16, what })
        }
        0x12 if has_only(0xffff << 48 | 0x1f << 20 | 0x1f << 12) => {
            let (num, scale) = (first >> 12 & 0x1f, first >> 20 & 0x1f);
            let (granule, hint, walk) = (second >> 10 & 3, second >> 8 & 3, second & 1 == 0);
            let (len, level) = match (granule, hint) {
                // One address, of whatever size its page is.
                (0, _) if num == 0 && scale == 0 => (1, None),
                (1, hint) if (num, scale, hint) != (0, 0, 0) => ((num + 1) << scale, level(hint)),
                _ => return None,
            };
            let (start, len) = (second & !Level::Page4K.offset_mask(), len << Level::Page4K.shift());
            let what = Invalidation::Nested { start, len, level, walk };
            Some(Order::Pages { domain: (first >> 48) as u16, what })
        }
        0x46 if has_only(0) && second == 0 => Some(Order::Sync),
        _ => None,
    }
}

/// The level that TTL names.
const fn level(hint: u64) -> Option<Level> {
    match hint {
        1 => Some(Level::Page1G),
        2 => Some(Level::Page2M),
        3 => Some(Level::Page4K),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::iommu::smmu::command::{Depth, Span, cfgi_cd, cfgi_ste, sync_poll, tlbi_nh_asid, tlbi_nh_va};
    use ::iommu::smmu::{Asid, Granule, LeafLevel, StreamId};

    #[test]
    fn p16_commands_of_an_smmu_are_read_as_the_encoder_means_them() {
        let decoded = |command: ::iommu::Command| decode(command.0);
        let by = |span| decoded(tlbi_nh_va(Asid(3), span));
        let nested = |start, len, level, walk| {
            Some(Order::Pages { domain: 3, what: Invalidation::Nested { start, len, level, walk } })
        };
        assert_eq!(
            decoded(cfgi_ste(StreamId(9), Depth::Leaf)),
            Some(Order::Entry { former: None, device: 9 })
        );
        assert_eq!(decoded(cfgi_cd(StreamId(9))), Some(Order::Descriptor { device: 9 }));
        assert_eq!(decoded(sync_poll()), Some(Order::Sync));
        assert_eq!(decoded(tlbi_nh_asid(Asid(3))), nested(0, u64::MAX, None, true));
        assert_eq!(by(Span::address(0x5000, Depth::Leaf)), nested(0x5000, 0x1000, None, false));
        assert_eq!(by(Span::address(0x5000, Depth::All)), nested(0x5000, 0x1000, None, true));
        let range =
            |units, scale, leaf| by(Span::range(Granule::Size4K, 0x20_0000, scale, units, leaf, Depth::Leaf));
        assert_eq!(range(3, 2, None), nested(0x20_0000, 12 << 12, None, false));
        let hinted = nested(0x20_0000, 2 << 21, Some(Level::Page2M), false);
        assert_eq!(range(2, 9, Some(LeafLevel::Two)), hinted);
        assert_eq!(decode([0x10, 0]), None);
    }

    #[test]
    fn p16_a_device_translates_by_its_entry_and_the_descriptor_of_that() {
        let mut structures = Structures::default();
        let (entry, descriptor) = (StreamId(9), ::iommu::DomainId(3));
        assert_eq!(structures.entry(9), None);
        structures.store(Structure::Entry(entry), 0, 1 | 5 << 1 | (DESCRIPTORS + 3 * 64));
        assert_eq!(structures.entry(9), None, "no descriptor");
        let head = 16 | 1 << 31 | 1 << 41 | 7 << 48;
        structures.store(Structure::Descriptor(descriptor), 0, head);
        structures.store(Structure::Descriptor(descriptor), 1, 0x1000);
        assert_eq!(structures.entry(9), Some(DeviceEntry { domain: 7, root: 0x1000 }));
        structures.store(Structure::Entry(entry), 0, 1);
        assert_eq!(structures.entry(9), None, "it is aborted");
    }
}
