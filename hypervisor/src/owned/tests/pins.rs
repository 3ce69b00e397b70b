//! The same functions on the platform whose guests see pins, and no messages: Arm64's.

use crate::devices::pc::pci::WINDOW;
use crate::iommu::lines::{Gate, Lines, MachineDevices};
use crate::iommu::mock::{Machine, MadeBus, NVME, SMALL, VIRTIO};
use crate::iommu::smmu;
use crate::owned::tests::refused::at;
use crate::owned::{Functions, Refused, nodes};
use ::pci::Address;
use ::pci::function::Windows;
use baremetal::HardwareId;
use hostlink::name::Name;

/// All lines but the third are wired, and nothing happens.
struct Wires;

impl Gate for Wires {
    fn intid(&self, line: usize) -> Option<u32> {
        (line != 2).then_some(line as u32)
    }

    fn set_open(&self, _: usize, _: bool) {}

    fn aim(&self, _: usize, _: HardwareId) {}

    fn is_high(&self, _: Address) -> bool {
        false
    }
}

/// The functions of a machine, all of whose lines but `own`'s are free.
fn devices(bus: &'static MadeBus, own: Option<&str>) -> &'static MachineDevices {
    let lines = Lines::new(&Wires, own.map(at));
    let smmus = vec![smmu::tests::started().1];
    Box::leak(Box::new(MachineDevices::new(bus, nodes(bus), smmus, Vec::new(), lines)))
}

/// Lines are wired by device and pin: the sum of both, and one less, modulo 4.
#[test]
fn a_line_that_is_not_there_or_another_functions_is_refused() {
    let windows = Windows { low: WINDOW, high: 0..0 };
    let line = |one, other| Some(Refused::Line(at(one), at(other)));
    for (pins, others, name, refused) in [
        ([0, 0, 0], "nvme 00:04.0", SMALL, None),
        ([1, 1, 0], "nvme", VIRTIO, None),
        ([1, 4, 0], "nvme", VIRTIO, line(VIRTIO, NVME)),
        ([2, 1, 0], "nvme", VIRTIO, line(VIRTIO, NVME)),
        ([2, 0, 4], "nvme 00:04.0", SMALL, line(SMALL, NVME)),
        ([0, 0, 1], "", SMALL, line(SMALL, "00:01.0")),
        ([0, 0, 2], "", SMALL, Some(Refused::NoLine(at(SMALL)))),
    ] {
        let bus = Machine::new().bus;
        [NVME, VIRTIO, SMALL].into_iter().zip(pins).for_each(|(of, pin)| bus.set_word(of, 0x3c, pin << 8));
        let devices = Some(devices(bus, Some("00:01.0")));
        let other = Name::parse("other").expect("a name");
        let _others = Functions::claim(devices, others, other, &windows).expect("they are free");
        let claim = Functions::claim(devices, name, Name::GUEST, &windows);
        assert_eq!(claim.err(), refused, "{pins:?} {name}");
    }
    // Functions of one guest share a line.
    let bus = Machine::new().bus;
    [(NVME, 2), (VIRTIO, 1)].into_iter().for_each(|(of, pin)| bus.set_word(of, 0x3c, pin << 8));
    assert!(Functions::claim(Some(devices(bus, None)), "nvme 00:04.0", Name::GUEST, &windows).is_ok());
}

/// With the real table a guest could send any interrupt, if something else than the hypervisor
/// enables it: firmware has, or the function has a way around configuration space.
#[test]
fn the_real_table_of_messages_is_off_and_trapped_though_the_guest_sees_none() {
    let bus = Machine::new().bus;
    bus.set_word(NVME, 0x40, bus.word(NVME, 0x40) | 1 << 31);
    let windows = Windows { low: WINDOW, high: 0..0 };
    let mut claim =
        Functions::claim(Some(devices(bus, None)), NVME, Name::GUEST, &windows).expect("it is free");
    assert_eq!(claim.shown[0].read(0x34 / 4) & 0xff, 0x40, "one capability:");
    assert_eq!(claim.shown[0].read(0x10) & 0xffff, 0x13, "its reset");
    assert_eq!(claim.shown[0].trapped()[0].offsets, 0x2000..0x4000);
    while claim.functions.reset() != paging::Progress::Done {}
    assert_eq!(bus.word(NVME, 0x40) >> 30, 1, "off, and masked");
}
