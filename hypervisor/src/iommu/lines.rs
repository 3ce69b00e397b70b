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

use alloc::vec::Vec;
use pci::function::Interrupts as Wanted;
use pci::{Address, Function, Physical};
use spin::Mutex;

use super::smmu::Smmu;
use crate::devices::virt::fdt::Wire;
use crate::devices::virt::map::{PCI_LINES, pci_intid, shared_intid};
use crate::devices::virt::pci::FIRST;
use crate::owned::{self, Functions, Given, Interrupts, Platform, Refused};

/// SMMUv3, with functions that interrupt by their pins.
pub enum Wired {}

/// The machine's functions and SMMUs.
pub type MachineDevices = owned::MachineDevices<Wired>;

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
    fn cpu(&self, number: usize) -> Option<u64>;
}

/// The real lines.
pub trait Gate: Send + Sync {
    /// The INTID of a line, if it is wired.
    fn intid(&self, line: usize) -> Option<u32>;
    /// Lets a line interrupt, or masks it.
    fn set_open(&self, line: usize, is_open: bool);
    /// Has a line, which is masked, interrupt the CPU with this affinity.
    fn aim(&self, line: usize, cpu: u64);
}

/// Where the lines go.
pub struct Lines {
    gate: &'static dyn Gate,
    /// The function by which the hypervisor is controlled: its line is the hypervisor's own.
    own: Option<(Address, usize)>,
    to: Mutex<[Route; PCI_LINES]>,
}

#[derive(Clone, Copy, Default)]
struct Route {
    to: Option<&'static dyn Receiver>,
    /// Functions that use it.
    users: u32,
}

impl Lines {
    /// All lines are masked, except for the one of the hypervisor's own function, pin A.
    pub fn new(gate: &'static dyn Gate, own: Option<Address>) -> Self {
        let own = own.and_then(|own| Some((own, line_of(own, 1)?)));
        Self { gate, own, to: Mutex::default() }
    }

    /// Whether the hypervisor's own function has this line.
    pub fn is_own(&self, line: usize) -> bool {
        self.own.is_some_and(|(_, own)| own == line)
    }

    fn take(&self, line: usize, guest: &'static dyn Receiver) {
        let mut routes = self.to.lock();
        let Some(route) = routes.get_mut(line) else { return };
        route.users += 1;
        if route.users == 1 {
            route.to = Some(guest);
            if let Some(cpu) = guest.cpu(line) {
                self.gate.aim(line, cpu);
            }
            self.gate.set_open(line, true);
        }
    }

