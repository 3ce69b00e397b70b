//! Interrupts of owned functions, by MSI and MSI-X, and the IOMMUs that remap them.

use alloc::vec::Vec;
use core::mem;
use iommu::DeviceId;
use pci::function::Interrupts as Wanted;
use pci::msix;
use pci::{Address, Function, Physical};

use super::remapping::Iommu;
use super::remaps::{Forgotten, Remaps, Rewritten};
use super::routes::{self, CpuVector, Receiver, Routes};
use crate::devices::pc::message::Message;
use crate::owned::{self, Functions, Given, Interrupts, Platform, Refused};
use crate::vm::VpIndex;

/// IOMMUs of a PC, with messages that they remap.
pub enum Remapping {}

/// The machine's functions and IOMMUs.
pub type MachineDevices = owned::MachineDevices<Remapping>;

impl Platform for Remapping {
    type Iommu = Iommu;
    type Interrupts = Messages;
    type Routes = Routes;
    type Receiver = dyn Receiver;

    const SHOWS_MESSAGES: bool = true;

    /// Messages need no line.
    fn check(_: &MachineDevices, _: &Physical, _: &mut dyn Iterator<Item = Address>) -> Result<(), Refused> {
        Ok(())
    }
}

impl Functions<Remapping> {
    /// Delivers what has arrived for several vCPUs. In the guest's own turn.
    pub fn spread(&mut self, to: &dyn Receiver) {
        if let Some((machine, interrupts)) = self.interrupts() {
            interrupts.for_each(|messages| messages.spread(machine, to));
        }
    }

    /// A message that was for one vCPU may be for others now.
    pub fn readdressed(&mut self) {
        if let Some((machine, interrupts)) = self.interrupts() {
            interrupts.for_each(|messages| messages.readdressed(machine));
        }
    }
}

/// One of a function's messages.
#[derive(Clone, Copy, Default)]
struct Known {
    /// Its vector, once it has one.
    place: Option<CpuVector>,
    /// The guest's message; none while the guest has masked it. The real function may send while
    /// there is one.
    message: Option<Message>,
    /// The vCPU that got it last, and nobody else: by the addresses that local APICs have.
    only: Option<VpIndex>,
    /// It has arrived while it was masked.
    is_pending: bool,
}

/// A function's messages.
pub struct Messages {
    remaps: Remaps,
    known: Vec<Known>,
    /// The vector of messages for which there was none any more. All of them are taken to have
    /// arrived by an interrupt there.
    common: Option<CpuVector>,
    /// There is a table of MSI-X that can be used, and that the hypervisor has mapped.
    has_table: bool,
    /// The real function sends MSI, or not; none while that is not known.
    sends_msi: Option<bool>,
}

impl Interrupts<Remapping> for Messages {
    fn new(behind: Option<(&Iommu, DeviceId)>, _: &Physical, shown: &Function) -> Self {
        let messages = usize::from(shown.vector_count());
        Self {
            remaps: behind.map_or(Remaps::Nowhere, |(iommu, id)| iommu.remaps(id)),
            known: alloc::vec![Known::default(); messages],
            common: None,
            has_table: !shown.trapped().is_empty(),
            sends_msi: None,
        }
    }

    fn follow(
        &mut self,
        machine: &MachineDevices,
        given: &Given,
        to: &'static dyn Receiver,
        wanted: &Function,
    ) -> bool {
        let way = wanted.interrupts();
        for number in 0..wanted.vector_count() {
            let message =
                wanted.vector(number).and_then(|message| Message::from_msi(message.address, message.data));
            self.follow_message(machine, given, to, (number, message));
        }
        let physical = &given.physical;
        if let Some(msix) = physical.capabilities.msix {
            msix.control(&machine.bus, physical.address, way == Wanted::Msix, false);
        }
        if let Some(msi) = physical.capabilities.msi {
            // One that the guest has masked is sent, and noted: the function would lose it.
            let is_on = way == Wanted::Msi && self.known.first().is_some_and(|first| first.place.is_some());
            if self.sends_msi.replace(is_on) != Some(is_on) {
                msi.send(&machine.bus, physical.address, is_on.then_some(self.remaps.message(0)));
            }
        }
        false
    }

    fn forget(&mut self, machine: &MachineDevices, given: &Given) {
        let physical = &given.physical;
        if let Some(msix) = physical.capabilities.msix {
            msix.control(&machine.bus, physical.address, false, true);
            (0..msix.vectors).for_each(|number| self.set_real(machine, given, number, false));
        }
        if let Some(msi) = physical.capabilities.msi {
            msi.send(&machine.bus, physical.address, None);
            self.sends_msi = None;
        }
        self.free_vectors(machine, given);
    }
}

impl Messages {
    /// Where they go.
    pub(super) const fn remaps(&self) -> &Remaps {
        &self.remaps
    }

