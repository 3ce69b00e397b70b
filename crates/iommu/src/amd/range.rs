//! The commands for ranges of addresses. Source: 48882, 2.4.3 and 2.4.4.
//!
//! A command names a block of 2^n pages, aligned to its size. With the S bit, the lowest bits of
//! the page number say the size: as many ones as the size has doublings beyond two pages, then a
//! zero. A block that is larger than asked for drops more, never less. Sizes above 2^52 bytes are
//! everything: their zero would be among the bits that extend the sign.

use core::ops::Range;

use super::command::{Depth, invalidate_device_pages, invalidate_pages};
use crate::{Command, DeviceId, DomainId};

/// Bits of the offset in a page.
const PAGE_SHIFT: u32 = 12;
/// Pages of the largest block that is not everything, as a power of two.
const ORDER_MAX: u32 = 52 - PAGE_SHIFT;
/// The S bit: the address contains the size.
const SIZE: u64 = 1 << 0;
/// Everything: all ones but the last bit of the page number.
const EVERYTHING: u64 = 0x7fff_ffff_ffff_f000 | SIZE;

/// The commands that drop a domain's translations of `range`, a range of device-visible addresses
/// in bytes; none if it is empty. Its ends are widened to pages of 4 KiB.
///
/// There are at most `commands_max` of them, and one at least. As many as are needed to name no
/// other page if they suffice, otherwise one for the smallest block around the range.
pub fn pages(
    domain: DomainId,
    depth: Depth,
    range: Range<u64>,
    commands_max: usize,
) -> impl Iterator<Item = Command> {
    Blocks::of(range, commands_max).map(move |block| invalidate_pages(domain, depth, block.operand()))
}

/// The command that drops the translations of `range` in the device itself; `None` if it is empty.
/// For a device that uses ATS, after the completion of [`pages`]: until then the IOMMU may answer
/// the device with what is stale. `queue_depth` is from the device's ATS capability.
///
/// It is one command for the smallest block around the range, since a device answers each.
#[must_use]
pub fn device_pages(device: DeviceId, queue_depth: u8, range: Range<u64>) -> Option<Command> {
    let block = Blocks::of(range, 1).next()?;
    Some(invalidate_device_pages(device, queue_depth, block.operand()))
}

/// 2^`order` pages, from the page with this number on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    page: u64,
    order: u32,
}

impl Block {
    /// The address as commands have it, with the S bit.
    const fn operand(self) -> u64 {
        match self.order {
            0 => self.page << PAGE_SHIFT,
            order if order > ORDER_MAX => EVERYTHING,
            order => (self.page | ((1 << (order - 1)) - 1)) << PAGE_SHIFT | SIZE,
        }
    }
}

/// The blocks of a range of pages, in ascending order.
#[derive(Clone, Debug)]
struct Blocks {
    /// The next page.
    next: u64,
    /// How many are left.
    left: u64,
}

impl Blocks {
    /// The blocks for a range of bytes, at most `max`.
    fn of(range: Range<u64>, max: usize) -> Self {
        if range.is_empty() {
            return Self { next: 0, left: 0 };
        }
        let first = range.start >> PAGE_SHIFT;
        let last = (range.end - 1) >> PAGE_SHIFT;
        let exact = Self { next: first, left: last - first + 1 };
        let has_blocks = exact.left < 2 << ORDER_MAX && exact.clone().nth(max).is_none();
        if has_blocks { exact } else { Self::around(first, last) }
    }

    /// The smallest block that contains both pages.
    const fn around(first: u64, last: u64) -> Self {
        let order = u64::BITS - (first ^ last).leading_zeros();
        let size = 1 << order;
        Self { next: first & !(size - 1), left: size }
    }
}

impl Iterator for Blocks {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        let order = self.left.checked_ilog2()?.min(self.next.trailing_zeros());
        let block = Block { page: self.next, order };
        self.next += 1 << order;
        self.left -= 1 << order;
        Some(block)
    }
}
