mod amd_vi;
pub(crate) mod routes;
mod vtd;

use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use iommu::{DeviceId, DomainId};
use stay::iommu::{Device, Domain};

use crate::pages::Pages;

const DEVICE: Device = Device { id: DeviceId(0x18), ats: None };
const DOMAIN: Domain<'_> = Domain { id: DomainId(5), devices: &[DEVICE] };

/// Tables in memory, the root first.
struct Tables(Vec<Pages>);

impl Tables {
    fn empty(count: usize) -> Self {
        Self((0..count).map(|_| Pages::new(1)).collect())
    }

    fn set(&self, table: usize, index: usize, entry: u64) {
        self.0[table].words()[index].store(entry, Ordering::Relaxed);
    }

    fn at(&self, table: usize) -> u64 {
        self.0[table].start()
    }

    fn root(&self) -> u64 {
        self.at(0)
    }
}
