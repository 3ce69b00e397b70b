use super::*;
use crate::mock::{Device, Machine, at, nvme, virtio_net};
use crate::physical::walk;
use std::vec::Vec;

fn nodes(machine: &Machine) -> Vec<Node> {
    let mut nodes = Vec::new();
    walk(machine, &[0], |node| nodes.push(node)).unwrap();
    nodes
}

fn found(device: Device) -> Option<Method> {
    let machine = Machine::new([("00:04.0", device)]);
    method(&Physical::read(&machine, at("00:04.0")).unwrap(), &nodes(&machine))
}

/// Steps a reset to its end, as fast as it allows, and returns its end, its duration in
/// microseconds and the number of steps.
fn run(machine: &Machine, address: &str, method: Method) -> (Step, u64, usize) {
    let physical = Physical::read(machine, at(address)).unwrap();
    machine.writes.borrow_mut().clear();
    let mut reset = Reset::new(machine, &physical, method);
    assert!(machine.writes.borrow().is_empty());
    let start = machine.now.get();
    for count in 1..=205 {
        match reset.step(machine, machine.now.get()) {
            Step::NotBefore(time) => {
                assert!(time >= machine.now.get());
                machine.now.set(time);
            }
            end => {
                assert_eq!(reset.step(machine, machine.now.get()), end, "it stays so");
                return (end, machine.now.get() - start, count);
            }
        }
    }
    panic!("no end");
}

const DONE: Step = Step::Done { was_pending: false };

/// Control and status of the advanced features at 0x70, with a reset.
fn advanced(device: Device) -> Device {
    device.capability(0x70, &[0x0306_0013, 0]).reset_by(0x74, 1, 0, 1)
}

#[test]
fn methods_are_taken_in_their_order() {
    assert_eq!(found(nvme()), Some(Method::Flr(0x80)));
    let plain = || Device::new(1234, 1, 0);
    assert_eq!(found(advanced(plain().express(0, false).power(false))), Some(Method::AdvancedFlr(0x70)));
    assert_eq!(found(plain().express(0, false).power(false)), Some(Method::Power(0x60)));
    assert_eq!(found(plain().capability(0x70, &[0x0106_0013])), None, "it tells, but does not reset");
    assert_eq!(found(plain().power(true)), None, "it keeps its state");
    assert_eq!(found(plain()), None);
}

#[test]
fn a_bus_is_reset_only_for_the_one_function_on_it() {
    let device = || Device::new(1234, 1, 0x02_0000);
    let alone = Machine::new([
        ("00:01.0", Device::bridge(1, 1).express(4, false)),
        ("00:02.0", Device::bridge(2, 2).express(4, false)),
        ("01:00.0", device()),
        ("02:00.0", device().multi_function()),
        ("02:00.3", device()),
    ]);
    let physical = |address| Physical::read(&alone, at(address)).unwrap();
    let nodes = nodes(&alone);
    assert_eq!(method(&physical("01:00.0"), &nodes), Some(Method::Bus(at("00:01.0"))));
    assert_eq!(method(&physical("02:00.0"), &nodes), None);
    assert_eq!(method(&physical("02:00.3"), &nodes), None);
}

#[test]
fn a_function_is_off_before_its_reset_and_as_before_without_dma_after_it() {
    let device = nvme().with(0xc, 0x10).with(0x3c, 0x0b).with(0x30, 0xfeb0_0000).writable(0x30, 0xffff_0001);
    let device = device.with(0x88, 1);
    let machine = Machine::new([("00:04.0", device)]);
    let before = machine.device("00:04.0");
    let (end, time, _) = run(&machine, "00:04.0", Method::Flr(0x80));
    assert_eq!((end, time), (DONE, 100_000));
    let after = machine.device("00:04.0");
    assert_eq!(after.resets, 1);
    for register in (0..0x100).step_by(4) {
        let expected = if register == 4 { before.word(4) & !4 } else { before.word(register) };
        assert_eq!(after.word(register), expected, "{register:#x}");
    }
    let writes = machine.writes.borrow();
    assert_eq!(writes[0], (at("00:04.0"), 4, 0x400), "decoding and DMA off, the pin off");
    assert_eq!(writes[1], (at("00:04.0"), 0x88, 0xa811), "control as it was, and the reset");
    assert_eq!(writes.last(), Some(&(at("00:04.0"), 4, 2)), "the command is the last");
}

