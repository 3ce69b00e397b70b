//! The commands for ranges of addresses. Source: 48882, 2.4.3 and 2.4.4.
//!
//! A command names a block of 2^n pages, aligned to its size. One that is larger than asked for
//! drops more, never less.

use core::ops::Range;

use super::command::{invalidate_device_pages, invalidate_pages};
use crate::blocks::{Blocks, Depth};
use crate::{Command, DeviceId, DomainId};

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
