//! One guest's functions: what the guest wants, and what the real ones do.

use alloc::vec::Vec;

use core::sync::atomic::Ordering;

use hostlink::name::Name;
use iommu::amd::table::{InterruptEntry, InterruptTable};
use iommu::amd::{DeviceId, DomainId};
use memslots::Gpa;
use pci::function::{Interrupts, Windows};
use pci::msix::{self, Message as RealMessage};
use pci::{Function, Physical};

use super::domains::Domains;
use super::machine::{Given, MachineDevices, Refused};
use super::routes::Deliver;
use super::slots::{Piece, pieces};
use crate::amd64::processor::Amd64;
use crate::amd64::rom::{Busy, Followed};
use crate::devices::pc::message::Message;
use crate::pages::Pages;
use crate::vm::{PerCpu, Vm, VpIndex};

/// The command register: memory is decoded, DMA is on, the pin is silent.
const MEMORY: u32 = 1 << 1;
const MASTER: u32 = 1 << 2;
const NO_PIN: u32 = 1 << 10;
const COMMAND: u16 = 4;
/// Log2 of the number of entries of a function's interrupt remapping table: 512, of which the first
/// 256 can be used, because the other bits of a message's data are its delivery mode.
const REMAP_ORDER: u8 = 9;
/// The address of an interrupt. Its other bits are in the remapping entry.
const INTERRUPTS_AT: u64 = 0xfee0_0000;

/// What a guest that is being created will own.
pub struct Claim {
    /// The functions. Dropped, they are free again.
    pub functions: Functions,
    /// What the guest sees of each.
    pub shown: Vec<Function>,
    /// The IOMMUs that translate for them; `None` if there are no functions.
    pub domains: Option<Domains>,
}

/// A guest's functions.
pub struct Functions {
    pub(super) machine: Option<&'static MachineDevices>,
    pub(super) owned: Vec<Owned>,
    pub(super) guest: Name,
    pub(super) domain: Option<DomainId>,
    /// They translate by the guest's tables.
    pub(super) is_attached: bool,
}

/// A real function.
pub(super) struct Owned {
    pub(super) given: Given,
    /// Its interrupt remapping table.
    remaps: Pages,
    /// For each of its messages the machine's vector, once it has one.
    vectors: Vec<Option<u8>>,
    /// Which messages the real function may send now.
    is_unmasked: Vec<bool>,
    /// It has a table of MSI-X that can be used, and that the hypervisor has mapped.
    has_table: bool,
    /// What the real function's command register has.
    command: u32,
    /// Ranges of its registers that the guest reaches directly.
    pub(super) pieces: Vec<Piece>,
    pub(super) reset: Option<pci::reset::Reset>,
}

impl Functions {
    /// Claims the functions that `names` name, for the guest of this name.
    ///
    /// # Errors
    ///
    /// Why it does not get them.
    #[inline(never)] // What it needs on the stack is free again when it returns.
    pub fn claim(
        machine: Option<&'static MachineDevices>,
        names: &'static str,
        guest: Name,
        windows: &Windows,
    ) -> Result<Claim, Refused> {
        if names.is_empty() {
            return Ok(Claim { functions: Self::none(guest), shown: Vec::new(), domains: None });
        }
        let machine = machine.ok_or(Refused::NoPci)?;
        let (given, id) = machine.give(names, guest)?;
        let domains = Domains::new(machine, id, &given).inspect_err(|_| machine.take_back(guest, id))?;
        let mut shown = Vec::with_capacity(given.len());
        given.iter().for_each(|given| show(&mut shown, &given.physical, windows));
        let owned = given.into_iter().zip(&shown).map(|(given, shown)| Owned::new(given, shown)).collect();
        let functions = Self { machine: Some(machine), owned, guest, domain: Some(id), is_attached: false };
        Ok(Claim { functions, shown, domains: Some(domains) })
    }

    /// No functions.
    const fn none(guest: Name) -> Self {
        Self { machine: None, owned: Vec::new(), guest, domain: None, is_attached: false }
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.owned.is_empty()
    }

