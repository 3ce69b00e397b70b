//! The device tree of an Arm64 machine, as far as the images need it.
//!
//! Sources: Devicetree Specification 0.4, chapters 2, 3 and 5.3; the bindings `arm,gic-v3`,
//! `arm,armv8-timer`, `arm,psci`, `arm,pl011`, `arm,pl031` and `pci-host-ecam-generic` of the Linux
//! kernel (Documentation/devicetree/bindings); PCI Bus Binding to IEEE 1275.

use crate::HardwareId;
use arrayvec::{ArrayString, ArrayVec};
use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::standard::NodeStandard;
use dtoolkit::{Node, Property};

pub use crate::pages::Ram;

/// The most bytes of the command line that are kept.
pub const COMMAND_LINE: usize = 512;
/// The most ranges of memory that are kept.
pub const RANGES: usize = 16;
/// The most processors that are kept.
pub const PROCESSORS: usize = 256;
/// The most regions of redistributors that are kept.
pub const REGIONS: usize = 8;

/// The virtual timer's interrupt if no device tree names another: PPI 11.
pub const VIRTUAL_TIMER: u32 = 27;

/// Kinds of interrupts in the GIC's cells, and the first INTID of each and the first invalid one.
const SHARED: u32 = 0;
const PRIVATE: u32 = 1;
const FIRST_PRIVATE: u32 = 16;
const FIRST_SHARED: u32 = 32;
const SPECIAL: u32 = 1020;

/// How PSCI is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conduit {
    /// By HVC.
    Hvc,
    /// By SMC.
    Smc,
}

/// A GICv3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gic {
    /// Registers of the distributor.
    pub distributor: Ram,
    /// Regions of adjacent redistributors.
    pub redistributors: ArrayVec<Ram, REGIONS>,
}

/// A device with registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its registers.
    pub registers: Ram,
    /// The INTID of its first interrupt, if it has one.
    pub interrupt: Option<u32>,
}

/// A PCI host bridge that decodes configuration space by address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciHost {
    /// Configuration space.
    pub ecam: Ram,
    /// Address range of port addresses, from port 0 on.
    pub ports: Option<Ram>,
    /// INTIDs of devices 0 to 3's pin A.
    pub pins: [Option<u32>; 4],
    /// Addresses below 4 GiB at which it decodes memory of functions.
    pub memory: Option<Ram>,
    /// The SMMUv3 that translates for all functions of bus 0.
    pub smmu: Option<Smmu>,
}

/// An SMMUv3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Smmu {
    /// Its registers.
    pub registers: Ram,
    /// The INTID of its event queue, if it has one by wire.
    pub events: Option<u32>,
    /// The stream of requester 0. The other requesters' follow.
    pub first_stream: u32,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Board {
    /// The command line; an overlong end is dropped.
    pub command_line: ArrayString<COMMAND_LINE>,
    /// RAM, in the tree's order; ranges that exceed the address space, and excess ranges, are
    /// dropped.
    pub ram: ArrayVec<Ram, RANGES>,
    /// RAM that must not be used, except for the device tree itself.
    pub reserved: ArrayVec<Ram, RANGES>,
    /// Affinities of the processors that are not disabled, as in MPIDR_EL1, in the tree's order.
    pub processors: ArrayVec<HardwareId, PROCESSORS>,
    /// Processors for which there was no room.
    pub left_out: usize,
    /// How PSCI is called, if it is there.
    pub psci: Option<Conduit>,
    /// The interrupt controller, if it is a GICv3.
    pub gic: Option<Gic>,
    /// The PL011s at addresses that are valid for the processors: first the one that `stdout-path`
    /// names, if it names one of them by its path.
    pub uarts: ArrayVec<Device, 4>,
    /// A PL031, the real-time clock.
    pub clock: Option<Device>,
    /// The PCI host bridge.
    pub pci: Option<PciHost>,
    /// INTID of the virtual timer.
    pub virtual_timer: u32,
    /// The initial RAM disk.
    pub initrd: Option<Ram>,
}

impl Board {
    /// Reads a device tree.
    ///
    /// # Errors
    ///
    /// `bytes` are not a device tree. Missing parts of the tree are empty.
    pub fn read(bytes: &[u8]) -> Result<Self, &'static str> {
        let tree = Fdt::new(bytes).map_err(|_| "the device tree is not well-formed")?;
        let (mut processors, mut left_out) = (ArrayVec::new(), 0);
        for affinity in affinities(tree) {
            left_out += usize::from(processors.try_push(affinity).is_err());
        }
        Ok(Self {
            command_line: command_line(tree),
            ram: ram(tree),
            reserved: reserved(tree),
            processors,
            left_out,
            psci: conduit(tree),
            gic: gic(tree),
            uarts: uarts(tree),
            clock: compatible(tree, "arm,pl031").find_map(device),
            pci: compatible(tree, "pci-host-ecam-generic").find_map(|node| pci(tree, node)),
            virtual_timer: virtual_timer(tree),
            initrd: initrd(tree),
        })
    }
}

