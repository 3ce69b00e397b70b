use super::*;
use crate::HardwareId;
use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
use std::string::String;
use std::vec::Vec;

/// The value of a property, as bytes.
enum Value<'a> {
    Text(&'a str),
    Cells(&'a [u32]),
}
use Value::{Cells, Text};

fn node(name: &str, properties: &[(&str, Value<'_>)], children: Vec<DeviceTreeNode>) -> DeviceTreeNode {
    let mut node = DeviceTreeNode::new(name).expect("a name");
    for (name, value) in properties {
        let bytes: Vec<u8> = match value {
            Text(text) => text.bytes().chain([0]).collect(),
            Cells(cells) => cells.iter().flat_map(|cell| cell.to_be_bytes()).collect(),
        };
        node.add_property(DeviceTreeProperty::new(*name, bytes).expect("a name"));
    }
    children.into_iter().for_each(|child| node.add_child(child));
    node
}

fn tree(children: Vec<DeviceTreeNode>) -> Vec<u8> {
    let mut tree = DeviceTree::new();
    tree.root = node("", &[("#address-cells", Cells(&[2])), ("#size-cells", Cells(&[2]))], children);
    tree.to_dtb()
}

fn cpus(cells: u32, cpus: &[(&str, &[u32], &str)]) -> DeviceTreeNode {
    let each = |(name, reg, status): &(&str, &[u32], &str)| {
        node(name, &[("reg", Cells(reg)), ("status", Text(status))], Vec::new())
    };
    let properties = [("#address-cells", Cells(&[cells])), ("#size-cells", Cells(&[0]))];
    node("cpus", &properties, cpus.iter().map(each).collect())
}

/// An SMMUv3 whose event queue has the second interrupt.
fn smmu() -> DeviceTreeNode {
    let smmu = [
        ("compatible", Text("arm,smmu-v3")),
        ("reg", Cells(&[0, 0x905_0000, 0, 0x2_0000])),
        ("interrupts", Cells(&[0, 74, 1, 0, 75, 1])),
        ("interrupt-names", Text("priq\0eventq")),
        ("phandle", Cells(&[9])),
    ];
    node("smmuv3@9050000", &smmu, Vec::new())
}

fn virt() -> Vec<DeviceTreeNode> {
    let chosen = [
        ("bootargs", Text("check only=x")),
        ("stdout-path", Text("/serial@9040000:115200n8")),
        ("linux,initrd-start", Cells(&[0x4800_0000])),
        ("linux,initrd-end", Cells(&[0, 0x4800_1000])),
    ];
    let pl011 = |name, address, status, number| {
        let properties = [
            ("interrupts", Cells(&[0, number, 4])),
            ("compatible", Text("arm,pl011\0arm,primecell")),
            ("reg", Cells(&[0, address, 0, 0x1000])),
            ("status", Text(status)),
        ];
        node(name, &properties, Vec::new())
    };
    let gic = [
        ("compatible", Text("arm,gic-v3")),
        ("#redistributor-regions", Cells(&[2])),
        (
            "reg",
            Cells(&[
                0, 0x800_0000, 0, 0x1_0000, 0, 0x80a_0000, 0, 0xf6_0000, 0x40, 0, 0, 0x400_0000, 0, 1, 0, 1,
            ]),
        ),
    ];
    let timer = [
        ("compatible", Text("arm,armv8-timer\0arm,armv7-timer")),
        ("interrupts", Cells(&[1, 13, 4, 1, 14, 4, 1, 10, 4, 1, 9, 4])),
    ];
    let memory = |name, reg| node(name, &[("device_type", Text("memory")), ("reg", Cells(reg))], Vec::new());
    let clock = [("compatible", Text("arm,pl031")), ("reg", Cells(&[0, 0x901_0000, 0, 0x1000]))];
    // Configuration space, port space after another space, pin A of devices 0 and 1 and pin B of
    // the third; and a truncated entry.
    let pci = [
        ("compatible", Text("pci-host-ecam-generic")),
        ("reg", Cells(&[0x40, 0x1000_0000, 0, 0x1000_0000])),
        (
            "ranges",
            Cells(&[
                0x200_0000, 0, 0x1000_0000, 0, 0x1000_0000, 0, 0x2eff_0000, 0x100_0000, 0, 0, 0, 0x3eff_0000,
                0, 0x1_0000,
            ]),
        ),
        ("iommu-map", Cells(&[0, 9, 0x100, 0x1_0000])),
        (
            "interrupt-map",
            Cells(&[
                0, 0, 0, 1, 7, 0, 0, 0, 3, 4, 0x800, 0, 0, 1, 7, 0, 0, 0, 4, 4, 0x1000, 0, 0, 2, 7, 0, 0, 0,
                5, 4, 0x1800, 0, 0, 1, 7,
            ]),
        ),
    ];
    let cells = [("#address-cells", Cells(&[2])), ("#size-cells", Cells(&[2]))];
    let kept = node("kept@44000000", &[("reg", Cells(&[0, 0x4400_0000, 0, 0x10_0000]))], Vec::new());
    Vec::from([
        node("rtc@9010000", &clock, Vec::new()),
        node("pcie@10000000", &pci, Vec::new()),
        smmu(),
        node("reserved-memory", &cells, Vec::from([kept])),
        node("chosen", &chosen, Vec::new()),
        memory("memory@40000000", &[0, 0x4000_0000, 0, 0x1000_0000]),
        memory("memory@100000000", &[1, 0, 1, 0]),
        cpus(1, &[("cpu@0", &[0], "okay"), ("cpu@1", &[0x101], "disabled"), ("cpu@2", &[2], "fail")]),
        node("psci", &[("method", Text("hvc"))], Vec::new()),
        pl011("pl011@9000000", 0x900_0000, "okay", 1),
        pl011("serial@9040000", 0x904_0000, "okay", 8),
        pl011("pl011@9050000", 0x905_0000, "disabled", 9),
        node("intc@8000000", &gic, Vec::new()),
        node("timer", &timer, Vec::new()),
    ])
}

#[test]
fn what_is_no_tree_is_refused() {
    assert!(Board::read(&[]).is_err());
    assert!(Board::read(&[0; 64]).is_err());
    let mut bytes = tree(virt());
    bytes.truncate(bytes.len() / 2);
    assert!(Board::read(&bytes).is_err());
}

#[test]
fn a_tree_with_nothing_in_it_is_a_machine_with_nothing() {
    let board = Board::read(&tree(Vec::new())).expect("it is a tree");
    assert!(board.ram.is_empty() && board.processors.is_empty() && board.uarts.is_empty());
    assert_eq!((board.psci, board.gic, board.initrd), (None, None, None));
    assert_eq!((board.virtual_timer, board.command_line.as_str()), (VIRTUAL_TIMER, ""));
}

#[test]
fn a_machine_is_read() {
    let board = Board::read(&tree(virt())).expect("it is a tree");
    assert_eq!(board.command_line.as_str(), "check only=x");
    let ram = [Ram { start: 0x4000_0000, end: 0x5000_0000 }, Ram { start: 1 << 32, end: 2 << 32 }];
    assert_eq!(board.ram.as_slice(), ram);
    // A disabled processor can be started; a failed one cannot.
    assert_eq!(board.processors.as_slice(), [0, 0x101].map(HardwareId));
    assert_eq!(board.psci, Some(Conduit::Hvc));
    let gic = board.gic.expect("it has one");
    let redistributors =
        [Ram { start: 0x80a_0000, end: 0x900_0000 }, Ram { start: 0x40_0000_0000, end: 0x40_0400_0000 }];
    let distributor = Ram { start: 0x800_0000, end: 0x801_0000 };
    assert_eq!((gic.distributor, gic.redistributors.as_slice()), (distributor, &redistributors[..]));
    let device = |start, interrupt| Device { registers: Ram { start, end: start + 0x1000 }, interrupt };
    assert_eq!(board.uarts.as_slice(), [device(0x904_0000, Some(40)), device(0x900_0000, Some(33))]);
    assert_eq!(board.clock, Some(device(0x901_0000, None)));
    let pci = board.pci.expect("it has one");
    assert_eq!(pci.ecam, Ram { start: 0x40_1000_0000, end: 0x40_2000_0000 });
    assert_eq!(pci.ports, Some(Ram { start: 0x3eff_0000, end: 0x3f00_0000 }));
    assert_eq!(pci.pins, [Some(35), Some(36), None, None]);
    assert_eq!(pci.memory, Some(Ram { start: 0x1000_0000, end: 0x3eff_0000 }));
    let registers = Ram { start: 0x905_0000, end: 0x907_0000 };
    assert_eq!(pci.smmu, Some(Smmu { registers, events: Some(107), first_stream: 0x100 }));
    let reserved = [Ram { start: 0x4400_0000, end: 0x4410_0000 }];
    assert_eq!(board.reserved.as_slice(), reserved);
    assert_eq!(board.virtual_timer, 26);
    assert_eq!(board.initrd, Some(Ram { start: 0x4800_0000, end: 0x4800_1000 }));
}

#[test]
fn numbers_that_do_not_fit_are_left_out() {
    let memory = |name: &str, reg: &[u32]| node(name, &[("reg", Cells(reg))], Vec::new());
    let chosen = [
        ("stdout-path", Text("serial0")),
        ("linux,initrd-start", Cells(&[2])),
        ("linux,initrd-end", Cells(&[1])),
    ];
    let timer =
        [("compatible", Text("arm,armv8-timer")), ("interrupts", Cells(&[1, 13, 4, 1, 14, 4, 1, 16, 4]))];
    let board = Board::read(&tree(Vec::from([
        node("chosen", &chosen, Vec::new()),
        memory("memory@0", &[0, 0x1000, 0, 0]),
        memory("memory@1", &[u32::MAX, u32::MAX, 0, 0x1000]),
        cpus(2, &[("cpu@0", &[1, 3], "okay"), ("cpu-map", &[0, 0], "okay"), ("cpu@1", &[0, 0, 0], "okay")]),
        node("psci", &[("method", Text("jump"))], Vec::new()),
        node("timer", &timer, Vec::new()),
    ])));
    let board = board.expect("it is a tree");
    assert_eq!((board.ram.as_slice(), board.initrd, board.psci), (&[][..], None, None));
    assert_eq!(board.processors.as_slice(), [HardwareId(1 << 32 | 3)]);
    assert_eq!(board.virtual_timer, VIRTUAL_TIMER);
}

#[test]
fn what_is_too_much_is_left_out() {
    let line = "x".repeat(2 * COMMAND_LINE);
    let names: Vec<String> = (0..PROCESSORS + 8).map(|number| std::format!("cpu@{number:x}")).collect();
    let regs: Vec<[u32; 1]> = (0..names.len() as u32).map(|number| [number]).collect();
    let all: Vec<(&str, &[u32], &str)> =
        names.iter().zip(&regs).map(|(name, reg)| (name.as_str(), &reg[..], "okay")).collect();
    let chosen = node("chosen", &[("bootargs", Text(&line))], Vec::new());
    let board = Board::read(&tree(Vec::from([chosen, cpus(1, &all)]))).expect("it is a tree");
    assert_eq!((board.command_line.len(), board.processors.len()), (COMMAND_LINE, PROCESSORS));
    assert_eq!(board.left_out, 8);
}

#[test]
fn a_console_on_a_bus_that_changes_addresses_is_left_out() {
    let properties = [("compatible", Text("arm,pl011")), ("reg", Cells(&[0, 0x1000, 0, 0x1000]))];
    let cells = [("#address-cells", Cells(&[2])), ("#size-cells", Cells(&[2]))];
    let bus = node("bus", &cells, Vec::from([node("serial@1000", &properties, Vec::new())]));
    let chosen = node("chosen", &[("stdout-path", Text("/bus/serial@1000"))], Vec::new());
    let board = Board::read(&tree(Vec::from([chosen, bus]))).expect("it is a tree");
    assert!(board.uarts.is_empty());
}
