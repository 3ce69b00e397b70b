//! The same functions on the platform whose guests see pins, and no messages: Arm64's.

use crate::devices::pc::pci::WINDOW;
use crate::iommu::lines::{Gate, Lines, MachineDevices};
use crate::iommu::mock::{Machine, NVME};
use crate::iommu::smmu;
use crate::owned::{Functions, nodes};
use ::pci::Address;
use ::pci::function::Windows;
use baremetal::HardwareId;
use hostlink::name::Name;

/// All lines are wired, and nothing happens.
struct Wires;

impl Gate for Wires {
    fn intid(&self, line: usize) -> Option<u32> {
        Some(line as u32)
    }

    fn set_open(&self, _: usize, _: bool) {}

    fn aim(&self, _: usize, _: HardwareId) {}

    fn is_high(&self, _: Address) -> bool {
        false
    }
}

/// With the real table a guest could send any interrupt, if something else than the hypervisor
/// enables it: firmware has, or the function has a way around configuration space.
#[test]
fn the_real_table_of_messages_is_off_and_trapped_though_the_guest_sees_none() {
    let bus = Machine::new().bus;
    bus.set_word(NVME, 0x40, bus.word(NVME, 0x40) | 1 << 31);
    let lines = Lines::new(&Wires, None);
    let devices = MachineDevices::new(bus, nodes(bus), vec![smmu::tests::started().1], Vec::new(), lines);
    let devices: &'static MachineDevices = Box::leak(Box::new(devices));
    let windows = Windows { low: WINDOW, high: 0..0 };
    let mut claim = Functions::claim(Some(devices), NVME, Name::GUEST, &windows).expect("it is free");
    assert_eq!(claim.shown[0].read(0x34 / 4) & 0xff, 0x40, "one capability:");
    assert_eq!(claim.shown[0].read(0x10) & 0xffff, 0x13, "its reset");
    assert_eq!(claim.shown[0].trapped()[0].offsets, 0x2000..0x4000);
    while claim.functions.reset() != paging::Progress::Done {}
    assert_eq!(bus.word(NVME, 0x40) >> 30, 1, "off, and masked");
}