#[test]
fn all_methods_reset_and_wait_as_long_as_they_must() {
    let power =
        || virtio_net().capability(0xb0, &[0x0003_0001, 0x8000]).writable(0xb4, 3).reset_by(0xb4, 3, 3, 0);
    let machine = Machine::new([
        ("00:01.0", Device::bridge(1, 1).with(0x3c, 0x0003_0000)),
        ("00:05.0", power()),
        ("00:06.0", advanced(virtio_net())),
        ("01:00.0", virtio_net()),
    ]);
    assert_eq!(run(&machine, "00:05.0", Method::Power(0xb0)).1, 110_000);
    let power: Vec<_> = machine.writes.borrow().iter().filter(|write| write.1 == 0xb4).copied().collect();
    assert_eq!(power, [(at("00:05.0"), 0xb4, 3), (at("00:05.0"), 0xb4, 0)], "the event's status stays");
    assert_eq!(run(&machine, "00:06.0", Method::AdvancedFlr(0x70)).1, 100_000);
    assert_eq!(run(&machine, "01:00.0", Method::Bus(at("00:01.0"))).1, 102_000);
    for address in ["00:05.0", "00:06.0", "01:00.0"] {
        let device = machine.device(address);
        assert_eq!((device.resets, device.word(0x14)), (1, 0xfebf_1000), "{address}");
    }
    assert_eq!(machine.device("00:01.0").word(0x3c), 0x0003_0000, "the bridge's control is as before");
}

#[test]
fn pending_transactions_are_waited_for_with_a_bound() {
    let machine = Machine::new([("00:04.0", nvme().with(0x88, 1 << 21))]);
    let physical = Physical::read(&machine, at("00:04.0")).unwrap();
    let mut reset = Reset::new(&machine, &physical, Method::Flr(0x80));
    assert_eq!(reset.step(&machine, 0), Step::NotBefore(0));
    assert_eq!(reset.step(&machine, 0), Step::NotBefore(10_000));
    assert_eq!(machine.device("00:04.0").resets, 0);
    machine.poke("00:04.0", 0x88, 0x2810);
    assert_eq!(reset.step(&machine, 10_000), Step::NotBefore(110_000));
    assert_eq!(machine.device("00:04.0").resets, 1);
    let stuck = Machine::new([("00:04.0", nvme().with(0x88, 1 << 21))]);
    let (end, time, _) = run(&stuck, "00:04.0", Method::Flr(0x80));
    assert_eq!((end, time), (Step::Done { was_pending: true }, 1_100_000));
    let device = Device::new(1234, 1, 0).capability(0x70, &[0x0306_0013, 0x100]).reset_by(0x74, 1, 0, 1);
    let conventional = Machine::new([("00:04.0", device)]);
    assert_eq!(run(&conventional, "00:04.0", Method::AdvancedFlr(0x70)).1, 1_100_000);
}

#[test]
fn a_function_that_answers_late_is_waited_for_and_one_that_never_does_is_lost() {
    let with = |ready_us| {
        let mut device = nvme();
        device.ready_us = ready_us;
        Machine::new([("00:04.0", device)])
    };
    let late = with(345_678);
    assert_eq!(run(&late, "00:04.0", Method::Flr(0x80)).0, DONE);
    assert_eq!(late.device("00:04.0").word(0x10), 0xfebf_0004);
    let never = with(u64::MAX);
    let (end, time, count) = run(&never, "00:04.0", Method::Flr(0x80));
    assert_eq!((end, time), (Step::Lost, 1_100_000));
    assert!(count < 205);
    assert_eq!(never.writes.borrow().len(), 2, "nothing is written to a function that is lost");
}

