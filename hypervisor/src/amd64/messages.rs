//! Interrupts of owned functions, by MSI and MSI-X, and the IOMMUs that remap them.

use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::Ordering;

use iommu::Stuck;
use iommu::amd::DeviceId;
use iommu::amd::table::{InterruptEntry, InterruptTable};
use paging::Invalidation;
use pci::function::Interrupts as Way;
use pci::msix::{self, Message as RealMessage};
use pci::{Address, Function, Physical};
use spin::Mutex;
use stay::iommu::{Begun, Device, Domain};

use super::iommu::Iommu;
use super::processor::Amd64;
use super::routes::Routes;
use crate::devices::pc::message::Message;
use crate::owned::{self, Deliver, Given, Interrupts, Platform, Refused, Translations};
use crate::pages::Pages;
use crate::vm::shared::Signal;
use crate::vm::{Vm, percpu};

/// Log2 of the number of entries of a function's interrupt remapping table: 512, of which the first
/// 256 can be used, because the other bits of a message's data are its delivery mode.
const REMAP_ORDER: u8 = 9;
/// The address of an interrupt. Its other bits are in the remapping entry.
const INTERRUPTS_AT: u64 = 0xfee0_0000;

/// AMD-Vi, with messages that it remaps.
pub enum AmdVi {}

/// The machine's functions and IOMMUs.
pub type MachineDevices = owned::MachineDevices<AmdVi>;

impl Platform for AmdVi {
    type Iommu = Iommu;
    type Interrupts = Messages;
    type Routes = Mutex<Routes>;
    type Interrupt = Message;

    const SHOWS_MESSAGES: bool = true;

    /// Messages need no line.
    fn adapt(
        _: &MachineDevices,
        _: &mut Physical,
        _: &mut dyn Iterator<Item = Address>,
    ) -> Result<(), Refused> {
        Ok(())
    }
}

impl MachineDevices {
    /// An interrupt has arrived on one of the [vectors](super::routes::VECTORS): delivers it to the
    /// guest. Returns false if no function has the vector.
    pub fn deliver(&self, vector: u8) -> bool {
        self.routes.lock().deliver(vector)
    }
}

impl owned::Iommu<Messages> for Iommu {
    fn requester(&self, device: DeviceId) -> Option<DeviceId> {
        self.requester(device)
    }

    fn is_machines_own(&self, id: DeviceId) -> bool {
        self.is_machines_own(id)
    }

    fn attach(&self, device: Device, to: Translations, interrupts: &Messages) -> Result<(), Stuck> {
        self.attach(&[device], to, interrupts.table())
    }

    fn detach(&self, domain: &Domain<'_>) -> Result<(), Stuck> {
        self.detach(domain)
    }

    fn begin(&self, domain: &Domain<'_>, invalidation: Invalidation<'_>) -> Result<Begun, Stuck> {
        self.begin(domain, invalidation)
    }

    fn finish(&self, begun: Begun) -> Result<(), Stuck> {
        self.finish(begun)
    }

    fn take_events(&self, report: &mut dyn FnMut(Option<DeviceId>, &dyn fmt::Display)) -> bool {
        self.take_events(|event| report(event.device(), &event))
    }
}

impl<A: Amd64> Deliver<Message> for Vm<A> {
    fn deliver_from_device(&self, message: Message) {
        self.deliver(message, u32::MAX);
    }

    fn cpu(&self, number: usize) -> Option<u32> {
        percpu::nth_online::<A>(number).and_then(|cpu| u32::try_from(cpu.id).ok())
    }
}

impl<A: Amd64> Vm<A> {
    /// A doorbell of the guest's was rung. There are no lines.
    pub fn signal(&self, signal: Signal) {
        if let Signal::Message(message) = signal
            && let Some(message) = Message::from_msi(message.address, message.data)
        {
            self.deliver(message, u32::MAX);
        }
    }
}

/// A function's messages.
pub struct Messages {
    /// Its interrupt remapping table.
    remaps: Pages,
    /// For each of its messages the machine's vector, once it has one.
    vectors: Vec<Option<u8>>,
    /// Which messages the real function may send now.
    is_unmasked: Vec<bool>,
    /// There is a table of MSI-X that can be used, and that the hypervisor has mapped.
    has_table: bool,
}

impl Interrupts<AmdVi> for Messages {
    fn new(_: &Physical, shown: &Function) -> Self {
        let messages = usize::from(shown.vector_count());
        Self {
            remaps: Pages::new(1),
            vectors: alloc::vec![None; messages],
            is_unmasked: alloc::vec![false; messages],
            has_table: !shown.trapped().is_empty(),
        }
    }

