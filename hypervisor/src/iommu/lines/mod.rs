//! Interrupts of owned functions, by their pins. MSI and MSI-X are hidden from guests.
//!
//! A host bridge has four lines, and pin A to D of a device are wired to them in turn (PCI to PCI
//! Bridge Architecture Specification 1.2, 9.1). A line is level-triggered, and goes to one guest:
//! to an SPI of its own, whose level follows it like this:
//!
//! ```text
//! CPU that the line interrupts            CPU of the vCPU that has the guest's SPI
//! A  mask the line                        D  the guest ends its interrupt: it is low there
//! B  the guest's SPI is high              E  unmask the line: it interrupts again if it is high
//! C  post it to a vCPU
//! ```
//!
//! A before B: while the SPI is high the line is masked. D before E: the device was served between
//! C and D, or interrupts again. So a masked line always has an SPI that is high, and no interrupt
//! is lost.
//!
//! A device that does not lower its line, though it was served, would have its guest do nothing
//! else, as QEMU's NVMe does (`docs/qemu.md`). So if the line is still high at D many times in a
//! row, E comes after a pause, by a timer of the vCPU.

use alloc::vec::Vec;
use arrayvec::ArrayVec;
use baremetal::HardwareId;
use iommu::DeviceId;
use pci::function::Interrupts as Wanted;
use pci::{Address, Function, Physical};
use spin::Mutex;

use super::smmu::Smmu;
use crate::devices::virt::fdt::Wire;
use crate::devices::virt::map::{PCI_LINES, pci_intid};
use crate::devices::virt::pci::FIRST;
use crate::owned::{self, Functions, Given, Interrupts, Platform, Refused};

/// SMMUv3, with functions that interrupt by their pins.
pub enum Wired {}

/// The machine's functions and SMMUs.
pub type MachineDevices = owned::MachineDevices<Wired>;

/// So often in a row a line may still be high when the guest ends its interrupt.
const IN_A_ROW: u32 = 64;
/// The pause from then on, in microseconds. A few are long: Linux gives up an interrupt for good
/// that comes 100,000 times for nothing, unless there are 100 ms without it.
const PAUSE_US: u64 = 1000;
const LONG_PAUSE_US: u64 = 150_000;
const LONG_ONE_OF: u32 = 1 << 14;

/// At most so many functions use a line: all of the first bus.
const USERS_MAX: usize = 256;

/// The line of a pin (1 for INTA, to 4) of a function on the first bus.
pub const fn line_of(function: Address, pin: u8) -> Option<usize> {
    match pin {
        1..=4 => Some((function.device() as usize + pin as usize - 1) % PCI_LINES),
        _ => None,
    }
}

/// A guest that gets the interrupts of lines.
pub trait Receiver: Sync {
    /// An interrupt's line is high.
    fn raise(&self, intid: u8);
    /// The affinity of one of the CPUs that run the guest's vCPUs, chosen by a number.
    fn cpu(&self, number: usize) -> Option<HardwareId>;
}

/// The real lines.
pub trait Gate: Send + Sync {
    /// The INTID of a line, if it is wired.
    fn intid(&self, line: usize) -> Option<u32>;
    /// Lets a line interrupt, or masks it.
    fn set_open(&self, line: usize, is_open: bool);
    /// Has a line, which is masked, interrupt the CPU with this affinity.
    fn aim(&self, line: usize, cpu: HardwareId);
    /// Whether a function wants an interrupt by its pin.
    fn is_high(&self, function: Address) -> bool;
}

/// Where the lines go.
pub struct InterruptLines {
    gate: &'static dyn Gate,
    /// The function by which the hypervisor is controlled: its line is the hypervisor's own.
    own: Option<(Address, usize)>,
    to: Mutex<[Option<&'static dyn Receiver>; PCI_LINES]>,
    /// Locked after `to`, or after a distributor.
    uses: Mutex<[Use; PCI_LINES]>,
}

#[derive(Default)]
struct Use {
    by: ArrayVec<Address, USERS_MAX>,
    /// How often in a row it was still high.
    in_a_row: u32,
    /// It is masked until a pause is over.
    is_paused: bool,
}

impl InterruptLines {
    /// All lines are masked, except for the one of the hypervisor's own function, pin A.
    pub fn new(gate: &'static dyn Gate, own: Option<Address>) -> Self {
        let own = own.and_then(|own| Some((own, line_of(own, 1)?)));
        Self { gate, own, to: Mutex::default(), uses: Mutex::default() }
    }

    /// Whether the hypervisor's own function has this line.
    pub fn is_own(&self, line: usize) -> bool {
        self.own.is_some_and(|(_, own)| own == line)
    }

    fn take(&self, line: usize, function: Address, guest: &'static dyn Receiver) {
        let (mut routes, mut uses) = (self.to.lock(), self.uses.lock());
        let (Some(to), Some(used)) = (routes.get_mut(line), uses.get_mut(line)) else { return };
        if used.by.try_push(function).is_ok() && used.by.len() == 1 {
            *to = Some(guest);
            if let Some(cpu) = guest.cpu(line) {
                self.gate.aim(line, cpu);
            }
            self.gate.set_open(line, true);
        }
    }