#[test]
fn a_function_that_is_gone_has_nothing_pending() {
    let machine = Machine::new([("00:04.0", nvme())]);
    let physical = Physical::read(&machine, at("00:04.0")).unwrap();
    let gone = Machine::default();
    let mut reset = Reset::new(&gone, &physical, Method::Flr(0x80));
    assert_eq!(reset.step(&gone, 0), Step::NotBefore(0));
    assert_eq!(reset.step(&gone, 0), Step::NotBefore(100_000), "at once");
    let end = (1..=205).map(|time| reset.step(&gone, time * 100_000)).find(|step| *step == Step::Lost);
    assert_eq!(end, Some(Step::Lost));
}

#[test]
fn registers_are_taken_for_what_they_are() {
    let silent = Device::new(1234, 1, 0).capability(0x70, &[0x0206_0013, 0x100]).reset_by(0x74, 1, 0, 1);
    let machine = Machine::new([("00:04.0", silent)]);
    let (end, time, _) = run(&machine, "00:04.0", Method::AdvancedFlr(0x70));
    assert_eq!((end, time), (DONE, 100_000), "it does not tell what is pending");
    let machine = Machine::new([("00:04.0", nvme().with(0x88, 1 << 15))]);
    let _ = run(&machine, "00:04.0", Method::Flr(0x80));
    let writes = machine.writes.borrow();
    let last = writes.iter().rfind(|write| write.1 == 0x88).unwrap();
    assert_eq!(last.2, 0x2810, "restoring does not reset once more");
}

/// A virtio device whose window accesses its status: it stops after some looks at it.
struct Virtio {
    machine: Machine,
    status: core::cell::Cell<u8>,
    looks: core::cell::Cell<u32>,
    selected: core::cell::RefCell<[u32; 3]>,
}

impl ConfigSpace for Virtio {
    fn read(&self, address: Address, register: u16) -> u32 {
        if register != 0x84 + 16 {
            return self.machine.read(address, register);
        }
        assert_eq!(*self.selected.borrow(), [0xab04, 0x14, 1], "one byte of the common configuration");
        self.looks.set(self.looks.get().saturating_sub(1));
        if self.looks.get() == 0 { self.status.get().into() } else { 0x0f }
    }

    fn write(&self, address: Address, register: u16, value: u32) {
        match register {
            0x88 | 0x8c | 0x90 => self.selected.borrow_mut()[usize::from(register - 0x88) / 4] = value,
            0x94 => {
                assert_eq!(*self.selected.borrow(), [0xab04, 0x14, 1]);
                self.status.set(value as u8);
            }
            _ => self.machine.write(address, register, value),
        }
    }
}

#[test]
fn a_virtio_device_is_reset_by_its_status_and_waited_for() {
    let machine = Machine::new([("00:04.0", virtio_net().with(0x88, 0xab00))]);
    let physical = Physical::read(&machine, at("00:04.0")).unwrap();
    let method = method(&physical, &nodes(&machine)).unwrap();
    assert_eq!(method, Method::Virtio(Window { offset: 0x84, bar: 4, status: 0x14 }));
    let device = Virtio {
        machine,
        status: core::cell::Cell::new(0x0f),
        looks: core::cell::Cell::new(3),
        selected: core::cell::RefCell::default(),
    };
    let mut reset = Reset::new(&device, &physical, method);
    let mut now = 0;
    let end = loop {
        match reset.step(&device, now) {
            Step::NotBefore(time) => now = time,
            end => break end,
        }
    };
    assert_eq!((end, device.status.get(), device.looks.get()), (DONE, 0, 0));
    assert_eq!(device.machine.read(at("00:04.0"), 4) & 4, 0, "no DMA");
}
