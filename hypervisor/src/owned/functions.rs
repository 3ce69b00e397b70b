//! One guest's functions: what the guest wants, and what the real ones do.

use alloc::vec::Vec;
use hostlink::name::Name;
use iommu::{DeviceId, DomainId};
use paging::Progress;
use pci::function::Windows;
use pci::reset::Reset;
use pci::{Function, Physical};

use super::domains::Domains;
use super::machine::{Given, MachineDevices};
use super::platform::{DeviceOwner, Interrupts, Platform};
use super::slots::{BarPiece, Bars, Busy, Followed, pieces};
use crate::vm::refused::Refused;
use crate::vm::{PerCpu, Vm, VpIndex};

/// The command register: memory is decoded, DMA is on, the pin is silent.
const MEMORY: u32 = 1 << 1;
pub(super) const MASTER: u32 = 1 << 2;
const NO_PIN: u32 = 1 << 10;
pub(super) const COMMAND: u16 = 4;
/// Neither DMA nor interrupts. The hypervisor may access registers.
pub(super) const SILENT: u32 = MEMORY | NO_PIN;

/// What a guest that is being created will own.
pub struct Claim<P: Platform> {
    /// The functions. Dropped, they are free again.
    pub functions: Functions<P>,
    /// What the guest sees of each.
    pub shown: Vec<Function>,
    /// The IOMMUs that translate for them; `None` if there are none.
    pub domains: Option<Domains<P>>,
}

/// A guest's functions.
pub struct Functions<P: Platform> {
    pub(super) machine: Option<&'static MachineDevices<P>>,
    pub(super) owned: Vec<Owned<P>>,
    pub(super) guest: Name,
    pub(super) domain: Option<DomainId>,
}

pub(super) struct Owned<P: Platform> {
    pub(super) given: Given,
    pub(super) interrupts: P::Interrupts,
    /// What the real function's command register has.
    command: u32,
    /// Ranges of its registers that the guest reaches directly.
    pub(super) pieces: Vec<BarPiece>,
    pub(super) reset: Resetting,
    /// One that has not begun. It knows what the function had when it was claimed: later the
    /// function may not answer when it is reset.
    pub(super) fresh: Reset,
    /// It did not answer after its last reset, or can no more be isolated: it is left alone.
    pub(super) is_lost: bool,
    /// It translates by the guest's tables.
    pub(super) is_attached: bool,
}

pub(super) enum Resetting {
    /// None is in progress: the function follows its guest.
    No,
    /// Some of its steps are to be made.
    Steps(Reset),
    /// It is over, but maybe not those of the guest's other functions.
    Over,
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
        given.iter().for_each(|given| show::<P>(&mut shown, &given.physical, windows));
        shown.iter_mut().for_each(Function::show_reset);
        let owned =
            given.into_iter().zip(&shown).map(|(given, shown)| Owned::new(machine, given, shown)).collect();
        let mut functions = Self::none(guest);
        (functions.machine, functions.domain) = (Some(machine), Some(id));
        functions.owned = owned;
        Ok(Claim { functions, shown, domains: Some(domains) })
    }

    const fn none(guest: Name) -> Self {
        Self { machine: None, owned: Vec::new(), guest, domain: None }
    }

    /// What the machine has given.
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
        self.owned.is_empty()
    }

    /// Makes the real functions do what the guest wants: DMA, interrupts, places of registers.
    ///
    /// # Errors
    ///
    /// [`Busy`] if not all is done, because one change of the slots at a time is possible: the
    /// access that caused this must be retried.
    pub fn follow<A: DeviceOwner<Platform = P>>(
        &mut self,
        vm: &'static Vm<A>,
        cpu: &PerCpu<A>,
        by: VpIndex,
    ) -> Result<Followed, Busy> {
        if self.is_empty() {
            return Ok(Followed::WasThere);
        }
        self.follow_shown(vm);
        let decoded = |index| A::with_shown(vm, |shown| shown.get(index).map(Function::bars));
        self.follow_slots(vm, cpu, by, |index| decoded(index).unwrap_or_default())
    }

    /// Goes on with resets that the guest has begun. To be called when it looks at configuration
    /// space: that is how it finds that one is over.
    pub fn follow_resets<A: DeviceOwner<Platform = P>>(&mut self, vm: &'static Vm<A>) {
        if self.owned.iter().all(|owned| matches!(owned.reset, Resetting::No)) {
            return;
        }
        self.follow_shown(vm);
    }

    /// Makes all functions do what the guest wants, except for the place of their registers.
    fn follow_shown<A: DeviceOwner<Platform = P>>(&mut self, vm: &'static Vm<A>) {
        A::with_shown(vm, |shown| {
            for (index, function) in shown.iter_mut().enumerate() {
                self.follow_function(A::receiver(vm), index, function);
            }
        });
    }

    /// No registers are decoded any more: their slots go, one after the other.
    ///
    /// # Errors
    ///
    /// As [`follow`](Self::follow).
    pub fn hide<A: DeviceOwner<Platform = P>>(
        &mut self,
        vm: &'static Vm<A>,
        cpu: &PerCpu<A>,
    ) -> Result<Followed, Busy> {
        self.follow_slots(vm, cpu, VpIndex(0), |_| Bars::default())
    }

    /// The same as [`follow`](Self::follow) for DMA and interrupts of one function.
    pub(super) fn follow_function(&mut self, to: &'static P::Receiver, index: usize, wanted: &mut Function) {
        let Some(machine) = self.machine else { return };
        let Some(owned) = self.owned.get_mut(index) else { return };
        if owned.is_lost || !owned.is_attached {
            return;
        }
        if wanted.is_resetting() {
            if owned.step_reset(machine) != Progress::Done {
                return;
            }
            owned.reset = Resetting::No;
            if owned.is_lost {
                return;
            }
            wanted.end_reset();
        }
        if !matches!(owned.reset, Resetting::No) {
            return;
        }
        let has_pin = owned.interrupts.follow(machine, &owned.given, to, wanted);
        let pin = if has_pin { 0 } else { NO_PIN };
        let master = if wanted.is_bus_master() { MASTER } else { 0 };
        owned.command(machine, MEMORY | pin | master);
        machine.keep_silent(owned.given.physical.address);
    }
}

impl<P: Platform> Owned<P> {
    fn new(machine: &MachineDevices<P>, given: Given, shown: &Function) -> Self {
        let behind = machine.iommu(given.iommu).map(|iommu| (iommu, given.device.id));
        Self {
            interrupts: P::Interrupts::new(behind, &given.physical, shown),
            command: 0,
            pieces: pieces(&given.physical, shown),
            reset: Resetting::No,
            fresh: Reset::new(&machine.bus, &given.physical, given.method),
            is_lost: false,
            is_attached: false,
            given,
        }
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
        machine.bus.write(self.given.physical.address, COMMAND, SILENT);
        self.interrupts.forget(machine, &self.given);
        machine.bus.write(self.given.physical.address, COMMAND, NO_PIN);
        if let Some(express) = self.given.physical.capabilities.express {
            express.snoop(&machine.bus, self.given.physical.address);
        }
    }

    /// The id by which the IOMMU knows it.
    pub(super) const fn device(&self) -> DeviceId {
        self.given.device.id
    }
}

/// Adds what a guest sees of a function: some KiB, which are on the stack here only.
#[inline(never)]
fn show<P: Platform>(shown: &mut Vec<Function>, physical: &Physical, windows: &Windows) {
    let new = if P::SHOWS_MESSAGES { Function::new } else { Function::without_messages };
    shown.push(new(physical, windows.clone()));
}
