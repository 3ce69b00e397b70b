//! The commands for ranges of addresses. Source: 48882, 2.4.3 and 2.4.4.
//!
//! A command names a block of 2^n pages, aligned to its size. One that is larger than asked for
//! drops more, never less.

use core::ops::Range;

use super::command::{invalidate_device, invalidate_device_pages, invalidate_pages};
use crate::blocks::{Blocks, Depth};
use crate::{Command, DeviceId, DomainId, Invalidations};

/// AMD-Vi's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commands;

impl Invalidations for Commands {
    fn device(&self, device: DeviceId, _: DomainId) -> Command {
        invalidate_device(device)
    }

    fn pages(
        &self,
        domain: DomainId,
        depth: Depth,
        range: Range<u64>,
        commands_max: usize,
    ) -> impl Iterator<Item = Command> {
        Blocks::of(range, commands_max).map(move |block| invalidate_pages(domain, depth, block.operand()))
    }

    fn device_pages(&self, device: DeviceId, queue_depth: u8, range: Range<u64>) -> Option<Command> {
        let block = Blocks::of(range, 1).next()?;
        Some(invalidate_device_pages(device, queue_depth, block.operand()))
    }
}
