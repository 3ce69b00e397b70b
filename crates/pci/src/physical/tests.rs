use super::*;
use crate::mock::{Device, Machine, at, nvme, virtio_net};
use proptest::prelude::*;
use std::vec::Vec;

fn one(device: Device) -> Physical {
    let machine = Machine::new([("00:04.0", device)]);
    Physical::read(&machine, at("00:04.0")).unwrap()
}

fn bar(kind: BarKind, is_prefetchable: bool, address: u64, size: u64) -> Option<Bar> {
    Some(Bar { kind, is_prefetchable, address, size })
}

#[test]
fn qemus_nvme_is_described() {
    let found = one(nvme());
    assert_eq!(found.identity.kind(), "nvme");
    assert_eq!((found.identity.vendor, found.identity.device, found.identity.revision), (0x1b36, 0x0010, 2));
    assert_eq!((found.identity.subsystem_vendor, found.identity.subsystem), (0x1af4, 0x1100));
    assert_eq!((found.identity.class, found.identity.is_multi_function, found.pin), (0x01_0802, false, 1));
    assert_eq!(found.bars[0], bar(BarKind::Memory64, false, 0xfebf_0000, 0x4000));
    assert_eq!(found.bars[1..], [None; 5]);
    let msix = Msix {
        offset: 0x40,
        vectors: 65,
        table: BarPlace { bar: 0, offset: 0x2000 },
        pending: BarPlace { bar: 0, offset: 0x3000 },
    };
    assert_eq!(found.capabilities.msix, Some(msix));
    let express = Express { offset: 0x80, port: Port::Integrated, has_flr: true };
    assert_eq!(found.capabilities.express, Some(express));
    assert_eq!(found.capabilities.power, Some(Power { offset: 0x60, keeps_state: true }));
    assert_eq!(found.capabilities.msi, None);
}

#[test]
fn a_function_that_snoops_asks_for_nothing_else() {
    let machine = Machine::new([("00:04.0", nvme().with(0x88, 0xf_0000))]);
    let express = Physical::read(&machine, at("00:04.0")).unwrap().capabilities.express.unwrap();
    machine.writes.borrow_mut().clear();
    express.snoop(&machine, at("00:04.0"));
    express.snoop(&machine, at("00:04.0"));
    let writes = machine.writes.borrow();
    assert_eq!(writes.iter().map(|write| (write.1, write.2)).collect::<Vec<_>>(), [(0x88, 0x2010)]);
}

#[test]
fn sizing_restores_bars_and_command_and_clears_no_status() {
    let machine = Machine::new([("00:04.0", nvme())]);
    let before = machine.device("00:04.0");
    // The mock machine refuses writes to a BAR that is decoded.
    Physical::read(&machine, at("00:04.0")).unwrap();
    let after = machine.device("00:04.0");
    assert!((0..1024).all(|index| before.word(index * 4) == after.word(index * 4)));
    let writes = machine.writes.borrow();
    let commands: Vec<u32> = writes.iter().filter(|write| write.1 == 4).map(|write| write.2).collect();
    assert_eq!(commands, [0, 6], "decoding and DMA off, then as before, status bits 0");
    assert_eq!(writes[0].1, 4, "first of all");
    let quiet = Machine::new([("00:04.0", nvme().without(4, 6))]);
    Physical::read(&quiet, at("00:04.0")).unwrap();
    assert_eq!(quiet.device("00:04.0").word(4) & 0xffff, 0, "what was off stays off");
}