    /// Makes the real functions do what the guest wants: DMA, interrupts, and the place of their
    /// registers.
    ///
    /// # Errors
    ///
    /// [`Busy`] if not all is done, because one change of the slots at a time is possible: the
    /// access that caused this must be retried.
    pub fn follow<A: Amd64>(
        &mut self,
        vm: &'static Vm<A>,
        cpu: &PerCpu<A>,
        by: VpIndex,
    ) -> Result<Followed, Busy> {
        if self.is_empty() {
            return Ok(Followed::WasThere);
        }
        let board = vm.guest.platform.lock();
        for (index, function) in board.functions().iter().enumerate() {
            self.follow_function(vm, index, function);
        }
        let bars: Vec<_> = board.functions().iter().map(Function::bars).collect();
        drop(board);
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
    pub fn hide<A: Amd64>(&mut self, vm: &'static Vm<A>, cpu: &PerCpu<A>) -> Result<Followed, Busy> {
        self.follow_slots(vm, cpu, 0, |_, _| None)
    }

    /// The same as [`follow`](Self::follow) for DMA and interrupts of one function.
    pub(super) fn follow_function<A: Amd64>(&mut self, vm: &'static Vm<A>, index: usize, wanted: &Function) {
        let Some(machine) = self.machine else { return };
        let Some(owned) = self.owned.get_mut(index) else { return };
        if owned.reset.is_some() || !self.is_attached {
            return;
        }
        owned.follow_interrupts::<A>(machine, vm, wanted);
        let master = if wanted.is_bus_master() { MASTER } else { 0 };
        owned.command(machine, MEMORY | NO_PIN | master);
    }
}

impl Owned {
    fn new(given: Given, shown: &Function) -> Self {
        let messages = usize::from(shown.vector_count());
        let pieces = pieces(&given.physical, shown);
        Self {
            given,
            remaps: Pages::new(1),
            vectors: alloc::vec![None; messages],
            is_unmasked: alloc::vec![false; messages],
            has_table: !shown.trapped().is_empty(),
            command: 0,
            pieces,
            reset: None,
        }
    }

    /// Its interrupt remapping table.
    pub(super) const fn interrupt_table(&self) -> InterruptTable {
        InterruptTable { address: self.remaps.start(), order: REMAP_ORDER }
    }

    /// Writes the command register, if it changes.
    pub(super) fn command(&mut self, machine: &MachineDevices, command: u32) {
        if self.command != command {
            self.command = command;
            machine.bus.write(self.given.physical.address, COMMAND, command);
        }
    }

    /// After a reset nothing is enabled. Not every way of reset reaches the interrupts, so they are
    /// switched off here.
    pub(super) fn forget(&mut self, machine: &MachineDevices) {
        self.command = 0;
        let physical = &self.given.physical;
        if let Some(msix) = physical.capabilities.msix {
            msix.control(&machine.bus, physical.address, false, true);
            // The table is memory of the function's: it has to be decoded.
            machine.bus.write(physical.address, COMMAND, MEMORY | NO_PIN);
            (0..msix.vectors).for_each(|number| self.set_real(machine, number, false));
            machine.bus.write(physical.address, COMMAND, NO_PIN);
        }
        if let Some(msi) = physical.capabilities.msi {
            msi.send(&machine.bus, physical.address, None);
        }
        self.is_unmasked.fill(false);
        self.free_vectors(machine);
    }

    fn follow_interrupts<A: Amd64>(
        &mut self,
        machine: &MachineDevices,
        vm: &'static Vm<A>,
        wanted: &Function,
    ) {
        let way = wanted.interrupts();
        for number in 0..wanted.vector_count() {
            let message =
                wanted.vector(number).and_then(|message| Message::from_msi(message.address, message.data));
            self.follow_message::<A>(machine, vm, number, message);
        }
        let physical = &self.given.physical;
        if let Some(msix) = physical.capabilities.msix {
            msix.control(&machine.bus, physical.address, way == Interrupts::Msix, false);
        }
        if let Some(msi) = physical.capabilities.msi {
            let is_on = way == Interrupts::Msi && self.is_unmasked.first() == Some(&true);
            msi.send(&machine.bus, physical.address, is_on.then_some(real_message(0)));
        }
    }

