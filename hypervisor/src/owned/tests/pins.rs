//! The same functions on the platform whose guests see pins, and no messages: Arm64's.

use crate::devices::pc::pci::WINDOW;
use crate::devices::virt::fdt::Wire;
use crate::devices::virt::map::pci_intid;
use crate::devices::virt::pci::FIRST;
use crate::iommu::lines::tests::Machine as Wires;
use crate::iommu::lines::{InterruptLines, MachineDevices, Pin, Wired};
use crate::iommu::mock::{Machine, MadeBus, NVME, SMALL, VIRTIO};
use crate::iommu::smmu;
use crate::owned::tests::refused::at;
use crate::owned::{Claim, Functions, Interrupts, Refused, nodes};
use ::pci::function::Windows;
use hostlink::name::Name;

/// The functions of a machine whose lines are `wires`, none of them wired to the last.
fn devices(bus: &'static MadeBus, wires: &'static Wires, own: Option<&str>) -> &'static MachineDevices {
    let lines = InterruptLines::new(wires, own.map(at));
    let smmus = vec![smmu::tests::started().1];
    Box::leak(Box::new(MachineDevices::new(bus, nodes(bus), smmus, Vec::new(), lines)))
}

/// A machine whose functions have these pins.
fn bus(pins: [(&str, u32); 3]) -> &'static MadeBus {
    let bus = Machine::new().bus;
    pins.into_iter().for_each(|(of, pin)| bus.set_word(of, 0x3c, pin << 8));
    bus
}

fn claim(
    devices: &'static MachineDevices,
    names: &'static str,
    guest: Name,
) -> Result<Claim<Wired>, Refused> {
    Functions::claim(Some(devices), names, guest, &Windows { low: WINDOW, high: 0..0 })
}

/// Lines are wired by device and pin: the sum of both, and one less, modulo 4.
#[test]
fn a_line_that_is_not_there_or_another_guests_is_refused() {
    let line = |one, other| Some(Refused::Line(at(one), at(other)));
    for (pins, others, name, refused) in [
        ([0, 0, 0], "nvme 00:04.0", SMALL, None),
        ([2, 3, 0], "nvme", VIRTIO, None),
        ([2, 1, 0], "nvme", VIRTIO, line(VIRTIO, NVME)),
        ([4, 3, 0], "nvme", VIRTIO, line(VIRTIO, NVME)),
        ([4, 0, 2], "nvme 00:04.0", SMALL, line(SMALL, NVME)),
        ([0, 0, 1], "", SMALL, line(SMALL, "00:01.0")),
        ([0, 0, 3], "", SMALL, Some(Refused::NoLine(at(SMALL)))),
        ([2, 1, 0], "", "nvme 00:04.0", None),
    ] {
        let bus = bus([(NVME, pins[0]), (VIRTIO, pins[1]), (SMALL, pins[2])]);
        let devices = devices(bus, Wires::leaked(), Some("00:01.0"));
        let _others = claim(devices, others, Name::parse("other").expect("a name")).expect("they are free");
        assert_eq!(claim(devices, name, Name::GUEST).err(), refused, "{pins:?} {name}");
    }
}

#[test]
fn a_line_is_open_from_the_guests_first_use_until_its_functions_are_forgotten() {
    let wires = Wires::leaked();
    let devices = devices(bus([(NVME, 2), (VIRTIO, 2), (SMALL, 0)]), wires, None);
    let mut claim = claim(devices, "nvme 00:05.0 00:04.0", Name::GUEST).expect("they are free");
    // Lines 0 and 1, and none.
    let wired = claim.functions.wire(&mut claim.shown).into_iter();
    let wired: Vec<_> = wired.map(|Wire { device, pin, intid }| (device, pin, intid)).collect();
    assert_eq!(wired, [(FIRST, 2, pci_intid(0)), (FIRST + 2, 2, pci_intid(1))]);
    let pins: Vec<_> = claim.shown.iter().map(|shown| shown.read(0xf)).collect();
    assert_eq!(pins, [0x200 | u32::from(pci_intid(0)), 0, 0x200 | u32::from(pci_intid(1))]);
    let given: Vec<_> = claim.functions.given().collect();
    let mut pin = Pin::new(None, &given[0].physical, &claim.shown[0]);
    let mut follow = |pin: &mut Pin, command| {
        claim.shown[0].write(1, command, 0xffff);
        pin.follow(devices, given[0], wires, &claim.shown[0])
    };
    // Bit 10 of the command register switches the pin off.
    assert!(!follow(&mut pin, 0x400) && wires.open() == [false; 4]);
    assert!(follow(&mut pin, 0) && wires.open() == [true, false, false, false]);
    assert!(!follow(&mut pin, 0x400) && wires.open()[0], "another function may use it");
    assert!(follow(&mut pin, 0));
    pin.forget(devices, given[0]);
    assert_eq!(wires.open(), [false; 4], "it was taken once");
    assert!(follow(&mut pin, 0) && wires.open()[0]);
    pin.forget(devices, given[0]);
    pin.forget(devices, given[0]);
    assert_eq!(wires.open(), [false; 4]);
}

/// With the real table a guest could send any interrupt, if something else than the hypervisor
/// enables it: firmware has, or the function has a way around configuration space.
#[test]
fn the_real_table_of_messages_is_off_and_trapped_though_the_guest_sees_none() {
    let bus = Machine::new().bus;
    bus.set_word(NVME, 0x40, bus.word(NVME, 0x40) | 1 << 31);
    let mut claim = claim(devices(bus, Wires::leaked(), None), NVME, Name::GUEST).expect("it is free");
    assert_eq!(claim.shown[0].read(0x34 / 4) & 0xff, 0x40, "one capability:");
    assert_eq!(claim.shown[0].read(0x10) & 0xffff, 0x13, "its reset");
    assert_eq!(claim.shown[0].trapped()[0].offsets, 0x2000..0x4000);
    while claim.functions.reset() != paging::Progress::Done {}
    assert_eq!(bus.word(NVME, 0x40) >> 30, 1, "off, and masked");
}
