use super::*;
use crate::mock::{Device, Machine, at};
use crate::physical::walk;
use std::string::{String, ToString};
use std::vec::Vec;

/// All services, and those that isolate.
const ALL: u16 = 0x1f;
const ON: u16 = 0x1d;

fn nodes(machine: &Machine) -> Vec<Node> {
    let mut nodes = Vec::new();
    walk(machine, &[0], |node| nodes.push(node)).unwrap();
    assign(&mut nodes);
    nodes
}

fn groups<const N: usize>(devices: [(&str, Device); N]) -> Vec<String> {
    let nodes = nodes(&Machine::new(devices));
    let mut groups: Vec<Address> = nodes.iter().map(|node| node.group).collect();
    groups.sort();
    groups.dedup();
    let text =
        |group: Address| members(&nodes, group).map(|node| node.address.to_string()).collect::<Vec<_>>();
    groups.into_iter().map(|group| text(group).join(" ")).collect()
}

fn device() -> Device {
    Device::new(1234, 1, 0x02_0000)
}

fn endpoint() -> Device {
    device().express(0, false)
}

fn port(secondary: u8, subordinate: u8) -> Device {
    Device::bridge(secondary, subordinate).express(4, false)
}

fn switch(secondary: u8, subordinate: u8, port: u32) -> Device {
    Device::bridge(secondary, subordinate).express(port, false)
}

#[test]
fn functions_of_a_device_are_together_unless_they_isolate() {
    let multi = |device: Device| device.multi_function();
    let together = groups([("00:1f.0", multi(device())), ("00:1f.2", device()), ("00:1e.0", device())]);
    assert_eq!(together, ["00:1e.0", "00:1f.0 00:1f.2"]);
    let apart = groups([("00:04.0", multi(endpoint().acs(ON, ON))), ("00:04.1", endpoint().acs(0, 0))]);
    assert_eq!(apart, ["00:04.0", "00:04.1"], "a service that it lacks is not needed");
    let mixed = groups([
        ("00:04.0", multi(endpoint().acs(ON, 0))),
        ("00:04.1", endpoint().acs(ON, ON)),
        ("00:04.2", endpoint()),
    ]);
    assert_eq!(mixed, ["00:04.0 00:04.2", "00:04.1"], "services count if they are enabled");
}

#[test]
fn a_switch_that_is_part_of_a_device_must_isolate() {
    let found = |switch: Device| {
        let root = port(1, 2).acs(ALL, ON);
        groups([("00:01.0", root), ("01:00.0", switch.multi_function()), ("02:00.0", endpoint())]).len()
    };
    assert_eq!((found(switch(2, 2, 5)), found(switch(2, 2, 5).acs(ALL, ON))), (2, 3));
}

fn behind_switch(root: u16, down: u16) -> Vec<String> {
    groups([
        ("00:01.0", port(1, 4).acs(ALL, root)),
        ("01:00.0", switch(2, 4, 5)),
        ("02:00.0", switch(3, 3, 6).acs(ALL, down)),
        ("02:01.0", switch(4, 4, 6).acs(ALL, down)),
        ("03:00.0", endpoint()),
        ("04:00.0", endpoint()),
    ])
}

#[test]
fn every_port_on_the_way_must_isolate() {
    assert_eq!(behind_switch(ON, ON).len(), 6, "all are alone");
    let below = behind_switch(ON, 0);
    assert_eq!(below, ["00:01.0", "01:00.0", "02:00.0 03:00.0", "02:01.0 04:00.0"]);
    let above = behind_switch(0, ON);
    assert_eq!(above, ["00:01.0 01:00.0 02:00.0 02:01.0 03:00.0 04:00.0"], "a port below does not help");
}

#[test]
fn all_behind_a_conventional_bridge_is_together_and_has_its_id() {
    let machine = Machine::new([
        ("00:01.0", port(1, 3).acs(ALL, ON)),
        ("00:02.0", Device::bridge(4, 4)),
        ("01:00.0", switch(2, 3, 7)),
        ("02:00.0", device()),
        ("02:01.0", Device::bridge(3, 3)),
        ("03:05.0", device()),
        ("04:00.0", device()),
    ]);
    let nodes = nodes(&machine);
    let group = |address| members(&nodes, at(address)).map(|node| node.address).collect::<Vec<_>>();
    assert_eq!(group("03:05.0"), ["01:00.0", "02:00.0", "02:01.0", "03:05.0"].map(at));
    assert_eq!(group("04:00.0"), ["00:02.0", "04:00.0"].map(at));
    assert_eq!(group("00:01.0"), ["00:01.0"].map(at));
    let owned: Vec<_> = partners(&nodes, at("03:05.0")).map(|node| node.address).collect();
    assert_eq!(owned, ["02:00.0", "03:05.0"].map(at), "without bridges");
    let ids = |address| requester_ids(&nodes, at(address)).into_iter().collect::<Vec<_>>();
    assert_eq!(ids("03:05.0"), [0x0328, 0x0208, 0x0200]);
    assert_eq!(ids("04:00.0"), [0x0400, 0x0010]);
    assert_eq!(ids("01:00.0"), [0x0100], "behind a port of PCI Express");
    assert_eq!(group("07:00.0"), [], "absent");
    assert_eq!(ids("07:00.0"), [0x0700]);
}

#[test]
fn many_bridges_keep_the_id_that_arrives() {
    let machine = Machine::new([
        ("00:01.0", Device::bridge(1, 5)),
        ("01:01.0", Device::bridge(2, 5)),
        ("02:01.0", Device::bridge(3, 5)),
        ("03:01.0", Device::bridge(4, 5)),
        ("04:01.0", Device::bridge(5, 5)),
        ("05:00.0", device()),
    ]);
    let ids = requester_ids(&nodes(&machine), at("05:00.0"));
    assert_eq!((ids[0], ids.last()), (0x0500, Some(&0x0008)));
}

#[test]
fn isolation_is_enabled_where_it_exists() {
    let machine = Machine::new([("00:01.0", port(1, 1).acs(ALL, 2)), ("01:00.0", endpoint())]);
    let mut found = nodes(&machine);
    assert_eq!(members(&found, at("01:00.0")).count(), 2);
    found.iter_mut().for_each(|node| isolate(&machine, node));
    assert_eq!(machine.writes.borrow()[..], [(at("00:01.0"), 0x104, 0x001f_001f)], "others stay enabled");
    assert_eq!(found[0].acs.unwrap().control, 0x1f);
    assign(&mut found);
    assert_eq!(members(&found, at("01:00.0")).count(), 1);
}
