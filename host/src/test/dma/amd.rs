//! An emulated AMD-Vi keeps translations until it is told.

use super::edu::Edu;
use super::kept::{self, DEVICE, DOMAIN, Kind};
use super::ring::RingIommu;
use super::vi::{ROOT, Registers, Vi};
use crate::test::prelude::*;
use iommu::amd::Commands;
use iommu::amd::table::DeviceEntry;

impl Kind for Vi {
    type Port = Registers;
    type Commands = Commands;

    fn told(&self) -> &RingIommu<Registers> {
        &self.told
    }

    fn edu(&self) -> &Edu {
        &self.edu
    }

    fn commands(&self) -> &Commands {
        &Commands
    }

    fn set_entry(&self, is_blocked: bool) -> Result<()> {
        let entry = DeviceEntry::translated(ROOT, DOMAIN).context("the entry is refused")?;
        Self::set_entry(self, DEVICE, if is_blocked { DeviceEntry::BLOCKED } else { entry });
        Ok(())
    }

    fn map(&self, page: u64, to: Option<(u64, bool)>) {
        Self::map(self, page, to);
    }

    /// QEMU 7.2 never writes to the event log, for a mask that it takes for "the log has
    /// overflowed" is never 0 (`amdvi_test_mask`).
    fn refused(&self, _: usize) -> Result<()> {
        Ok(())
    }
}

pub(super) fn keeps_until_told(room: &Room<'_>) -> Result<()> {
    kept::keeps_until_told(&Vi::start(room.directory, DEVICE)?)
}