/// The ranges of a node's `reg` that end within the address space and are not empty.
fn ranges<'a>(node: FdtNode<'a>) -> impl Iterator<Item = Ram> + 'a {
    let ranges = node.reg().ok().flatten();
    ranges.into_iter().flatten().filter_map(|range| {
        let (start, size) = (range.address::<u64>().ok()?, range.size::<u64>().ok()?);
        Some(Ram { start, end: start.checked_add(size)? }).filter(|_| size != 0)
    })
}

/// Nodes below the root and on simple buses, with this binding.
fn compatible<'a>(tree: Fdt<'a>, binding: &'static str) -> impl Iterator<Item = FdtNode<'a>> {
    let is_enabled = |node: &FdtNode<'a>| {
        let status = node.property("status").and_then(|status| status.value_as::<&str>().ok());
        status.is_none_or(|status| matches!(status, "okay" | "ok"))
    };
    let root = tree.root();
    let nodes = root.children().chain(
        root.children().filter(|node| node.is_compatible("simple-bus")).flat_map(|bus| bus.children()),
    );
    nodes.filter(move |node| node.is_compatible(binding) && is_enabled(node))
}

fn command_line(tree: Fdt<'_>) -> ArrayString<COMMAND_LINE> {
    let chosen = tree.find_node("/chosen");
    let property = chosen.and_then(|chosen| chosen.property("bootargs"));
    let line = property.as_ref().and_then(|line| line.value_as::<&str>().ok()).unwrap_or_default();
    let mut kept = ArrayString::new();
    line.chars().take_while(|char| kept.try_push(*char).is_ok()).for_each(drop);
    kept
}

fn ram(tree: Fdt<'_>) -> ArrayVec<Ram, RANGES> {
    let root = tree.root();
    let is_memory = |node: &FdtNode<'_>| {
        let kind = node.property("device_type").and_then(|kind| kind.value_as::<&str>().ok());
        kind == Some("memory") || (kind.is_none() && node.name_without_address() == "memory")
    };
    root.children().filter(is_memory).flat_map(ranges).take(RANGES).collect()
}

fn reserved(tree: Fdt<'_>) -> ArrayVec<Ram, RANGES> {
    let listed = tree.memory_reservations().filter_map(|range| {
        Some(Ram { start: range.address(), end: range.address().checked_add(range.size())? })
    });
    let node = tree.find_node("/reserved-memory");
    let nodes = node.into_iter().flat_map(|node| node.children()).flat_map(ranges);
    listed.chain(nodes).take(RANGES).collect()
}

/// The affinities of all processors that can be started.
fn affinities<'a>(tree: Fdt<'a>) -> impl Iterator<Item = HardwareId> + 'a {
    let runs = |node: &FdtNode<'_>| {
        let status = node.property("status").and_then(|status| status.value_as::<&str>().ok());
        node.name_without_address() == "cpu" && !matches!(status, Some("fail" | "fail-sss"))
    };
    // Here the cells of `reg` contain only the address.
    let affinity = |node: FdtNode<'a>| {
        let property = node.property("reg")?;
        let narrow = property.value_as::<u32>().map(u64::from);
        narrow.or_else(|_| property.value_as::<u64>()).ok().map(HardwareId)
    };
    let cpus = tree.find_node("/cpus").into_iter();
    cpus.flat_map(|cpus| cpus.children()).filter(runs).filter_map(affinity)
}

fn conduit(tree: Fdt<'_>) -> Option<Conduit> {
    let node = tree.find_node("/psci")?;
    match node.property("method")?.value_as::<&str>().ok()? {
        "hvc" => Some(Conduit::Hvc),
        "smc" => Some(Conduit::Smc),
        _ => None,
    }
}

fn gic(tree: Fdt<'_>) -> Option<Gic> {
    let node = compatible(tree, "arm,gic-v3").next()?;
    let regions = node.property("#redistributor-regions").and_then(|count| count.value_as::<u32>().ok());
    let mut ranges = ranges(node);
    let distributor = ranges.next()?;
    Some(Gic {
        distributor,
        redistributors: ranges.take(regions.unwrap_or(1) as usize).take(REGIONS).collect(),
    })
}

/// A property's cells.
fn cells<'a>(property: &'a impl Property) -> impl Iterator<Item = u32> + 'a {
    property.value().chunks_exact(4).filter_map(|cell| Some(u32::from_be_bytes(cell.try_into().ok()?)))
}

/// The INTID of an interrupt, from the first of the GIC's cells for it: its kind, and its number
/// within the kind.
fn intid(kind: u32, number: u32) -> Option<u32> {
    match kind {
        SHARED => (number < SPECIAL - FIRST_SHARED).then(|| number + FIRST_SHARED),
        PRIVATE => (number < FIRST_SHARED - FIRST_PRIVATE).then(|| number + FIRST_PRIVATE),
        _ => None,
    }
}

/// The INTID of a node's interrupt `index`. Each has three cells.
fn interrupt(node: FdtNode<'_>, index: usize) -> Option<u32> {
    let property = node.property("interrupts")?;
    let mut cells = cells(&property).skip(3 * index);
    intid(cells.next()?, cells.next()?)
}

