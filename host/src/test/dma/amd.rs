//! An emulated AMD-Vi keeps translations until it is told.
//!
//! The event log is not looked at: QEMU 7.2 never writes to it, for a mask that it takes for "the
//! log has overflowed" is never 0 (`amdvi_test_mask`).

use super::vi::{ROOT, Vi};
use crate::test::prelude::*;
use iommu::amd::Commands;
use iommu::amd::command::invalidate_device;
use iommu::amd::table::DeviceEntry;
use iommu::{Depth, DeviceId, DomainId, Invalidations};

/// The device: function 0 of device 5.
const DEVICE: DeviceId = DeviceId(5 << 3);
const DOMAIN: DomainId = DomainId(7);

/// Device-visible addresses: a page that it reads, and one that it writes to.
const SOURCE: u64 = 0x0804_2000;
const TARGET: u64 = 0x0804_5000;
/// Pages of memory.
const PATTERN: u64 = 0x20_0000;
const OLD: u64 = 0x20_1000;
const NEW: u64 = 0x20_2000;

fn copy(vi: &Vi, value: u64) -> Result<()> {
    vi.told.board.write(PATTERN, value);
    vi.edu.load(SOURCE)?;
    vi.edu.store(TARGET)
}

/// Tells the IOMMU that a page is no longer what it was, and waits.
fn forget(vi: &Vi, domain: DomainId, page: u64) -> Result<()> {
    let commands = Commands.pages(domain, Depth::Leaves, page..page + 0x1000, 1);
    vi.told.wait_for(commands)
}

pub(super) fn keeps_until_told(room: &Room<'_>) -> Result<()> {
    let vi = Vi::start(room.directory, DEVICE)?;
    let entry = DeviceEntry::translated(ROOT, DOMAIN).context("the entry is refused")?;
    vi.set_entry(DEVICE, entry);
    vi.told.wait_for([invalidate_device(DEVICE)])?;
    vi.map(SOURCE, Some((PATTERN, false)));
    vi.map(TARGET, Some((OLD, true)));
    let found = |page, value, when: &str| vi.told.expect(page, value, when);
    copy(&vi, 1)?;
    found(OLD, 1, "a page that is mapped")?;

    vi.map(TARGET, None);
    copy(&vi, 2)?;
    found(OLD, 2, "unmapped, without an invalidation: the IOMMU keeps the translation")?;
    forget(&vi, DomainId(DOMAIN.0 + 1), TARGET)?;
    copy(&vi, 3)?;
    found(OLD, 3, "after an invalidation of another domain")?;

    forget(&vi, DOMAIN, TARGET)?;
    copy(&vi, 4)?;
    found(OLD, 3, "after the invalidation")?;

    vi.map(TARGET, Some((NEW, true)));
    forget(&vi, DOMAIN, TARGET)?;
    copy(&vi, 5)?;
    found(NEW, 5, "mapped to another page")?;
    vi.map(TARGET, Some((NEW, false)));
    forget(&vi, DOMAIN, TARGET)?;
    copy(&vi, 6)?;
    found(NEW, 5, "read-only")?;

    vi.map(TARGET, Some((NEW, true)));
    vi.set_entry(DEVICE, DeviceEntry::BLOCKED);
    let all = Commands.pages(DOMAIN, Depth::Tables, 0..u64::MAX, 1);
    vi.told.wait_for([invalidate_device(DEVICE)].into_iter().chain(all))?;
    copy(&vi, 7)?;
    found(NEW, 5, "the device is blocked")?;
    found(OLD, 3, "at the end")
}
