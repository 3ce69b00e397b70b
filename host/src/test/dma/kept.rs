//! An emulated IOMMU keeps translations until it is told.

use super::edu::Edu;
use super::ring::RingIommu;
use crate::test::prelude::*;
use iommu::{Depth, DeviceId, DomainId, Invalidations, Port};

/// The device: function 0 of device 5.
pub(super) const DEVICE: DeviceId = DeviceId(5 << 3);
pub(super) const DOMAIN: DomainId = DomainId(7);

/// Device-visible addresses: a page that it reads, and one that it writes to.
pub(super) const SOURCE: u64 = 0x0804_2000;
pub(super) const TARGET: u64 = 0x0804_5000;
/// Pages of memory.
const PATTERN: u64 = 0x20_0000;
const OLD: u64 = 0x20_1000;
const NEW: u64 = 0x20_2000;

/// An IOMMU that walks tables of the processors' formats, and a device behind it.
pub(super) trait Kind {
    type Port: Port;
    type Commands: Invalidations;

    fn told(&self) -> &RingIommu<Self::Port>;
    fn edu(&self) -> &Edu;
    fn commands(&self) -> &Self::Commands;
    /// The device translates in [`DOMAIN`], or is blocked.
    fn set_entry(&self, is_blocked: bool) -> Result<()>;
    /// Maps a device-visible page to a page of memory, which it may write to or not; or unmaps it.
    fn map(&self, page: u64, to: Option<(u64, bool)>);
    /// Nothing was refused but accesses to [`TARGET`], since the last call this often.
    fn refused(&self, count: usize) -> Result<()>;
}

fn copy(kind: &impl Kind, value: u64) -> Result<()> {
    kind.told().board.write(PATTERN, value);
    kind.edu().load(SOURCE)?;
    kind.edu().store(TARGET)
}

/// Tells the IOMMU that a page is no longer what it was, and waits.
fn forget(kind: &impl Kind, domain: DomainId, page: u64) -> Result<()> {
    kind.told().wait_for(kind.commands().pages(domain, Depth::Leaves, page..page + 0x1000, 1))
}

pub(super) fn keeps_until_told(kind: &impl Kind) -> Result<()> {
    let entry_changed = || [kind.commands().device(DEVICE, DOMAIN)];
    kind.set_entry(false)?;
    kind.told().wait_for(entry_changed())?;
    kind.map(SOURCE, Some((PATTERN, false)));
    kind.map(TARGET, Some((OLD, true)));
    let found = |page, value, when: &str| kind.told().expect(page, value, when);
    copy(kind, 1)?;
    found(OLD, 1, "a page that is mapped")?;

    kind.map(TARGET, None);
    copy(kind, 2)?;
    found(OLD, 2, "unmapped, without an invalidation: the IOMMU keeps the translation")?;
    forget(kind, DomainId(DOMAIN.0 + 1), TARGET)?;
    copy(kind, 3)?;
    found(OLD, 3, "after an invalidation of another domain")?;
    kind.refused(0)?;

    forget(kind, DOMAIN, TARGET)?;
    copy(kind, 4)?;
    found(OLD, 3, "after the invalidation")?;
    kind.refused(1)?;

    kind.map(TARGET, Some((NEW, true)));
    forget(kind, DOMAIN, TARGET)?;
    copy(kind, 5)?;
    found(NEW, 5, "mapped to another page")?;
    kind.map(TARGET, Some((NEW, false)));
    forget(kind, DOMAIN, TARGET)?;
    copy(kind, 6)?;
    found(NEW, 5, "read-only")?;
    kind.refused(1)?;

    kind.map(TARGET, Some((NEW, true)));
    kind.set_entry(true)?;
    let all = kind.commands().pages(DOMAIN, Depth::Tables, 0..u64::MAX, 1);
    kind.told().wait_for(entry_changed().into_iter().chain(all))?;
    copy(kind, 7)?;
    found(NEW, 5, "the device is blocked")?;
    found(OLD, 3, "at the end")
}
