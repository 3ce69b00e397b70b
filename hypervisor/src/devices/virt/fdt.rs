//! The device tree of an Arm64 guest (Devicetree Specification 0.4, and Linux' bindings for its
//! nodes).

use super::gic::Affinity;
use super::map;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use dtoolkit::ToPropertyValue;
use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};

/// The properties that differ from guest to guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest<'a> {
    /// All of its RAM, guest physical.
    pub ram: Range<u64>,
    /// Its number of vCPUs.
    pub vcpu_count: u8,
    /// The kernel's command line, without NUL.
    pub command_line: &'a str,
    /// Guest physical range of the initial RAM disk.
    pub initrd: Option<Range<u64>>,
    /// The functions that it owns. Without any there is no PCI.
    pub functions: &'a [Wire],
}

/// The interrupt of a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// Number of its device.
    pub device: u8,
    /// Its pin, 1 for INTA.
    pub pin: u8,
    /// The SPI that the pin is wired to.
    pub intid: u8,
}

const GIC_PHANDLE: u32 = 1;
const CLOCK_PHANDLE: u32 = 2;

/// Cells of an interrupt: kind, number within the kind, trigger type.
const SPI: u32 = 0;
const PPI: u32 = 1;
const EDGE_RISING: u32 = 1;
const LEVEL_HIGH: u32 = 4;

const FIRST_PPI: u8 = 16;
const FIRST_SPI: u8 = 32;

/// The flattened device tree.
pub fn build(guest: &Guest<'_>) -> Vec<u8> {
    let mut tree = DeviceTree::new();
    let root = &mut tree.root;
    set(root, "#address-cells", 2_u32);
    set(root, "#size-cells", 2_u32);
    set(root, "interrupt-parent", GIC_PHANDLE);
    set(root, "compatible", "linux,dummy-virt");
    set(root, "model", "quell,virt");
    let uart_path = format!("/{}", unit("pl011", map::UART));
    let mut aliases = node("aliases");
    set(&mut aliases, "serial0", uart_path.as_str());
    let children = [
        chosen(guest, &uart_path),
        aliases,
        memory(&guest.ram),
        cpus(guest.vcpu_count),
        psci(),
        timer(),
        interrupt_controller(guest.vcpu_count),
        clock(),
        uart(),
        rtc(),
        generation_id(),
    ];
    children.into_iter().for_each(|child| root.add_child(child));
    if !guest.functions.is_empty() {
        root.add_child(pci(guest.functions));
    }
    tree.to_dtb()
}

fn node(name: impl Into<String>) -> DeviceTreeNode {
    DeviceTreeNode::new_unchecked(name)
}

fn unit(name: &str, address: u64) -> String {
    format!("{name}@{address:x}")
}

fn set(node: &mut DeviceTreeNode, name: &str, value: impl ToPropertyValue) {
    node.add_property(DeviceTreeProperty::new_unchecked(name, value));
}

/// Sets a property without a value.
fn flag(node: &mut DeviceTreeNode, name: &str) {
    set(node, name, [0_u8; 0]);
}

