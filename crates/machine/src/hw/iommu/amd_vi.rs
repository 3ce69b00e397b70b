//! The commands of AMD-Vi, decoded from the specification, not by the crate under test: AMD I/O
//! Virtualization Technology (IOMMU) Specification, 48882, 2.4.

use paging::Level;

use super::Order;
use crate::hw::cache::Invalidation;

/// The offset in a page.
const OFFSET: u64 = Level::Page4K.offset_mask();

/// What an address with the bits S and PDE names.
const fn named(operand: u64) -> Invalidation {
    let (walk, page) = (operand & 2 != 0, operand >> 12);
    // With S, the lowest zero says the size.
    let bits = if operand & 1 == 0 { 0 } else { page.trailing_ones() + 1 };
    if bits >= 52 {
        return Invalidation::Nested { start: 0, len: u64::MAX, level: None, walk };
    }
    let len = Level::Page4K.size() << bits;
    Invalidation::Nested { start: operand & !(len - 1) & !OFFSET, len, level: None, walk }
}

/// The meaning of two double words; `None` if they are no command, or one that the machine's
/// software has no use for.
pub(crate) fn decode([first, second]: [u64; 2]) -> Option<Order> {
    let (device, upper) = (first as u16, (first >> 32) as u16);
    let has_only = |bits: u64| first & !(0xf << 60 | bits) == 0;
    match first >> 60 {
        // S and F; no interrupt.
        1 if has_only(0x000f_ffff_ffff_fff8 | 5) && first & 1 != 0 => {
            Some(Order::Wait { data: second, holds: first & 4 != 0 })
        }
        2 if has_only(0xffff) && second == 0 => Some(Order::Entry { device, former: None }),
        3 if has_only(0xffff << 32) && second & OFFSET & !3 == 0 => {
            Some(Order::Pages { domain: upper, what: named(second) })
        }
        4 if has_only(0xffff << 32 | 0xff << 24 | 0xffff) && second & OFFSET & !1 == 0 => {
            // A device keeps no upper levels.
            Some(Order::DevicePages { device, what: named(second) })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p16_commands_are_read_as_the_encoder_means_them() {
        use ::iommu::amd::Commands;
        use ::iommu::amd::command::{completion_wait, invalidate_all, invalidate_device};
        use ::iommu::{Depth, DeviceId, DomainId, Invalidations};
        let nested = |start, len, walk| Invalidation::Nested { start, len, level: None, walk };
        let decoded = |command: iommu::Command| decode(command.0);
        for (range, len) in [(0x5000..0x6000, 0x1000), (0x4000..0x8000, 0x4000), (1 << 30..2 << 30, 1 << 30)]
        {
            let start = range.start;
            for (depth, walk) in [(Depth::Leaves, false), (Depth::Tables, true)] {
                let command = Commands.pages(DomainId(3), depth, range.clone(), 1).next().unwrap();
                let order = Order::Pages { domain: 3, what: nested(start, len, walk) };
                assert_eq!(decoded(command), Some(order));
            }
            let order = Order::DevicePages { device: 9, what: nested(start, len, false) };
            assert_eq!(decoded(Commands.device_pages(DeviceId(9), 3, range).unwrap()), Some(order));
        }
        let everything = Commands.pages(DomainId(3), Depth::Tables, 0..u64::MAX, 1).next().unwrap();
        assert_eq!(decoded(everything), Some(Order::Pages { domain: 3, what: nested(0, u64::MAX, true) }));
        assert_eq!(decoded(invalidate_device(DeviceId(9))), Some(Order::Entry { device: 9, former: None }));
        let wait = completion_wait(0x1000, 7).unwrap();
        assert_eq!(decoded(wait), Some(Order::Wait { data: 7, holds: true }));
        assert_eq!(decoded(invalidate_all()), None);
    }
}
