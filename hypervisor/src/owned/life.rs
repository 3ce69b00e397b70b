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
use pci::reset::Step;

use super::domains::Domains;
use super::functions::{Functions, Owned, Resetting, SILENT};
use super::machine::MachineDevices;
use super::platform::{Iommu, NotAttached, Platform, Translations};
use crate::vm::GUEST;

impl<P: Platform> Functions<P> {
    /// Makes a step of the functions' resets; `Done` when all are reset and silent.
    pub fn reset(&mut self) -> Progress {
        let Some(machine) = self.machine else { return Progress::Done };
        let mut progress = Progress::Done;
        for owned in &mut self.owned {
            if owned.step_reset(machine) != Progress::Done {
                progress = Progress::Waiting;
            }
        }
        if progress == Progress::Done {
            machine.forget_faults(self.guest);
            self.owned.iter_mut().for_each(|owned| owned.reset = Resetting::No);
        }
        progress
    }

    /// The guest has ended: its functions neither reach memory nor interrupt until it is loaded
    /// again, or destroyed. Both reset them first.
    pub fn silence(&mut self) {
        let Some(machine) = self.machine else { return };
        // One that is being reset is silent.
        for owned in self.owned.iter_mut().filter(|owned| matches!(owned.reset, Resetting::No)) {
            owned.command(machine, SILENT);
        }
    }

    /// Lets the functions translate by the tables at `root`. All of the guest's memory is mapped.
    pub fn attach(&mut self, root: u64) {
        let (Some(machine), Some(domain)) = (self.machine, self.domain) else { return };
        for owned in self.owned.iter_mut().filter(|owned| !owned.is_lost && !owned.is_attached) {
            let Some(iommu) = machine.iommu(owned.given.iommu) else { continue };
            let translations = Translations { root, domain };
            let result = iommu.attach(owned.given.device, translations, &owned.interrupts);
            if let Err(why) = result {
                // The function stays blocked: the guest finds a dead device.
                log::error!("device {} is not attached: {why}", owned.device());
            }
            owned.is_attached = result != Err(NotAttached::NoPlace);
        }
    }

    /// Blocks the functions, before the guest's memory is freed.
    ///
    /// # Errors
    ///
    /// [`Stuck`] if an IOMMU does not do its part: nothing may be freed then.
    pub fn detach(&mut self, domains: Option<&Domains<P>>) -> Result<(), Stuck> {
        domains.map_or(Ok(()), Domains::detach)?;
        self.owned.iter_mut().for_each(|owned| owned.is_attached = false);
        Ok(())
    }

    /// Makes a step of returning the functions, which are [detached](Self::detach); `Done` when
    /// they are free for others. One mute after its reset stays blocked, and is nobody's.
    pub fn give_back(&mut self) -> Progress {
        let progress = self.reset();
        if progress == Progress::Done {
            self.free();
        }
        progress
    }

    /// They are free for others, unless they still translate: then they stay this guest's for ever.
    fn free(&mut self) {
        if self.owned.iter().any(|owned| owned.is_attached) {
            log::error!("functions of '{}' are still attached", self.guest);
            debug_assert!(false, "a function is freed that reaches its guest's memory");
            return;
        }
        if let (Some(machine), Some(domain)) = (self.machine.take(), self.domain.take()) {
            let lost = self.owned.iter().filter(|owned| owned.is_lost);
            machine.take_back(self.guest, domain, lost.map(|owned| owned.given.physical.address));
        }
        self.owned.clear();
    }
}

impl<P: Platform> Owned<P> {
    /// Makes steps of a reset, up to where it waits; begins one if none is in progress. From the
    /// first one on the function does nothing. `Done` when the reset is over, and at each further
    /// call until [`Resetting::No`] is noted.
    pub(super) fn step_reset(&mut self, machine: &MachineDevices<P>) -> Progress {
        let (bus, now) = (&machine.bus, machine.bus.now_us());
        if let Resetting::No = self.reset {
            self.reset = Resetting::Steps(self.fresh.clone());
        }
        let Resetting::Steps(reset) = &mut self.reset else { return Progress::Done };
        let at = self.given.physical.address;
        self.is_lost = loop {
            match reset.step(bus, now) {
                Step::NotBefore(time) if time <= now => {}
                Step::NotBefore(_) => return Progress::Waiting,
                Step::Done { was_pending } => {
                    if was_pending {
                        log::warn!(target: GUEST, "{at} was reset amid DMA");
                    }
                    break !machine.isolate(at);
                }
                Step::Lost => {
                    log::error!(target: GUEST, "{at} does not answer after its reset");
                    break true;
                }
            }
        };
        self.reset = Resetting::Over;
        self.forget(machine);
        Progress::Done
    }
}

impl<P: Platform> Drop for Functions<P> {
    /// A guest that was not created completely.
    fn drop(&mut self) {
        self.free();
    }
}
