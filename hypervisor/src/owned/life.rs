//! Functions are reset, attached to their guest's tables, and returned.
//!
//! ```text
//! the guest is loaded, for the first time or again      the guest is destroyed
//! A  functions are switched off and reset               A  IOMMUs block them, and drop everything
//! B  memory is filled                                   B  slots are removed
//! C  all memory is mapped                               C  functions are reset
//! D  IOMMUs let the functions translate                 D  functions and domain are free
//! ```
//!
//! C before D: a device does not wait for a fault. A before B on the right: memory is free when no
//! device reaches it, also if the reset fails.

use iommu::Stuck;
use paging::Progress;
use pci::reset::{Reset, Step};

use super::domains::Domains;
use super::functions::Functions;
use super::platform::{Iommu, Platform, Translations};
use super::shared::Shared;
use crate::vm::GUEST;

impl<P: Platform> Functions<P> {
    /// Makes a step of the functions' resets; `Done` when all are reset and silent.
    pub fn reset(&mut self) -> Progress {
        self.shared.iter().for_each(Shared::reset);
        let Some(machine) = self.machine else { return Progress::Done };
        let mut progress = Progress::Done;
        for owned in &mut self.owned {
            let reset = owned
                .reset
                .get_or_insert_with(|| Reset::new(&machine.bus, &owned.given.physical, owned.given.method));
            match reset.step(&machine.bus, machine.bus.now_us()) {
                Step::NotBefore(_) => progress = Progress::Waiting,
                Step::Done { was_pending } => {
                    owned.is_lost = false;
                    if was_pending {
                        log::warn!(target: GUEST, "{} was reset amid DMA", owned.given.physical.address);
                    }
                }
                Step::Lost => {
                    let at = owned.given.physical.address;
                    log::error!(target: GUEST, "{at} does not answer after its reset");
                    owned.is_lost = true;
                }
            }
        }
        if progress == Progress::Done {
            for owned in &mut self.owned {
                owned.reset = None;
                owned.forget(machine);
            }
        }
        progress
    }

    /// Lets the functions translate by the tables at `root`. All of the guest's memory is mapped.
    pub fn attach(&mut self, root: u64) {
        let (Some(machine), Some(domain)) = (self.machine, self.domain) else { return };
        if self.is_attached {
            return;
        }
        for owned in &self.owned {
            let Some(iommu) = machine.iommu(owned.given.iommu) else { continue };
            let translations = Translations { root, domain };
            if let Err(stuck) = iommu.attach(owned.given.device, translations, &owned.interrupts) {
                // The function stays blocked: the guest finds a dead device.
                log::error!("device {} is not attached: {stuck}", owned.device());
            }
        }
        self.is_attached = true;
    }

    /// Blocks the functions, before the guest's memory is freed.
    ///
    /// # Errors
    ///
    /// [`Stuck`] if an IOMMU does not do its part: nothing may be freed then.
    pub fn detach(&mut self, domains: Option<&Domains<P>>) -> Result<(), Stuck> {
        domains.map_or(Ok(()), Domains::detach)?;
        self.is_attached = false;
        Ok(())
    }

    /// Makes a step of returning the functions, which are [detached](Self::detach); `Done` when
    /// they are free for others. One that does not answer after its reset stays blocked, and is
    /// nobody's.
    pub fn give_back(&mut self) -> Progress {
        let progress = self.reset();
        if progress == Progress::Done {
            self.free();
        }
        progress
    }

    fn free(&mut self) {
        if let (Some(machine), Some(domain)) = (self.machine.take(), self.domain.take()) {
            let lost = self.owned.iter().filter(|owned| owned.is_lost);
            machine.take_back(self.guest, domain, lost.map(|owned| owned.given.physical.address));
        }
        self.owned.clear();
    }
}

impl<P: Platform> Drop for Functions<P> {
    /// A guest that was not created completely.
    fn drop(&mut self) {
        self.free();
    }
}