    fn follow(
        &mut self,
        machine: &MachineDevices,
        given: &Given,
        to: &'static dyn Deliver<Message>,
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
            msix.control(&machine.bus, physical.address, way == Way::Msix, false);
        }
        if let Some(msi) = physical.capabilities.msi {
            let is_on = way == Way::Msi && self.is_unmasked.first() == Some(&true);
            msi.send(&machine.bus, physical.address, is_on.then_some(real_message(0)));
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
        }
        self.is_unmasked.fill(false);
        self.free_vectors(machine, given);
    }
}

impl Messages {
    /// Its interrupt remapping table.
    const fn table(&self) -> InterruptTable {
        InterruptTable { address: self.remaps.start(), order: REMAP_ORDER }
    }

    /// The guest's message of a number is this one now.
    fn follow_message(
        &mut self,
        machine: &MachineDevices,
        given: &Given,
        to: &'static dyn Deliver<Message>,
        (number, message): (u16, Option<Message>),
    ) {
        let index = usize::from(number);
        let Some(&known) = self.vectors.get(index) else { return };
        let vector = match (known, message) {
            (None, None) => return,
            (None, Some(_)) => {
                let Some(vector) = machine.routes.lock().take(to) else {
                    log::warn!(target: crate::vm::GUEST, "no vector is left for interrupts of a device");
                    return;
                };
                self.remap(machine, given, to, (number, vector));
                if let Some(place) = self.vectors.get_mut(index) {
                    *place = Some(vector);
                }
                vector
            }
            (Some(vector), _) => vector,
        };
        machine.routes.lock().set(vector, message);
        let Some(was_unmasked) = self.is_unmasked.get_mut(index) else { return };
        if core::mem::replace(was_unmasked, message.is_some()) != message.is_some() {
            self.set_real(machine, given, number, message.is_some());
        }
    }

    /// Sends a message's interrupts to one of the CPUs.
    fn remap(
        &self,
        machine: &MachineDevices,
        given: &Given,
        to: &dyn Deliver<Message>,
        (number, vector): (u16, u8),
    ) {
        let Some(id) = to.cpu(vector.into()).and_then(|id| u8::try_from(id).ok()) else { return };
        let InterruptEntry(entry) = InterruptEntry::fixed(id, vector);
        let Some(word) = self.remaps.words().get(usize::from(number) / 2) else { return };
        let shift = u32::from(number) % 2 * 32;
        let others = word.load(Ordering::Relaxed) & !(0xffff_ffff << shift);
        // Relaxed: the doorbell of the command below orders it for the IOMMU.
        word.store(others | u64::from(entry) << shift, Ordering::Relaxed);
        tell_iommu(machine, given);
    }

    /// Frees its vectors, and blocks its interrupts.
    fn free_vectors(&mut self, machine: &MachineDevices, given: &Given) {
        if self.vectors.iter().all(Option::is_none) {
            return;
        }
        self.remaps.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        tell_iommu(machine, given);
        let mut routes = machine.routes.lock();
        self.vectors.iter_mut().filter_map(Option::take).for_each(|vector| routes.free(vector));
    }

    /// Lets the real function send a message of MSI-X, or masks it.
    fn set_real(&self, machine: &MachineDevices, given: &Given, number: u16, is_unmasked: bool) {
        let Some(msix) = given.physical.capabilities.msix.filter(|_| self.has_table) else { return };
        let Some((offset, bar)) = msix::entry_offset(&msix, number).zip(given.bar(msix.table.bar)) else {
            return;
        };
        let [low, high, data, control] = msix::entry(is_unmasked.then_some(real_message(number)));
        let at = |word: u64| bar + offset + word * 4;
        if is_unmasked {
            machine.bus.store(at(0), 4, low.into());
            machine.bus.store(at(1), 4, high.into());
            machine.bus.store(at(2), 4, data.into());
        }
        machine.bus.store(at(3), 4, control.into());
    }
}

/// The remapping table was changed.
fn tell_iommu(machine: &MachineDevices, given: &Given) {
    if let Some(iommu) = machine.iommu(given.iommu)
        && let Err(stuck) = iommu.interrupts_changed(given.device.id)
    {
        log::error!("device {}: its interrupts may be lost: {stuck}", given.device.id);
    }
}

/// What the real function writes for a message: the number of an entry in its remapping table.
const fn real_message(number: u16) -> RealMessage {
    RealMessage { address: INTERRUPTS_AT, data: number as u32 }
}