    fn free(&self, line: usize, function: Address) {
        let (mut routes, mut uses) = (self.to.lock(), self.uses.lock());
        let (Some(to), Some(used)) = (routes.get_mut(line), uses.get_mut(line)) else { return };
        used.by.retain(|by| *by != function);
        if used.by.is_empty() {
            (*to, *used) = (None, Use::default());
            self.gate.set_open(line, false);
        }
    }

    /// An interrupt has arrived, which was not deactivated yet. False if it is of no line.
    pub fn deliver(&self, intid: u32) -> bool {
        let is_it = |line: &usize| self.gate.intid(*line) == Some(intid) && !self.is_own(*line);
        let Some(line) = (0..PCI_LINES).find(is_it) else { return false };
        // Held during delivery: once a guest's route is gone, nobody uses the guest because of it.
        let routes = self.to.lock();
        self.gate.set_open(line, false);
        if let Some(guest) = routes.get(line).and_then(|to| *to) {
            guest.raise(pci_intid(line));
        }
        true
    }

    /// A guest has ended the interrupt of a line that is its own, which was high for it. The lock
    /// of the guest's distributor is held, which is taken in [`deliver`](Self::deliver) after that
    /// of the routes: so the routes are not looked at. If it returns microseconds, the line is
    /// masked still, and [`resume`](Self::resume) is to be called after them.
    pub fn sample(&self, intid: u8) -> Option<u64> {
        let line = (0..PCI_LINES).find(|&line| pci_intid(line) == intid)?;
        let mut uses = self.uses.lock();
        let used = uses.get_mut(line)?;
        let is_high = used.by.iter().any(|&by| self.gate.is_high(by));
        used.in_a_row = if is_high { used.in_a_row.wrapping_add(1) } else { 0 };
        used.is_paused = used.in_a_row > IN_A_ROW;
        if !used.is_paused {
            self.gate.set_open(line, true);
            return None;
        }
        Some(if used.in_a_row % LONG_ONE_OF == 0 { LONG_PAUSE_US } else { PAUSE_US })
    }

    /// A pause is over: the lines that were kept back interrupt again.
    pub fn resume(&self) {
        for (line, used) in self.uses.lock().iter_mut().enumerate() {
            if core::mem::take(&mut used.is_paused) {
                self.gate.set_open(line, true);
            }
        }
    }
}

impl Platform for Wired {
    type Iommu = Smmu;
    type Interrupts = Pin;
    type Routes = InterruptLines;
    type Receiver = dyn Receiver;

    const SHOWS_MESSAGES: bool = false;

    fn check(
        machine: &MachineDevices,
        physical: &Physical,
        neighbours: &mut dyn Iterator<Item = Address>,
    ) -> Result<(), Refused> {
        let at = physical.address;
        if physical.pin == 0 {
            return Ok(());
        }
        let line = line_of(at, physical.pin).filter(|&line| machine.routes.gate.intid(line).is_some());
        let line = line.ok_or(Refused::NoLine(at))?;
        if let Some((own, _)) = machine.routes.own.filter(|&(_, own)| own == line) {
            return Err(Refused::Line(at, own));
        }
        for other in neighbours {
            let [_, pin, ..] = machine.bus.read(other, INTERRUPT).to_le_bytes();
            if line_of(other, pin) == Some(line) {
                return Err(Refused::Line(at, other));
            }
        }
        Ok(())
    }
}

impl Functions<Wired> {
    /// Gives the functions that a guest sees their pins; returns how those are wired for it.
    pub fn wire(&self, shown: &mut [Function]) -> Vec<Wire> {
        let mut wires = Vec::new();
        for ((device, shown), given) in (FIRST..).zip(shown).zip(self.given()) {
            let Physical { address, pin, .. } = given.physical;
            if let Some(line) = line_of(address, pin) {
                let intid = pci_intid(line);
                shown.show_pin(pin, intid);
                wires.push(Wire { device, pin, intid });
            }
        }
        wires
    }
}

/// Register with the interrupt pin in bits 15:8.
const INTERRUPT: u16 = 0x3c;

/// The pin of a function.
pub struct Pin {
    line: Option<usize>,
    is_taken: bool,
}

impl Interrupts<Wired> for Pin {
    fn new(_: Option<(&Smmu, DeviceId)>, physical: &Physical, _: &Function) -> Self {
        Self { line: line_of(physical.address, physical.pin), is_taken: false }
    }

    fn follow(
        &mut self,
        machine: &MachineDevices,
        given: &Given,
        to: &'static dyn Receiver,
        wanted: &Function,
    ) -> bool {
        let is_on = wanted.interrupts() == Wanted::Intx;
        if let Some(line) = self.line.filter(|_| is_on && !self.is_taken) {
            self.is_taken = true;
            machine.routes.take(line, given.physical.address, to);
        }
        is_on
    }

    /// Messages are never enabled here; firmware may have done it.
    fn forget(&mut self, machine: &MachineDevices, given: &Given) {
        let Physical { address, capabilities, .. } = &given.physical;
        if let Some(msix) = capabilities.msix {
            msix.control(&machine.bus, *address, false, true);
        }
        if let Some(msi) = capabilities.msi {
            msi.send(&machine.bus, *address, None);
        }
        if let Some(line) = self.line.filter(|_| self.is_taken) {
            self.is_taken = false;
            machine.routes.free(line, *address);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
