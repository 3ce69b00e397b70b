//! IOMMUs that remap messages: AMD-Vi, VT-d.

use core::fmt;
use iommu::amd::Commands;
use iommu::{DeviceId, Stuck};
use paging::Invalidation;
use stay::iommu::{Begun, Device, Domain, finish, nested};

use super::messages::Messages;
use super::remaps::{Forgotten, Remaps, Rewritten};
use super::{amd_vi, ring, vtd};
use crate::owned::{self, NotAttached, Translations};

/// One of either kind.
pub enum Iommu {
    /// AMD-Vi, whose processors have SVM.
    AmdVi(amd_vi::Iommu),
    /// VT-d, whose processors have VMX.
    Vtd(vtd::Iommu),
}

impl Iommu {
    /// A function's entries, which are all blocked.
    pub(super) fn remaps(&self, device: DeviceId) -> Remaps {
        match self {
            Self::AmdVi(_) => Remaps::table(),
            Self::Vtd(iommu) => iommu.remaps(device),
        }
    }

    /// A function's entries were changed.
    ///
    /// # Errors
    ///
    /// [`Stuck`] if the IOMMU does not go on: it may still use a former entry.
    pub fn interrupts_changed(&self, device: DeviceId, rewritten: Rewritten) -> Result<Forgotten, Stuck> {
        match self {
            Self::AmdVi(iommu) => iommu.interrupts_changed(device, rewritten),
            Self::Vtd(iommu) => iommu.interrupts_changed(device, rewritten),
        }
    }

    fn queue(&self) -> &ring::Commands {
        match self {
            Self::AmdVi(iommu) => iommu.queue(),
            Self::Vtd(iommu) => iommu.queue(),
        }
    }
}

impl owned::Iommu<Messages> for Iommu {
    fn requester(&self, device: DeviceId) -> Option<DeviceId> {
        match self {
            Self::AmdVi(iommu) => iommu.requester(device),
            Self::Vtd(iommu) => iommu.requester(device),
        }
    }

    fn is_machines_own(&self, id: DeviceId) -> bool {
        match self {
            Self::AmdVi(iommu) => iommu.is_machines_own(id),
            Self::Vtd(iommu) => iommu.is_machines_own(id),
        }
    }

    fn attach(&self, device: Device, to: Translations, interrupts: &Messages) -> Result<(), NotAttached> {
        let domain = Domain { id: to.domain, devices: &[device] };
        match self {
            Self::AmdVi(iommu) => {
                let table = interrupts.remaps().own().ok_or(NotAttached::NoPlace)?;
                iommu.attach(&domain, to.root, table)
            }
            Self::Vtd(iommu) => iommu.attach(&domain, to.root),
        }
    }

    fn detach(&self, domain: &Domain<'_>) -> Result<(), Stuck> {
        match self {
            Self::AmdVi(iommu) => iommu.detach(domain),
            Self::Vtd(iommu) => iommu.detach(domain),
        }
    }

    fn begin(&self, domain: &Domain<'_>, invalidation: Invalidation<'_>) -> Result<Begun, Stuck> {
        match self {
            Self::AmdVi(iommu) => nested::begin(iommu.queue(), &Commands, domain, invalidation),
            Self::Vtd(iommu) => nested::begin(iommu.queue(), iommu.commands(), domain, invalidation),
        }
    }

    fn finish(&self, begun: Begun) -> Result<(), Stuck> {
        finish(self.queue(), begun)
    }

    fn take_events(&self, report: &mut dyn FnMut(Option<DeviceId>, &dyn fmt::Display)) -> bool {
        match self {
            Self::AmdVi(iommu) => iommu.take_events(|event| report(event.device(), &event)),
            Self::Vtd(iommu) => iommu.take_events(|fault| report(Some(fault.device), &fault)),
        }
    }
}