#[test]
fn bars_of_all_kinds_have_their_size() {
    let device = Device::new(1234, 1, 0)
        .bar(0, 1, 0xc000, 0x20)
        .bar(1, 8, 0x8000_0000, 0x1000_0000)
        .bar64(2, 12, 0x12_0000_0000, 8 << 30)
        .bar(5, 0, 0, 16);
    let expected = [
        bar(BarKind::Io, false, 0xc000, 0x20),
        bar(BarKind::Memory32, true, 0x8000_0000, 0x1000_0000),
        bar(BarKind::Memory64, true, 0x12_0000_0000, 8 << 30),
        None,
        None,
        bar(BarKind::Memory32, false, 0, 16),
    ];
    assert_eq!(one(device).bars, expected);
    // Ports of a device of 16 bits: the upper half of the mask is 0.
    let small = Device::new(1234, 1, 0).with(0x10, 0xc001).writable(0x10, 0xffe0);
    assert_eq!(one(small).bars[0], bar(BarKind::Io, false, 0xc000, 0x20));
    // Without an upper register, with the reserved type, and without address bits.
    let odd =
        Device::new(1234, 1, 0).with(0x24, 4).writable(0x24, !0xfff).with(0x20, 6).writable(0x20, !0xfff);
    assert_eq!(one(odd.with(0x10, 4)).bars, [None; 6]);
    let reserved = Device::new(1234, 1, 0).with(0x10, 6).bar(1, 0, 0, 0x1000);
    assert_eq!(one(reserved).bars[1], bar(BarKind::Memory32, false, 0, 0x1000), "it takes one register");
}

#[test]
fn functions_that_no_guest_can_have_are_refused() {
    let absent = Device::new(0, 0, 0);
    let not_ready = Device::new(1, 0, 0);
    let machine =
        Machine::new([("00:01.0", Device::bridge(1, 1)), ("00:02.0", not_ready), ("00:03.0", absent)]);
    assert_eq!(Physical::read(&machine, at("00:01.0")), Err(Unusable::NoEndpoint));
    assert_eq!(Physical::read(&machine, at("00:02.0")), Err(Unusable::Absent), "not ready");
    for address in ["00:03.0", "00:04.0"] {
        assert_eq!(Physical::read(&machine, at(address)), Err(Unusable::Absent));
    }
    assert!(machine.writes.borrow().is_empty());
}

#[test]
fn kinds_have_names() {
    let kind = |vendor, device, class, subsystem: u32| {
        one(Device::new(vendor, device, class).with(0x2c, subsystem << 16)).identity.kind()
    };
    assert_eq!(kind(0x1af4, 0x1001, 0x01_0000, 2), "virtio-blk", "transitional: by the subsystem");
    assert_eq!(kind(0x1af4, 0x1042, 0x01_0000, 0x1100), "virtio-blk", "modern: by the device");
    assert_eq!(kind(0x1af4, 0x1080, 0x05_0000, 0), "memory", "not virtio");
    assert_eq!(kind(0x8086, 0x10d3, 0x02_0000, 0), "ethernet");
    assert_eq!(kind(0x8086, 0x10d3, 0x0c_0330, 0), "xhci");
    assert_eq!(kind(0x8086, 0x29c0, 0x06_0000, 0), "host bridge");
    assert_eq!(kind(0x8086, 0x29c0, 0xff_0000, 0), "unknown");
}

#[test]
fn msi_and_advanced_features_are_read() {
    let device = Device::new(1234, 1, 0).capability(0x50, &[0x0186_0005]).capability(0x70, &[0x0306_0013]);
    let found = one(device).capabilities;
    assert_eq!(found.msi, Some(Msi { offset: 0x50, is_64_bit: true, has_masks: true, messages: 8 }));
    let advanced = AdvancedFeatures { offset: 0x70, has_flr: true, has_pending: true };
    assert_eq!(found.advanced, Some(advanced));
    let reserved = one(Device::new(1234, 1, 0).capability(0x50, &[0x000e_0005])).capabilities;
    assert_eq!(reserved.msi.unwrap().messages, 32, "the field is at its reserved value");
}

