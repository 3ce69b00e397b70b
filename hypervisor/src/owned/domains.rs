//! The IOMMUs of a guest's functions, as walkers of its nested tables.

use alloc::vec::Vec;
use arrayvec::ArrayVec;
use hostlink::defect::Defect;
use iommu::{DomainId, Stuck};
use paging::Invalidation;
use stay::iommu::{Device, Domain};

use super::machine::{Given, MachineDevices};
use super::platform::{Iommu, Platform};
use crate::vm::defects::makes;
use crate::vm::dma::{IOMMUS_MAX, Tickets};
use crate::vm::refused::Refused;

/// The IOMMUs that translate by a guest's tables. Constant from the guest's creation on.
pub struct Domains<P: Platform> {
    machine: &'static MachineDevices<P>,
    /// The guest's number there.
    pub(super) id: DomainId,
    /// Each IOMMU, and the guest's devices behind it.
    behind: ArrayVec<(usize, Vec<Device>), IOMMUS_MAX>,
}

impl<P: Platform> Domains<P> {
    pub(super) fn new(
        machine: &'static MachineDevices<P>,
        id: DomainId,
        given: &[Given],
    ) -> Result<Self, Refused> {
        let mut behind = ArrayVec::<(usize, Vec<Device>), IOMMUS_MAX>::new();
        for function in given {
            match behind.iter_mut().find(|(iommu, _)| *iommu == function.iommu) {
                Some((_, devices)) => devices.push(function.device),
                None => {
                    let devices = alloc::vec![function.device];
                    behind.try_push((function.iommu, devices)).map_err(|_| Refused::TooMany)?;
                }
            }
        }
        Ok(Self { machine, id, behind })
    }

    /// Has the IOMMUs drop what `invalidation` names, without a wait.
    ///
    /// # Errors
    ///
    /// [`Stuck`] if one takes no more commands.
    pub fn begin(&self, invalidation: Invalidation<'_>) -> Result<Tickets, Stuck> {
        let mut tickets = Tickets::new();
        if makes(Defect::DmaNotTold) {
            return Ok(tickets);
        }
        for (index, devices) in &self.behind {
            if let Some(iommu) = self.machine.iommu(*index) {
                // There is a place for each.
                let _ = tickets.try_push(iommu.begin(&Domain { id: self.id, devices }, invalidation)?);
            }
        }
        Ok(tickets)
    }

    /// Waits until they have.
    ///
    /// # Errors
    ///
    /// [`Stuck`] if one does not go on.
    pub fn finish(&self, tickets: &Tickets) -> Result<(), Stuck> {
        for ((index, _), &ticket) in self.behind.iter().zip(tickets) {
            if let Some(iommu) = self.machine.iommu(*index) {
                iommu.finish(ticket)?;
            }
        }
        Ok(())
    }

    /// Blocks the devices and drops everything that is kept of the guest's translations.
    pub(super) fn detach(&self) -> Result<(), Stuck> {
        for (index, devices) in &self.behind {
            if let Some(iommu) = self.machine.iommu(*index) {
                iommu.detach(&Domain { id: self.id, devices })?;
            }
        }
        Ok(())
    }
}