    /// The guest's message of a number is this one now.
    fn follow_message(
        &mut self,
        machine: &MachineDevices,
        given: &Given,
        to: &'static dyn Receiver,
        (number, message): (u16, Option<Message>),
    ) {
        let Some(&before) = self.known.get(usize::from(number)) else { return };
        if before.message == message {
            return;
        }
        let place = before.place.or_else(|| self.place(machine, given, to, number));
        let Some(known) = self.known.get_mut(usize::from(number)) else { return };
        (known.place, known.message, known.only) = (place, message, None);
        let Some(place) = place else { return };
        if self.common != Some(place) {
            let way = match message {
                None => routes::Delivery::Masked,
                Some(message) => to.single(message).map_or(routes::Delivery::InTurn(VpIndex(0)), |vcpu| {
                    routes::Delivery::Direct(vcpu, message)
                }),
            };
            known.is_pending |= machine.routes.set(place, way);
        }
        if let Some(message) = message
            && mem::take(&mut known.is_pending)
        {
            to.spread(message);
        }
        if before.message.is_some() != message.is_some() {
            self.set_real(machine, given, number, message.is_some());
        }
    }

    /// Takes a vector for a message. If there is none for it alone, it is the first one that the
    /// function has.
    fn place(
        &mut self,
        machine: &MachineDevices,
        given: &Given,
        to: &'static dyn Receiver,
        number: u16,
    ) -> Option<CpuVector> {
        let first = || self.known.iter().find_map(|known| known.place);
        let own = match self.common {
            None => machine.routes.take(to, given.device.id, machine.function_count()),
            Some(_) => None,
        };
        let Some(place) = own.or(self.common).or_else(first) else {
            let at = given.physical.address;
            log::warn!(target: crate::vm::GUEST, "{at} cannot interrupt: no vector of the guest's CPUs is left");
            return None;
        };
        if own.is_none() && self.common.is_none() {
            self.common = Some(place);
            if machine.routes.set(place, routes::Delivery::InTurn(VpIndex(0))) {
                self.note(place);
            }
        }
        self.remap(machine, given, (number, place));
        Some(place)
    }

    /// An interrupt has arrived on the vector of several messages, or of one.
    fn note(&mut self, place: CpuVector) {
        let at_it = self.known.iter_mut().filter(|known| known.place == Some(place));
        at_it.for_each(|known| known.is_pending = true);
    }

    /// Delivers what has arrived for several vCPUs.
    fn spread(&mut self, machine: &MachineDevices, to: &dyn Receiver) {
        if let Some(common) = self.common
            && machine.routes.take_arrived(common)
        {
            self.note(common);
        }
        for known in &mut self.known {
            let (Some(place), Some(message)) = (known.place, known.message) else { continue };
            let is_alone = self.common != Some(place);
            let is_direct = known.only.is_some() || to.single(message).is_some();
            if is_alone && !is_direct && machine.routes.take_arrived(place) {
                known.is_pending = true;
            }
            if !mem::take(&mut known.is_pending) {
                continue;
            }
            let only = to.spread(message);
            if is_alone && let Some(vcpu) = only {
                known.only = only;
                if machine.routes.set(place, routes::Delivery::Direct(vcpu, message)) {
                    to.spread(message);
                }
            }
        }
    }

    /// Those that were found to be for one vCPU may be for others now.
    fn readdressed(&mut self, machine: &MachineDevices) {
        for known in &mut self.known {
            if let (Some(vcpu), Some(place)) = (known.only.take(), known.place) {
                known.is_pending |= machine.routes.set(place, routes::Delivery::InTurn(vcpu));
            }
        }
    }

    /// Sends a message's interrupts to its vector.
    fn remap(&self, machine: &MachineDevices, given: &Given, (number, place): (u16, CpuVector)) {
        let Some(rewritten) = self.remaps.set(number, place.destination, place.vector) else { return };
        // A new vector is in use from now on, and no former one was.
        let _nothing_to_free = tell_iommu(machine, given, rewritten);
    }

    /// Blocks its interrupts, and frees its vectors.
    fn free_vectors(&mut self, machine: &MachineDevices, given: &Given) {
        self.common = None;
        if self.known.iter().all(|known| known.place.is_none()) {
            return self.known.fill(Known::default());
        }
        // What comes from now on is lost.
        self.known.iter().filter_map(|known| known.place).for_each(|place| machine.routes.silence(place));
        let proof = tell_iommu(machine, given, self.remaps.clear());
        let places = self.known.iter_mut().filter_map(|known| mem::take(known).place);
        // Without a proof nobody gets them any more.
        places.for_each(|place| proof.iter().for_each(|proof| machine.routes.free(place, proof)));
    }

    /// Lets the real function send a message of MSI-X, or masks it.
    fn set_real(&self, machine: &MachineDevices, given: &Given, number: u16, is_unmasked: bool) {
        let Some(msix) = given.physical.capabilities.msix.filter(|_| self.has_table) else { return };
        let Some((offset, bar)) = msix::entry_offset(&msix, number).zip(given.bar(msix.table.bar)) else {
            return;
        };
        let [low, high, data, control] = msix::entry(is_unmasked.then_some(self.remaps.message(number)));
        let at = |word: u64| bar + offset + word * 4;
        if is_unmasked {
            machine.bus.store(at(0), 4, low.into());
            machine.bus.store(at(1), 4, high.into());
            machine.bus.store(at(2), 4, data.into());
        }
        machine.bus.store(at(3), 4, control.into());
    }
}

/// Returns the proof that the IOMMU uses nothing of what the remapping table was before.
fn tell_iommu(machine: &MachineDevices, given: &Given, rewritten: Rewritten) -> Option<Forgotten> {
    let id = given.device.id;
    let told = machine.iommu(given.iommu)?.interrupts_changed(id, rewritten);
    told.inspect_err(|stuck| log::error!("device {id}: its interrupts may be lost: {stuck}")).ok()
}
