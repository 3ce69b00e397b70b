//! Lines without a machine.

use super::*;
use alloc::boxed::Box;
use baremetal::HardwareId;
use baremetal::moment::{Moment, each_moment};
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

const AT: Address = Address::new(0, 8, 0).unwrap();

/// Lines, all but the last one wired, and a guest.
#[derive(Default)]
pub(crate) struct Machine {
    open: Mutex<[bool; PCI_LINES]>,
    aims: Mutex<Vec<(usize, u64)>>,
    high: Mutex<bool>,
    delivered: Mutex<Vec<u8>>,
    moment: Moment,
}

impl Machine {
    pub(crate) fn leaked() -> &'static Self {
        Box::leak(Box::default())
    }

    pub(crate) fn open(&self) -> [bool; PCI_LINES] {
        *self.open.lock()
    }
}

impl Gate for Machine {
    fn intid(&self, line: usize) -> Option<u32> {
        (line != 3).then_some(100 + line as u32)
    }

    fn set_open(&self, line: usize, is_open: bool) {
        self.moment.pass();
        self.open.lock()[line] = is_open;
    }

    fn aim(&self, line: usize, cpu: HardwareId) {
        assert!(!self.open.lock()[line], "it would interrupt the former CPU");
        self.aims.lock().push((line, cpu.0));
    }

    fn is_high(&self, function: Address) -> bool {
        self.moment.pass();
        function == AT && *self.high.lock()
    }
}

impl Receiver for Machine {
    fn raise(&self, intid: u8) {
        self.moment.pass();
        assert!(!self.open.lock().iter().any(|open| *open), "masked before it is high");
        self.delivered.lock().push(intid);
    }

    fn cpu(&self, number: usize) -> Option<HardwareId> {
        Some(HardwareId(number as u64 + 7))
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
    let machine = Machine::leaked();
    let lines = InterruptLines::new(machine, Address::new(0, 1, 0));
    assert!(lines.is_own(1) && !lines.is_own(2));
    assert!(!lines.deliver(101), "the hypervisor's own");
    assert!(!lines.deliver(103), "none");
    lines.take(2, AT, machine);
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
fn an_event_of_any_moment_is_served_and_the_next_one_interrupts() {
    each_moment(|at| {
        let machine = Machine::leaked();
        let lines = InterruptLines::new(machine, None);
        lines.take(0, AT, machine);
        *machine.high.lock() = true;
        machine.moment.set(at, || *machine.high.lock() = true);
        let mut served = 0;
        while machine.open.lock()[0] && *machine.high.lock() {
            assert!(lines.deliver(100));
            // By the guest, which then ends its interrupt.
            served += u32::from(core::mem::take(&mut *machine.high.lock()));
            assert_eq!(lines.sample(pci_intid(0)), None);
        }
        assert!(machine.open.lock()[0] && !*machine.high.lock(), "before access {at}");
        assert_eq!(machine.delivered.lock().len(), served as usize, "before access {at}");
        machine.moment.has_come()
    });
}

#[test]
fn u71_a_line_that_stays_high_leaves_its_guest_time() {
    let machine = Machine::leaked();
    let lines = InterruptLines::new(machine, None);
    let ended = || {
        assert!(lines.deliver(100));
        lines.sample(pci_intid(0))
    };
    let is_open = || machine.open.lock()[0];
    lines.take(0, AT, machine);
    assert!((0..1000).all(|_| ended().is_none()), "served each time");
    *machine.high.lock() = true;
    assert!((0..IN_A_ROW).all(|_| ended().is_none() && is_open()));
    let mut pauses = Vec::new();
    for _ in 0..2 * LONG_ONE_OF {
        pauses.extend(ended());
        assert!(!is_open(), "in a pause");
        lines.resume();
        assert!(is_open());
    }
    assert_eq!(pauses.len(), 2 * LONG_ONE_OF as usize, "each has an end");
    assert_eq!(pauses.iter().filter(|&&us| us == LONG_PAUSE_US).count(), 2);
    *machine.high.lock() = false;
    assert!(ended().is_none() && is_open(), "served");
    *machine.high.lock() = true;
    assert!((0..IN_A_ROW).all(|_| ended().is_none()) && ended() == Some(PAUSE_US));
    lines.free(0, AT);
    lines.resume();
    assert!(!is_open(), "it is nobody's");
}

#[test]
fn a_line_of_nobody_is_masked() {
    let machine = Machine::leaked();
    let lines = InterruptLines::new(machine, None);
    let other = Address::new(0, 12, 0).unwrap();
    lines.take(0, AT, machine);
    lines.take(0, other, machine);
    lines.free(0, AT);
    assert!(machine.open.lock()[0], "another function uses it");
    lines.free(0, other);
    assert!(!machine.open.lock()[0]);
    assert!(lines.deliver(100), "it was on its way");
    assert_eq!(*machine.delivered.lock(), []);
}