#[test]
fn extended_capabilities_are_read_behind_express_only() {
    let ats = |device: Device| {
        device
            .extended(0x100, &[0x0001_0001])
            .extended(0x140, &[0x0001_000f, 0x8000_0000])
            .extended(0x160, &[0x0001_000d, 0x001d_005f])
    };
    let found = one(ats(nvme())).capabilities;
    assert_eq!(found.ats, Some(Ats { offset: 0x140, queue_depth: 32, is_enabled: true }));
    assert_eq!(found.acs, Some(Acs { offset: 0x160, capability: 0x5f, control: 0x1d }));
    let conventional = one(ats(virtio_net())).capabilities;
    assert_eq!((conventional.ats, conventional.acs), (None, None));
}

#[test]
fn lists_into_the_header_or_absent_ones_are_empty() {
    let header = Device::new(1234, 1, 0).with(0x34, 0x10).with(4, 1 << 20).bar(0, 0, 0x0005_0000, 0x1000);
    assert_eq!(one(header).capabilities, Capabilities::default());
    let subsystem = Device::new(1234, 1, 0).with(0x34, 0x2c).with(4, 1 << 20).with(0x2c, 5);
    assert_eq!(one(subsystem).capabilities, Capabilities::default());
    let unannounced = nvme().without(4, 1 << 20);
    assert_eq!(one(unannounced).capabilities, Capabilities::default());
}

#[test]
fn capabilities_that_reach_beyond_the_end_are_none() {
    for id in [0x01, 0x05, 0x10, 0x11, 0x13, 0x0c_0009] {
        let found = one(Device::new(1234, 1, 0).capability(0xfc, &[id])).capabilities;
        assert_eq!(found, Capabilities::default(), "{id:#x}");
    }
    let last = one(Device::new(1234, 1, 0).capability(0xf4, &[0x11, 0, 0])).capabilities;
    assert_eq!(last.msix.map(|msix| msix.offset), Some(0xf4), "up to the end");
    for head in [0x0002_0009, 0x0024_0009] {
        let found = one(Device::new(1234, 1, 0).capability(0x40, &[head])).capabilities;
        assert!(found.vendor.is_empty(), "too short, or too long: {head:#x}");
    }
    let last = one(Device::new(1234, 1, 0).capability(0xf8, &[0xaa07_0009, 0xaabb_ccdd])).capabilities;
    assert_eq!(last.vendor[0].words[..], [0xaa07_0009, 0x00bb_ccdd], "bytes behind its end are 0");
    for (form, last) in [(0, 0xf4), (1 << 23, 0xf0), (1 << 24, 0xec), (3 << 23, 0xe8)] {
        let found = [last, last + 4].map(|at| one(Device::new(1234, 1, 0).capability(at, &[form | 5])));
        let offsets = found.map(|found| found.capabilities.msi.map(|msi| msi.offset));
        assert_eq!(offsets, [Some(last), None], "MSI {form:#x}");
    }
}

fn walked(machine: &Machine, roots: &[u8]) -> (Vec<Node>, Result<(), Unvisited>) {
    let mut nodes = Vec::new();
    let result = walk(machine, roots, |node| nodes.push(node));
    assert!(machine.writes.borrow().is_empty(), "the walk only reads");
    (nodes, result)
}