    /// The guest's message of a number is this one now.
    fn follow_message<A: Amd64>(
        &mut self,
        machine: &MachineDevices,
        vm: &'static Vm<A>,
        number: u16,
        message: Option<Message>,
    ) {
        let index = usize::from(number);
        let Some(&known) = self.vectors.get(index) else { return };
        let vector = match (known, message) {
            (None, None) => return,
            (None, Some(_)) => {
                let to: &'static dyn Deliver = vm;
                let Some(vector) = machine.routes.lock().take(to) else {
                    log::warn!(target: crate::vm::GUEST, "no vector is left for interrupts of a device");
                    return;
                };
                self.remap::<A>(machine, number, vector);
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
            self.set_real(machine, number, message.is_some());
        }
    }

    /// Sends a message's interrupts to one of the CPUs.
    fn remap<A: Amd64>(&self, machine: &MachineDevices, number: u16, vector: u8) {
        let cpus = crate::vm::percpu::online::<A>().count().max(1);
        let cpu = crate::vm::percpu::online::<A>().nth(usize::from(vector) % cpus);
        let Some(id) = cpu.and_then(|cpu| u8::try_from(cpu.id).ok()) else { return };
        let InterruptEntry(entry) = InterruptEntry::fixed(id, vector);
        let Some(word) = self.remaps.words().get(usize::from(number) / 2) else { return };
        let shift = u32::from(number) % 2 * 32;
        let others = word.load(Ordering::Relaxed) & !(0xffff_ffff << shift);
        // Relaxed: the doorbell of the command below orders it for the IOMMU.
        word.store(others | u64::from(entry) << shift, Ordering::Relaxed);
        self.tell_iommu(machine);
    }

    /// The remapping table was changed.
    fn tell_iommu(&self, machine: &MachineDevices) {
        if let Some(iommu) = machine.iommu(self.given.iommu)
            && let Err(stuck) = iommu.interrupts_changed(self.device())
        {
            log::error!("device {}: its interrupts may be lost: {stuck}", self.device());
        }
    }

    /// Lets the real function send a message of MSI-X, or masks it.
    fn set_real(&self, machine: &MachineDevices, number: u16, is_unmasked: bool) {
        let Some(msix) = self.given.physical.capabilities.msix.filter(|_| self.has_table) else { return };
        let Some((offset, bar)) = msix::entry_offset(&msix, number).zip(self.bar(msix.table.bar)) else {
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

    /// Host physical address of a BAR.
    pub(super) fn bar(&self, number: u8) -> Option<u64> {
        let bar = (*self.given.physical.bars.get(usize::from(number))?)?;
        bar.is_memory().then_some(bar.address)
    }

    /// Frees its vectors, and blocks its interrupts.
    fn free_vectors(&mut self, machine: &MachineDevices) {
        if self.vectors.iter().all(Option::is_none) {
            return;
        }
        self.remaps.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.tell_iommu(machine);
        let mut routes = machine.routes.lock();
        self.vectors.iter_mut().filter_map(Option::take).for_each(|vector| routes.free(vector));
    }

    /// The id by which the IOMMU knows it.
    pub(super) const fn device(&self) -> DeviceId {
        self.given.device.id
    }
}

/// Adds what a guest sees of a function: some KiB, which are on the stack here only.
#[inline(never)]
fn show(shown: &mut Vec<Function>, physical: &Physical, windows: &Windows) {
    shown.push(Function::new(physical, windows.clone()));
}

/// What the real function writes for a message: the number of an entry in its remapping table.
const fn real_message(number: u16) -> RealMessage {
    RealMessage { address: INTERRUPTS_AT, data: number as u32 }
}