fn device(node: FdtNode<'_>) -> Option<Device> {
    Some(Device { registers: ranges(node).next()?, interrupt: interrupt(node, 0) })
}

fn pci(tree: Fdt<'_>, node: FdtNode<'_>) -> Option<PciHost> {
    Some(PciHost {
        ecam: ranges(node).next()?,
        ports: space(node, PORTS).filter(|(bus, _)| *bus == 0).map(|(_, ram)| ram),
        pins: pins(node),
        // What a BAR has to contain is the processors' address.
        memory: space(node, MEMORY).filter(|(bus, ram)| *bus == ram.start).map(|(_, ram)| ram),
        smmu: smmu(tree, node),
    })
}

/// The SMMU of a host bridge, by the first entry of `iommu-map` (the first requester, the SMMU's
/// handle, the first stream, how many), if that has all requesters of bus 0.
fn smmu(tree: Fdt<'_>, node: FdtNode<'_>) -> Option<Smmu> {
    let map = node.property("iommu-map")?;
    let [0, handle, first_stream, 0x100..=u32::MAX] = fill(&mut cells(&map))? else { return None };
    let has_handle = |node: &FdtNode<'_>| {
        node.property("phandle").and_then(|handle| handle.value_as::<u32>().ok()) == Some(handle)
    };
    let smmu = compatible(tree, "arm,smmu-v3").find(has_handle)?;
    let names = smmu.property("interrupt-names");
    let names = names.as_ref().map_or(&[][..], |names| names.value());
    let events = names.split(|byte| *byte == 0).position(|name| name == b"eventq");
    Some(Smmu {
        registers: ranges(smmu).next()?,
        events: events.and_then(|index| interrupt(smmu, index)),
        first_stream,
    })
}

/// Spaces of PCI addresses: ports, and memory with addresses of 32 bits.
const PORTS: u32 = 1 << 24;
const MEMORY: u32 = 2 << 24;

/// The addresses at which a host bridge shows a space, and the first PCI address there: the entry
/// of `ranges` (three PCI cells, two of the parent, two of size) for it.
fn space(node: FdtNode<'_>, wanted: u32) -> Option<(u64, Ram)> {
    const SPACE: u32 = 3 << 24;
    let property = node.property("ranges")?;
    let mut cells = cells(&property);
    let mut entries = core::iter::from_fn(|| fill::<7>(&mut cells));
    let entry = entries.find(|entry| entry[0] & SPACE == wanted)?;
    let long = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    let start = long(entry[3], entry[4]);
    Some((long(entry[1], entry[2]), Ram { start, end: start.checked_add(long(entry[5], entry[6]))? }))
}

/// INTIDs of pin A of devices 0 to 3, from `interrupt-map` (three cells of address, one of the pin,
/// the GIC's handle, two of its address, three of the interrupt).
fn pins(node: FdtNode<'_>) -> [Option<u32>; 4] {
    let mut found = [None; 4];
    let Some(property) = node.property("interrupt-map") else { return found };
    let mut cells = cells(&property);
    while let Some([address, _, _, pin, _, _, _, kind, number, _]) = fill(&mut cells) {
        if pin == 1
            && let Some(slot) = found.get_mut((address >> 11 & 0x1f) as usize)
        {
            *slot = intid(kind, number);
        }
    }
    found
}

/// The next `N` cells, if there are that many.
fn fill<const N: usize>(cells: &mut impl Iterator<Item = u32>) -> Option<[u32; N]> {
    let mut entry = [0; N];
    for cell in &mut entry {
        *cell = cells.next()?;
    }
    Some(entry)
}

fn uarts(tree: Fdt<'_>) -> ArrayVec<Device, 4> {
    let chosen = tree.find_node("/chosen");
    let path = chosen.and_then(|chosen| chosen.property("stdout-path"));
    let path = path.as_ref().and_then(|path| path.value_as::<&str>().ok());
    // The part after a colon has the line's parameters.
    let first = path.and_then(|path| tree.find_node(path.split(':').next()?));
    let first = first.and_then(device);
    let all = || compatible(tree, "arm,pl011").filter_map(device);
    let first = all().find(|device| Some(*device) == first);
    first.into_iter().chain(all().filter(|other| Some(*other) != first)).take(4).collect()
}

/// The third of the timer's interrupts: secure, non-secure, virtual, hypervisor. It is a private
/// interrupt.
fn virtual_timer(tree: Fdt<'_>) -> u32 {
    let found = compatible(tree, "arm,armv8-timer").next().and_then(|timer| interrupt(timer, 2));
    found.filter(|intid| *intid < FIRST_SHARED).unwrap_or(VIRTUAL_TIMER)
}

fn initrd(tree: Fdt<'_>) -> Option<Ram> {
    let chosen = tree.find_node("/chosen")?;
    let address = |name: &str| {
        let property = chosen.property(name)?;
        property.value_as::<u64>().ok().or_else(|| property.value_as::<u32>().ok().map(u64::from))
    };
    let (start, end) = (address("linux,initrd-start")?, address("linux,initrd-end")?);
    (start < end).then_some(Ram { start, end })
}

#[cfg(test)]
mod tests;