#[test]
fn all_buses_are_walked_through_bridges() {
    let device = || Device::new(1234, 1, 0x02_0000);
    let machine = Machine::new([
        ("00:00.0", device()),
        ("00:01.0", Device::bridge(1, 3).express(4, false)),
        ("00:02.0", device().multi_function()),
        ("00:02.5", device()),
        ("00:03.4", device()),
        ("00:04.0", device()),
        ("00:04.1", device()),
        ("01:00.0", Device::bridge(2, 3).express(5, false)),
        ("01:05.0", device()),
        ("02:07.0", Device::bridge(3, 3)),
        ("03:1f.0", device()),
        ("80:00.0", device()),
    ]);
    let (nodes, result) = walked(&machine, &[0, 0x80, 0]);
    assert_eq!(result, Ok(()));
    let found: Vec<_> = nodes.iter().map(|node| (node.address, node.above)).collect();
    let expected = [
        ("00:00.0", None),
        ("00:01.0", None),
        ("00:02.0", None),
        ("00:02.5", None),
        // 00:03.4 and 00:04.1 are not looked for, and behind a root port 01:05.0 is not.
        ("00:04.0", None),
        ("01:00.0", Some("00:01.0")),
        ("02:07.0", Some("01:00.0")),
        ("03:1f.0", Some("02:07.0")),
        ("80:00.0", None),
    ];
    assert_eq!(found, expected.map(|(address, above)| (at(address), above.map(at))));
    assert!(nodes[3].identity.is_multi_function, "function 5 says so by its number");
    let bridges: Vec<_> = nodes.iter().map(|node| node.identity.is_bridge()).collect();
    assert_eq!(bridges, [false, true, false, false, false, true, true, false, false]);
    let host = one(Device::new(0x8086, 0x29c0, 0x06_0000));
    assert!(host.identity.is_bridge(), "by its class");
    assert_eq!((nodes[1].port, nodes[1].identity.subsystem_vendor), (Some(Port::Root), 0));
    assert_eq!(nodes[1].buses, Some(Buses { secondary: 1, subordinate: 3 }));
}

#[test]
fn bridges_that_lead_nowhere_new_end_the_walk() {
    for (secondary, subordinate) in [(1, 1), (2, 1)] {
        let machine = Machine::new([
            ("00:01.0", Device::bridge(1, 1)),
            ("00:02.0", Device::bridge(secondary, subordinate)),
            ("01:00.0", Device::new(1234, 1, 0)),
        ]);
        let (nodes, result) = walked(&machine, &[0]);
        assert_eq!((nodes.len(), result), (3, Err(Unvisited(at("00:02.0")))));
    }
    let back = Machine::new([("00:01.0", Device::bridge(1, 2)), ("01:00.0", Device::bridge(0, 9))]);
    assert_eq!(walked(&back, &[0]).1, Ok(()), "nobody gave it a bus");
    let low = Machine::new([("05:01.0", Device::bridge(3, 9)), ("03:00.0", Device::new(1234, 1, 0))]);
    assert_eq!((walked(&low, &[5]).0.len(), walked(&low, &[5]).1), (1, Err(Unvisited(at("05:01.0")))));
    let back = Machine::new([("05:01.0", Device::bridge(6, 9)), ("06:00.0", Device::bridge(5, 9))]);
    assert_eq!(walked(&back, &[5]), (walked(&back, &[5]).0, Err(Unvisited(at("06:00.0")))));
}

/// Configuration space that is the same everywhere, whatever it is.
struct Noise<'w>(&'w [u32]);

impl ConfigSpace for Noise<'_> {
    fn read(&self, address: Address, register: u16) -> u32 {
        let index = usize::from(address.id()).wrapping_mul(31).wrapping_add(usize::from(register / 4));
        self.0[index % self.0.len()]
    }

    fn write(&self, _: Address, _: u16, _: u32) {}
}

proptest! {
    #[test]
    fn random_spaces_neither_panic_nor_hang(words in proptest::collection::vec(any::<u32>(), 1..300)) {
        let noise = Noise(&words);
        for id in 0..64 {
            if let Ok(found) = Physical::read(&noise, Address::from_id(id)) {
                prop_assert!(found.bars.iter().flatten().all(|bar| bar.size.is_power_of_two()));
                let function = crate::Function::new(
                    &found,
                    crate::function::Windows { low: 0..1 << 32, high: 1 << 32..u64::MAX },
                );
                prop_assert!(function.vector_count() <= 256);
            }
        }
        let mut nodes = Vec::new();
        let _ = walk(&noise, &[0], |node| if nodes.len() < 500 { nodes.push(node) });
        crate::group::assign(&mut nodes);
    }
}