    fn free(&self, line: usize) {
        let mut routes = self.to.lock();
        let Some(route) = routes.get_mut(line) else { return };
        route.users = route.users.saturating_sub(1);
        if route.users == 0 {
            route.to = None;
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
        if let Some(guest) = routes.get(line).and_then(|route| route.to) {
            guest.raise(pci_intid(line));
        }
        true
    }

    /// A guest has ended the interrupt of a line that is its own, which was high for it. The lock
    /// of the guest's distributor is held, which is taken in [`deliver`](Self::deliver) after that
    /// of the routes: so the routes are not looked at.
    pub fn sample(&self, intid: u8) {
        if let Some(line) = (0..PCI_LINES).find(|&line| pci_intid(line) == intid) {
            self.gate.set_open(line, true);
        }
    }
}

impl Platform for Wired {
    type Iommu = Smmu;
    type Interrupts = Pin;
    type Routes = Lines;
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
        for ((device, shown), given) in (FIRST..).zip(&mut *shown).zip(self.given()) {
            let Physical { address, pin, .. } = given.physical;
            if let Some(line) = line_of(address, pin) {
                let intid = pci_intid(line);
                shown.show_pin(pin, intid);
                wires.push(Wire { device, pin, intid });
            }
        }
        // Each region's function has an interrupt of its own, beside the real lines.
        for (number, (index, link)) in (0..).zip(self.links()) {
            let (device, pin, intid) = (FIRST + index as u8, 1, shared_intid(number));
            if let Some(shown) = shown.get_mut(index) {
                shown.show_pin(pin, intid);
                link.wire(intid);
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
    fn new(physical: &Physical, _: &Function) -> Self {
        Self { line: line_of(physical.address, physical.pin), is_taken: false }
    }

    fn follow(
        &mut self,
        machine: &MachineDevices,
        _: &Given,
        to: &'static dyn Receiver,
        wanted: &Function,
    ) -> bool {
        let is_on = wanted.interrupts() == Wanted::Intx;
        if let Some(line) = self.line.filter(|_| is_on && !self.is_taken) {
            self.is_taken = true;
            machine.routes.take(line, to);
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
            machine.routes.free(line);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use alloc::boxed::Box;
    use pci::ConfigSpace;
    use pci::function::Windows;

    /// Configuration space with a device that has an identity and pin A only.
    struct Space;

    impl ConfigSpace for Space {
        fn read(&self, _: Address, register: u16) -> u32 {
            match register {
                0 => 0x1234_5678,
                INTERRUPT => 0x100,
                _ => 0,
            }
        }

        fn write(&self, _: Address, _: u16, _: u32) {}
    }

    /// A function with pin A, and as a guest sees it.
    pub(crate) fn function() -> (Physical, Function) {
        let at = Address::new(0, 2, 0).unwrap();
        let physical = Physical::read(&Space, at).unwrap();
        let shown = Function::new(&physical, Windows { low: 0..0, high: 0..0 });
        (physical, shown)
    }

    #[derive(Default)]
    struct Machine {
        open: Mutex<[bool; PCI_LINES]>,
        aims: Mutex<Vec<(usize, u64)>>,
        delivered: Mutex<Vec<u8>>,
    }

    impl Gate for Machine {
        fn intid(&self, line: usize) -> Option<u32> {
            (line != 3).then_some(100 + line as u32)
        }

        fn set_open(&self, line: usize, is_open: bool) {
            self.open.lock()[line] = is_open;
        }

        fn aim(&self, line: usize, cpu: u64) {
            assert!(!self.open.lock()[line], "it would interrupt the former CPU");
            self.aims.lock().push((line, cpu));
        }
    }

    impl Receiver for Machine {
        fn raise(&self, intid: u8) {
            assert!(!self.open.lock().iter().any(|open| *open), "masked before it is high");
            self.delivered.lock().push(intid);
        }

        fn cpu(&self, number: usize) -> Option<u64> {
            Some(number as u64 + 7)
        }
    }

    #[test]
    fn pins_are_wired_to_the_lines_in_turn() {
        let line = |device, pin| line_of(Address::new(0, device, 0).unwrap(), pin);
        assert_eq!([line(0, 1), line(1, 1), line(1, 4), line(6, 2)], [Some(0), Some(1), Some(0), Some(3)]);
        assert_eq!([line(1, 0), line(1, 5)], [None, None]);
    }

    #[test]
    fn a_line_is_masked_from_its_interrupt_to_the_guests_end() {
        let machine: &'static Machine = Box::leak(Box::default());
        let lines = Lines::new(machine, Address::new(0, 1, 0));
        assert!(lines.is_own(1) && !lines.is_own(2));
        assert!(!lines.deliver(101), "the hypervisor's own");
        assert!(!lines.deliver(103), "none");
        lines.take(2, machine);
        assert!(machine.open.lock()[2]);
        assert_eq!(*machine.aims.lock(), [(2, 9)], "one of the guest's CPUs");
        assert!(lines.deliver(102));
        assert_eq!(*machine.delivered.lock(), [pci_intid(2)]);
        assert!(!machine.open.lock()[2]);
        lines.sample(pci_intid(2));
        assert!(machine.open.lock()[2]);
        assert!(lines.deliver(102));
        assert_eq!(machine.delivered.lock().len(), 2, "it was still high");
    }

    #[test]
    fn a_line_of_nobody_is_masked() {
        let machine: &'static Machine = Box::leak(Box::default());
        let lines = Lines::new(machine, None);
        lines.take(0, machine);
        lines.take(0, machine);
        lines.free(0);
        assert!(machine.open.lock()[0], "another function uses it");
        lines.free(0);
        assert!(!machine.open.lock()[0]);
        assert!(lines.deliver(100), "it was on its way");
        assert_eq!(*machine.delivered.lock(), []);
    }
}
