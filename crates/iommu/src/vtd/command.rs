//! Descriptors of the invalidation queue, of 128 bits. Source: D51397, 6.5.2.

use core::ops::Range;

use crate::blocks::{Blocks, Depth, PAGE_SHIFT};
use crate::{Command, DeviceId, DomainId, Invalidations};

/// Types of descriptors, in bits 3:0.
const CONTEXT: u64 = 1;
const IOTLB: u64 = 2;
const DEVICE_TLB: u64 = 3;
const INTERRUPTS: u64 = 4;
const WAIT: u64 = 5;

/// How much goes, in bits 5:4.
const GLOBAL: u64 = 1 << 4;
const OF_DOMAIN: u64 = 2 << 4;
/// A device's context, or a domain's block of pages.
const SELECTED: u64 = 3 << 4;
/// INTERRUPTS: a block of entries.
const BLOCK: u64 = 1 << 4;
const DOMAIN_SHIFT: u32 = 16;
const DEVICE_SHIFT: u32 = 32;

/// IOTLB: writes and reads that are on their way are waited for.
const DRAINS: u64 = 1 << 6 | 1 << 7;
/// IOTLB: entries of tables stay.
const LEAVES: u64 = 1 << 6;
/// WAIT: the data is stored; later descriptors begin after it.
const STORE_AND_FENCE: u64 = 1 << 5 | 1 << 6;
/// Where the store may go.
const STORE_ADDRESS: u64 = 0x000f_ffff_ffff_fffc;

/// The descriptors of an IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commands {
    /// The largest block that it invalidates by its pages: 2 to the power of this. `None` if it
    /// invalidates domains as a whole.
    pub order_max: Option<u8>,
}

impl Invalidations for Commands {
    fn device(&self, device: DeviceId, former: DomainId) -> Command {
        let former = (former.0 as u64) << DOMAIN_SHIFT;
        Command([CONTEXT | SELECTED | former | (device.0 as u64) << DEVICE_SHIFT, 0])
    }

    fn pages(
        &self,
        domain: DomainId,
        depth: Depth,
        range: Range<u64>,
        commands_max: usize,
    ) -> impl Iterator<Item = Command> {
        let order_max = self.order_max.map(u32::from);
        let target = IOTLB | DRAINS | (domain.0 as u64) << DOMAIN_SHIFT;
        let hint = if depth == Depth::Leaves { LEAVES } else { 0 };
        let blocks = Blocks::of(range, if order_max.is_some() { commands_max } else { 1 });
        blocks.map(move |block| match order_max {
            Some(max) if block.order <= max => {
                Command([target | SELECTED, block.page << PAGE_SHIFT | hint | u64::from(block.order)])
            }
            _ => Command([target | OF_DOMAIN, 0]),
        })
    }

    fn device_pages(&self, device: DeviceId, queue_depth: u8, range: Range<u64>) -> Option<Command> {
        let block = Blocks::of(range, 1).next()?;
        let pending = (queue_depth & 31) as u64;
        Some(Command([DEVICE_TLB | pending << 16 | (device.0 as u64) << DEVICE_SHIFT, block.operand()]))
    }
}

/// When all descriptors before it are complete, the IOMMU stores `data` at `address` (a multiple of
/// 4, a host physical address below 2^52); `None` for another address. Later ones begin after that.
#[must_use]
pub const fn wait(address: u64, data: u32) -> Option<Command> {
    if address & !STORE_ADDRESS != 0 {
        return None;
    }
    Some(Command([WAIT | STORE_AND_FENCE | (data as u64) << 32, address]))
}

/// The position whose lower half was reported: that within 2^31 of another one.
#[must_use]
pub const fn position(reported: u32, near: u64) -> u64 {
    let distance = reported.wrapping_sub(near as u32) as i32;
    near.wrapping_add(distance as i64 as u64)
}

/// Everything that the IOMMU keeps goes: of contexts, translations and interrupts. Contexts go
/// first: by a former one it would keep more translations.
#[must_use]
pub const fn everything() -> [Command; 3] {
    [Command([CONTEXT | GLOBAL, 0]), Command([IOTLB | GLOBAL | DRAINS, 0]), Command([INTERRUPTS, 0])]
}

/// The entries of the interrupt remapping table from the first one on, `2^order` of them and
/// aligned to that, have changed; of an IOMMU that invalidates blocks of `order_max` at most.
#[must_use]
pub const fn invalidate_interrupts(first: u16, order: u8, order_max: u8) -> Command {
    if order > order_max {
        return Command([INTERRUPTS, 0]);
    }
    Command([INTERRUPTS | BLOCK | (order as u64) << 27 | (first as u64) << 32, 0])
}
