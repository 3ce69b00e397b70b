//! One guest's functions: what the guest wants, and what the real ones do.

use alloc::vec::Vec;

use hostlink::name::Name;
use iommu::amd::{DeviceId, DomainId};
use memslots::Gpa;
use pci::function::Windows;
use pci::{Function, Physical};

use super::domains::Domains;
use super::machine::{Given, MachineDevices, Refused};
use super::platform::{Interrupts, Owner, Platform};
use super::shared::Shared;
use super::slots::{Busy, Followed, Piece, pieces};
use crate::vm::{PerCpu, Vm, VpIndex};

/// The command register: memory is decoded, DMA is on, the pin is silent.
const MEMORY: u32 = 1 << 1;
const MASTER: u32 = 1 << 2;
const NO_PIN: u32 = 1 << 10;
const COMMAND: u16 = 4;

/// What a guest that is being created will own.
pub struct Claim<P: Platform> {
    /// The functions. Dropped, they are free again.
    pub functions: Functions<P>,
    /// What the guest sees of each.
    pub shown: Vec<Function>,
    /// The IOMMUs that translate for them; `None` if none of them is real.
    pub domains: Option<Domains<P>>,
}

/// A guest's functions.
pub struct Functions<P: Platform> {
    pub(super) machine: Option<&'static MachineDevices<P>>,
    pub(super) owned: Vec<Owned<P>>,
    /// For regions that it shares: they are behind the others.
    pub(super) shared: Vec<Shared>,
    pub(super) guest: Name,
    pub(super) domain: Option<DomainId>,
    /// They translate by the guest's tables.
    pub(super) is_attached: bool,
}

/// A real function.
pub(super) struct Owned<P: Platform> {
    pub(super) given: Given,
    pub(super) interrupts: P::Interrupts,
    /// What the real function's command register has.
    command: u32,
    /// Ranges of its registers that the guest reaches directly.
    pub(super) pieces: Vec<Piece>,
    pub(super) reset: Option<pci::reset::Reset>,
    /// It did not answer after its last reset.
    pub(super) is_lost: bool,
}

impl<P: Platform> Functions<P> {
    /// Claims the functions that `names` name, for the guest of this name.
    ///
    /// # Errors
    ///
    /// Why it does not get them.
    #[inline(never)] // What it needs on the stack is free again when it returns.
    pub fn claim(
        machine: Option<&'static MachineDevices<P>>,
        names: &'static str,
        guest: Name,
        windows: &Windows,
    ) -> Result<Claim<P>, Refused> {
        if names.is_empty() {
            return Ok(Claim { functions: Self::none(guest), shown: Vec::new(), domains: None });
        }
        let machine = machine.ok_or(Refused::NoPci)?;
        let (given, id) = machine.give(names, guest)?;
        let domains = Domains::new(machine, id, &given).inspect_err(|_| machine.take_back(guest, id, []))?;
        let mut shown = Vec::with_capacity(given.len());
        given.iter().for_each(|given| show(&mut shown, &given.physical, windows));
        let owned = given.into_iter().zip(&shown).map(|(given, shown)| Owned::new(given, shown)).collect();
        let mut functions = Self::none(guest);
        (functions.machine, functions.domain) = (Some(machine), Some(id));
        functions.owned = owned;
        Ok(Claim { functions, shown, domains: Some(domains) })
    }

    /// No functions.
    const fn none(guest: Name) -> Self {
        Self { machine: None, owned: Vec::new(), shared: Vec::new(), guest, domain: None, is_attached: false }
    }

    /// The real functions.
    pub(crate) fn given(&self) -> impl Iterator<Item = &Given> {
        self.owned.iter().map(|owned| &owned.given)
    }

    /// The interrupts of the real functions, and the machine, if there are any.
    pub(crate) fn interrupts(
        &mut self,
    ) -> Option<(&'static MachineDevices<P>, impl Iterator<Item = &mut P::Interrupts>)> {
        Some((self.machine?, self.owned.iter_mut().map(|owned| &mut owned.interrupts)))
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.owned.is_empty() && self.shared.is_empty()
    }

    /// Makes the real functions do what the guest wants: DMA, interrupts, and the place of their
    /// registers.
    ///
    /// # Errors
    ///
    /// [`Busy`] if not all is done, because one change of the slots at a time is possible: the
    /// access that caused this must be retried.
    pub fn follow<A: Owner<Platform = P>>(
        &mut self,
        vm: &'static Vm<A>,
        cpu: &PerCpu<A>,
        by: VpIndex,
    ) -> Result<Followed, Busy> {
        if self.is_empty() {
            return Ok(Followed::WasThere);
        }
        let bars: Vec<_> = A::with_shown(vm, |shown| {
            for (index, function) in shown.iter().enumerate() {
                self.follow_function(A::receiver(vm), index, function);
            }
            shown.iter().map(Function::bars).collect()
        });
        self.follow_slots(vm, cpu, by, |index, piece| {
            let decoded = (*bars.get(index)?.get(usize::from(piece.bar))?)?;
            Some(Gpa(decoded.address + piece.offset))
        })
    }

    /// No registers are decoded any more: their slots go, one after the other.
    ///
    /// # Errors
    ///
    /// As [`follow`](Self::follow).
    pub fn hide<A: Owner<Platform = P>>(
        &mut self,
        vm: &'static Vm<A>,
        cpu: &PerCpu<A>,
    ) -> Result<Followed, Busy> {
        self.follow_slots(vm, cpu, 0, |_, _| None)
    }

    /// The same as [`follow`](Self::follow) for DMA and interrupts of one function.
    pub(super) fn follow_function(&mut self, to: &'static P::Receiver, index: usize, wanted: &Function) {
        if let Some(shared) = self.shared_at(index) {
            return shared.follow(wanted);
        }
        let Some(machine) = self.machine else { return };
        let Some(owned) = self.owned.get_mut(index) else { return };
        if owned.reset.is_some() || !self.is_attached {
            return;
        }
        let has_pin = owned.interrupts.follow(machine, &owned.given, to, wanted);
        let pin = if has_pin { 0 } else { NO_PIN };
        let master = if wanted.is_bus_master() { MASTER } else { 0 };
        owned.command(machine, MEMORY | pin | master);
    }
}

impl<P: Platform> Owned<P> {
    fn new(given: Given, shown: &Function) -> Self {
        let pieces = pieces(&given.physical, shown);
        let interrupts = P::Interrupts::new(&given.physical, shown);
        Self { given, interrupts, command: 0, pieces, reset: None, is_lost: false }
    }

    /// Writes the command register, if it changes.
    pub(super) fn command(&mut self, machine: &MachineDevices<P>, command: u32) {
        if self.command != command {
            self.command = command;
            machine.bus.write(self.given.physical.address, COMMAND, command);
        }
    }

    /// After a reset nothing is enabled.
    pub(super) fn forget(&mut self, machine: &MachineDevices<P>) {
        self.command = 0;
        // Interrupts may have a table in memory of the function's: it has to be decoded.
        machine.bus.write(self.given.physical.address, COMMAND, MEMORY | NO_PIN);
        self.interrupts.forget(machine, &self.given);
        machine.bus.write(self.given.physical.address, COMMAND, NO_PIN);
    }

    /// The id by which the IOMMU knows it.
    pub(super) const fn device(&self) -> DeviceId {
        self.given.device.id
    }
}

/// Adds what a guest sees of a function: some KiB, which are on the stack here only.
#[inline(never)]
pub(super) fn show(shown: &mut Vec<Function>, physical: &Physical, windows: &Windows) {
    shown.push(Function::new(physical, windows.clone()));
}
