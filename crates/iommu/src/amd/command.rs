//! Encodings of commands. Source: 48882, 2.4.

use crate::blocks::Depth;
use crate::{Command, DeviceId, DomainId};

/// Operation codes, in bits 63:60 of the first double word.
const COMPLETION_WAIT: u64 = 1;
const INVALIDATE_DEVTAB_ENTRY: u64 = 2;
const INVALIDATE_IOMMU_PAGES: u64 = 3;
const INVALIDATE_IOTLB_PAGES: u64 = 4;
const INVALIDATE_INTERRUPT_TABLE: u64 = 5;
const INVALIDATE_IOMMU_ALL: u64 = 8;

/// COMPLETION_WAIT: a store is made.
const STORE: u64 = 1 << 0;
/// COMPLETION_WAIT: later commands begin after it. So the commands in front of two of them are
/// complete when the second one is.
const FLUSH_QUEUE: u64 = 1 << 2;
/// Where the store may go.
const STORE_ADDRESS: u64 = 0x000f_ffff_ffff_fff8;

/// INVALIDATE_IOMMU_PAGES: tables as well.
const TABLES: u64 = 1 << 1;
/// The number of requests that the device may have queued, in INVALIDATE_IOTLB_PAGES.
const MAX_PENDING: u64 = 24;

const fn opcode(code: u64) -> u64 {
    code << 60
}

/// When all commands before it are complete, the IOMMU stores `data` at `address` (a multiple of 8,
/// a host physical address below 2^52); `None` for another address. Later commands begin after
/// that.
#[must_use]
pub const fn completion_wait(address: u64, data: u64) -> Option<Command> {
    if address & !STORE_ADDRESS != 0 {
        return None;
    }
    Some(Command([opcode(COMPLETION_WAIT) | address | FLUSH_QUEUE | STORE, data]))
}

/// The device's entry of the device table has changed.
#[must_use]
pub const fn invalidate_device(device: DeviceId) -> Command {
    Command([opcode(INVALIDATE_DEVTAB_ENTRY) | device.0 as u64, 0])
}

/// The device's interrupt remapping table has changed.
#[must_use]
pub const fn invalidate_interrupts(device: DeviceId) -> Command {
    Command([opcode(INVALIDATE_INTERRUPT_TABLE) | device.0 as u64, 0])
}

/// Everything that the IOMMU keeps goes, for all domains and devices. Only where the extended
/// features have InvAllSup.
#[must_use]
pub const fn invalidate_all() -> Command {
    Command([opcode(INVALIDATE_IOMMU_ALL), 0])
}

/// Translations of a domain go, for the addresses that an operand names: see
/// [`range`](super::range).
pub(super) const fn invalidate_pages(domain: DomainId, depth: Depth, operand: u64) -> Command {
    let tables = match depth {
        Depth::Leaves => 0,
        Depth::Tables => TABLES,
    };
    Command([opcode(INVALIDATE_IOMMU_PAGES) | (domain.0 as u64) << 32, operand | tables])
}

/// The same for a device that keeps translations itself. `queue_depth` is from its ATS capability:
/// the number of invalidations that it accepts at once, 32 for 0.
pub(super) const fn invalidate_device_pages(device: DeviceId, queue_depth: u8, operand: u64) -> Command {
    // The queue is the device's own: its id is the device's.
    let device = device.0 as u64;
    let pending = match queue_depth & 31 {
        0 => 32,
        depth => depth as u64,
    };
    Command([opcode(INVALIDATE_IOTLB_PAGES) | device | pending << MAX_PENDING | device << 32, operand])
}