/// The address and size of each range, two cells each.
fn reg(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<u32> {
    let numbers = ranges.into_iter().flat_map(|range| [range.start, range.end - range.start]);
    numbers.flat_map(|number| [(number >> 32) as u32, number as u32]).collect()
}

const fn ppi(intid: u8) -> [u32; 3] {
    [PPI, (intid - FIRST_PPI) as u32, LEVEL_HIGH]
}

fn chosen(guest: &Guest<'_>, uart_path: &str) -> DeviceTreeNode {
    let mut chosen = node("chosen");
    set(&mut chosen, "bootargs", guest.command_line);
    set(&mut chosen, "stdout-path", uart_path);
    if let Some(initrd) = &guest.initrd {
        set(&mut chosen, "linux,initrd-start", initrd.start);
        set(&mut chosen, "linux,initrd-end", initrd.end);
    }
    chosen
}

fn memory(ram: &Range<u64>) -> DeviceTreeNode {
    let mut memory = node(unit("memory", ram.start));
    set(&mut memory, "device_type", "memory");
    set(&mut memory, "reg", reg(Some(ram.clone())));
    memory
}

fn cpus(count: u8) -> DeviceTreeNode {
    let mut cpus = node("cpus");
    set(&mut cpus, "#address-cells", 1_u32);
    set(&mut cpus, "#size-cells", 0_u32);
    for Affinity(affinity) in (0..count).map(Affinity::of) {
        let mut cpu = node(unit("cpu", u64::from(affinity)));
        set(&mut cpu, "device_type", "cpu");
        set(&mut cpu, "compatible", "arm,armv8");
        set(&mut cpu, "reg", affinity);
        set(&mut cpu, "enable-method", "psci");
        cpus.add_child(cpu);
    }
    cpus
}

fn psci() -> DeviceTreeNode {
    let mut psci = node("psci");
    set(&mut psci, "compatible", ["arm,psci-1.0", "arm,psci-0.2"].as_slice());
    set(&mut psci, "method", "hvc");
    psci
}

/// The binding requires the interrupts in this order: secure and non-secure EL1 physical, virtual,
/// EL2 physical.
fn timer() -> DeviceTreeNode {
    let mut timer = node("timer");
    let intids =
        [map::SECURE_TIMER_INTID, map::PHYSICAL_TIMER_INTID, map::VIRTUAL_TIMER_INTID, map::EL2_TIMER_INTID];
    set(&mut timer, "compatible", "arm,armv8-timer");
    set(&mut timer, "interrupts", intids.map(ppi).as_flattened());
    flag(&mut timer, "always-on");
    timer
}

fn interrupt_controller(vcpu_count: u8) -> DeviceTreeNode {
    let mut gic = node(unit("intc", map::GICD));
    set(&mut gic, "compatible", "arm,gic-v3");
    set(&mut gic, "#interrupt-cells", 3_u32);
    flag(&mut gic, "interrupt-controller");
    set(&mut gic, "#redistributor-regions", 1_u32);
    set(&mut gic, "reg", reg([map::GICD..map::GICD + map::GICD_SIZE, map::redistributors(vcpu_count)]));
    set(&mut gic, "phandle", GIC_PHANDLE);
    gic
}

fn clock() -> DeviceTreeNode {
    let mut clock = node("apb-pclk");
    set(&mut clock, "compatible", "fixed-clock");
    set(&mut clock, "#clock-cells", 0_u32);
    set(&mut clock, "clock-frequency", map::UART_CLOCK_HZ);
    set(&mut clock, "clock-output-names", "clk24mhz");
    set(&mut clock, "phandle", CLOCK_PHANDLE);
    clock
}

fn uart() -> DeviceTreeNode {
    let mut uart = node(unit("pl011", map::UART));
    set(&mut uart, "compatible", ["arm,pl011", "arm,primecell"].as_slice());
    set(&mut uart, "reg", reg(Some(map::UART..map::UART + map::UART_SIZE)));
    set(&mut uart, "interrupts", [SPI, u32::from(map::UART_INTID - FIRST_SPI), LEVEL_HIGH]);
    set(&mut uart, "clocks", [CLOCK_PHANDLE, CLOCK_PHANDLE]);
    set(&mut uart, "clock-names", ["uartclk", "apb_pclk"].as_slice());
    uart
}

fn rtc() -> DeviceTreeNode {
    let mut rtc = node(unit("pl031", map::RTC));
    set(&mut rtc, "compatible", ["arm,pl031", "arm,primecell"].as_slice());
    set(&mut rtc, "reg", reg(Some(map::RTC..map::RTC + map::RTC_SIZE)));
    set(&mut rtc, "interrupts", [SPI, u32::from(map::RTC_INTID - FIRST_SPI), LEVEL_HIGH]);
    set(&mut rtc, "clocks", CLOCK_PHANDLE);
    set(&mut rtc, "clock-names", "apb_pclk");
    rtc
}

/// Kernels notice by the interrupt that the id has changed.
fn generation_id() -> DeviceTreeNode {
    let mut id = node(unit("vmgenid", map::GENERATION));
    set(&mut id, "compatible", "microsoft,vmgenid");
    set(&mut id, "reg", reg(Some(map::GENERATION..map::GENERATION + map::GENERATION_BYTES)));
    set(&mut id, "interrupts", [SPI, u32::from(map::GENERATION_INTID - FIRST_SPI), EDGE_RISING]);
    id
}

/// A generic host with one bus, and a window of memory at the same addresses on both sides.
fn pci(functions: &[Wire]) -> DeviceTreeNode {
    const MEMORY: u32 = 0x0200_0000;
    let mut pci = node(unit("pcie", map::PCI_ECAM));
    let window = map::PCI_MEMORY;
    set(&mut pci, "compatible", "pci-host-ecam-generic");
    set(&mut pci, "device_type", "pci");
    set(&mut pci, "#address-cells", 3_u32);
    set(&mut pci, "#size-cells", 2_u32);
    set(&mut pci, "bus-range", [0_u32, 0]);
    set(&mut pci, "reg", reg(Some(map::PCI_ECAM..map::PCI_ECAM + map::PCI_ECAM_SIZE)));
    let ranges = [MEMORY, 0, window.start as u32].into_iter().chain(reg(Some(window)));
    set(&mut pci, "ranges", ranges.collect::<Vec<_>>());
    flag(&mut pci, "dma-coherent");
    set(&mut pci, "#interrupt-cells", 1_u32);
    // Device number, and pin.
    set(&mut pci, "interrupt-map-mask", [0xf800_u32, 0, 0, 7]);
    let line = |wire: &Wire| {
        let spi = u32::from(wire.intid - FIRST_SPI);
        [u32::from(wire.device) << 11, 0, 0, wire.pin.into(), GIC_PHANDLE, SPI, spi, LEVEL_HIGH]
    };
    set(&mut pci, "interrupt-map", functions.iter().map(line).collect::<Vec<_>>().as_flattened());
    pci
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtoolkit::fdt::{Fdt, FdtNode};
    use dtoolkit::{Node, Property};

    fn guest() -> Guest<'static> {
        Guest {
            ram: 0x4000_0000..0x1_8000_0000,
            vcpu_count: 2,
            command_line: "a=b  c",
            initrd: None,
            functions: &[],
        }
    }

    fn cells(node: FdtNode<'_>, name: &str) -> Vec<u32> {
        let property = node.property(name).unwrap_or_else(|| panic!("{name}"));
        property.value().chunks(4).map(|cell| u32::from_be_bytes(cell.try_into().unwrap())).collect()
    }

    fn text(node: FdtNode<'_>, name: &str) -> String {
        String::from_utf8(node.property(name).unwrap().value().to_vec()).unwrap()
    }

    #[test]
    fn without_an_initrd_none_is_named() {
        let dtb = build(&guest());
        let chosen = Fdt::new(&dtb).unwrap().find_node("/chosen").unwrap();
        assert!(chosen.property("linux,initrd-start").is_none());
        assert!(chosen.property("linux,initrd-end").is_none());
        assert_eq!(text(chosen, "bootargs"), "a=b  c\0");
    }

    #[test]
    fn every_name_is_one_that_the_specification_allows() {
        fn check(node: FdtNode<'_>) {
            for property in node.properties() {
                assert!(DeviceTreeProperty::new(property.name(), 0_u32).is_ok(), "{}", property.name());
            }
            for child in node.children() {
                assert!(DeviceTreeNode::new(child.name()).is_ok(), "{}", child.name());
                check(child);
            }
        }
        let dtb = build(&Guest { initrd: Some(1..2), ..guest() });
        check(Fdt::new(&dtb).unwrap().root());
    }

    #[test]
    fn memory_and_initrd_are_where_they_are() {
        let dtb = build(&Guest { initrd: Some(0x1_4000_0000..0x1_4123_4567), ..guest() });
        let fdt = Fdt::new(&dtb).unwrap();
        let memory = fdt.find_node("/memory@40000000").unwrap();
        assert_eq!(cells(memory, "reg"), [0, 0x4000_0000, 1, 0x4000_0000]);
        assert_eq!(text(memory, "device_type"), "memory\0");
        let chosen = fdt.find_node("/chosen").unwrap();
        assert_eq!(cells(chosen, "linux,initrd-start"), [1, 0x4000_0000]);
        assert_eq!(cells(chosen, "linux,initrd-end"), [1, 0x4123_4567]);
        let stdout = text(chosen, "stdout-path");
        let uart = fdt.find_node(stdout.trim_end_matches('\0')).expect("the path leads there");
        assert_eq!(cells(uart, "reg"), [0, 0x900_0000, 0, 0x1000]);
        assert_eq!(cells(uart, "interrupts"), [0, 1, 4]);
        assert_eq!(text(uart, "compatible"), "arm,pl011\0arm,primecell\0");
    }

    /// As Linux' binding has it, outside of the RAM, which kernels do not map as a device's.
    #[test]
    fn m11_the_generation_id_is_found_with_its_edge() {
        let dtb = build(&guest());
        let id = Fdt::new(&dtb).unwrap().find_node("/vmgenid@909f000").unwrap();
        assert_eq!(text(id, "compatible"), "microsoft,vmgenid\0");
        assert_eq!(cells(id, "reg"), [0, 0x909_f000, 0, 16]);
        assert_eq!(cells(id, "interrupts"), [0, 0, 1], "SPI 0, whose rise interrupts");
    }

    #[test]
    fn cpus_have_their_affinities() {
        for count in [1, 16, 17, 255] {
            let dtb = build(&Guest { vcpu_count: count, ..guest() });
            let fdt = Fdt::new(&dtb).unwrap();
            let cpus = fdt.find_node("/cpus").unwrap();
            let regs: Vec<u32> = cpus.children().map(|cpu| cells(cpu, "reg")[0]).collect();
            assert_eq!(
                regs,
                (0..u32::from(count)).map(|vcpu| ((vcpu / 16) << 8) | (vcpu % 16)).collect::<Vec<_>>()
            );
            for cpu in cpus.children() {
                assert_eq!(text(cpu, "enable-method"), "psci\0");
                assert_eq!(cpu.name(), format!("cpu@{:x}", cells(cpu, "reg")[0]));
            }
            assert!(dtb.len() < 0x1_0000, "{} bytes", dtb.len());
        }
    }

    #[test]
    fn interrupts_and_clocks_are_found_by_their_phandles() {
        let dtb = build(&Guest { vcpu_count: 3, ..guest() });
        let fdt = Fdt::new(&dtb).unwrap();
        let gic = fdt.find_node("/intc@8000000").unwrap();
        assert_eq!(cells(fdt.root(), "interrupt-parent"), cells(gic, "phandle"));
        assert_eq!(cells(gic, "reg"), [0, 0x800_0000, 0, 0x1_0000, 0, 0x80a_0000, 0, 0x6_0000]);
        assert!(gic.property("interrupt-controller").unwrap().value().is_empty());
        let clock = cells(fdt.find_node("/apb-pclk").unwrap(), "phandle")[0];
        assert_eq!(cells(fdt.find_node("/pl011@9000000").unwrap(), "clocks"), [clock, clock]);
        let timer = fdt.find_node("/timer").unwrap();
        assert_eq!(cells(timer, "interrupts"), [1, 13, 4, 1, 14, 4, 1, 11, 4, 1, 10, 4]);
        assert_eq!(text(fdt.find_node("/psci").unwrap(), "method"), "hvc\0");
    }

    #[test]
    fn functions_have_a_host_and_their_own_interrupts() {
        assert!(Fdt::new(&build(&guest())).unwrap().find_node("/pcie@3f000000").is_none());
        let wires = [Wire { device: 1, pin: 1, intid: 37 }, Wire { device: 2, pin: 2, intid: 35 }];
        let dtb = build(&Guest { functions: &wires, ..guest() });
        let pci = Fdt::new(&dtb).unwrap().find_node("/pcie@3f000000").unwrap();
        assert_eq!(cells(pci, "reg"), [0, 0x3f00_0000, 0, 0x10_0000]);
        assert_eq!(cells(pci, "ranges"), [0x200_0000, 0, 0x2000_0000, 0, 0x2000_0000, 0, 0x1000_0000]);
        assert_eq!(cells(pci, "interrupt-map"), [0x800, 0, 0, 1, 1, 0, 5, 4, 0x1000, 0, 0, 2, 1, 0, 3, 4]);
    }
}
