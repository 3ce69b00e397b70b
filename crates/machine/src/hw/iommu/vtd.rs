//! The descriptors of VT-d, decoded from the specification, not by the crate under test: Intel
//! Virtualization Technology for Directed I/O, D51397, 6.5.2.

use paging::Level;

use super::Order;
use crate::hw::cache::Invalidation;

/// The largest block that is invalidated by its pages: 2 MiB.
pub(crate) const ORDER_MAX: u8 = 9;

/// The meaning of two double words; `None` if they are no descriptor, or one that the machine's
/// software has no use for.
pub(crate) fn decode([first, second]: [u64; 2]) -> Option<Order> {
    let (low, device, domain) = (first & 0xffff, (first >> 32) as u16, (first >> 16) as u16);
    let everything = Invalidation::Nested { start: 0, len: u64::MAX, level: None, walk: true };
    match low {
        // Of one device, without a mask of functions.
        0x31 if first >> 48 == 0 && second == 0 => Some(Order::Entry { device, former: Some(domain) }),
        // With both kinds of drain.
        0xe2 if first >> 32 == 0 && second == 0 => Some(Order::Pages { domain, what: everything }),
        0xf2 if first >> 32 == 0 && second & 0xf80 == 0 => {
            let (order, walk) = (second & 0x3f, second & 0x40 == 0);
            let (start, len) = (second & !Level::Page4K.offset_mask(), Level::Page4K.size() << order);
            let is_block = order <= ORDER_MAX.into() && start & (len - 1) == 0;
            is_block.then_some(Order::Pages {
                domain,
                what: Invalidation::Nested { start, len, level: None, walk },
            })
        }
        // SW and FN; no interrupt.
        0x65 if first >> 16 & 0xffff == 0 && second & 3 == 0 => {
            Some(Order::Wait { data: first >> 32, holds: true })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p16_descriptors_are_read_as_the_encoder_means_them() {
        use ::iommu::vtd::command::{Commands, everything, wait};
        use ::iommu::{Depth, DeviceId, DomainId, Invalidations};
        let commands = Commands { order_max: Some(ORDER_MAX) };
        let pages = |depth, range| commands.pages(DomainId(3), depth, range, 1).next().unwrap();
        let nested = |start, len, walk| Order::Pages {
            domain: 3,
            what: Invalidation::Nested { start, len, level: None, walk },
        };
        for (depth, walk) in [(Depth::Leaves, false), (Depth::Tables, true)] {
            for (range, len) in [(0x5000..0x6000, 0x1000), (0x20_0000..0x40_0000, 0x20_0000)] {
                let start = range.start;
                assert_eq!(decode(pages(depth, range).0), Some(nested(start, len, walk)));
            }
            assert_eq!(decode(pages(depth, 0..1 << 22).0), Some(nested(0, u64::MAX, true)), "too large");
        }
        let entry = commands.device(DeviceId(9), DomainId(3));
        assert_eq!(decode(entry.0), Some(Order::Entry { device: 9, former: Some(3) }));
        assert_eq!(decode(wait(0x1000, 7).unwrap().0), Some(Order::Wait { data: 7, holds: true }));
        assert!(everything().into_iter().all(|command| decode(command.0).is_none()));
    }
}
