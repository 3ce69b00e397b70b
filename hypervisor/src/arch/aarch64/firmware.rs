//! What the device tree says about the machine.

use core::ops::Range;

use arrayvec::ArrayVec;
use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::standard::NodeStandard;
use dtoolkit::{Node, Property};

use super::power::Conduit;
use crate::vm::percpu::MAX_CPUS;

/// Interrupt types in an `interrupts` property of the GIC, and where their INTIDs begin.
const TYPE_SPI: u64 = 0;
const SPI_BASE: u32 = 32;
const PPI_BASE: u32 = 16;
/// Bytes of a device tree that are looked at: its header says how long it is.
const TREE_MAX: u32 = 2 << 20;
/// Cells of a property that are looked at: those of a host bridge's interrupt map are most.
const CELLS_MAX: usize = 256;
/// Magic of a flattened device tree, as its first four bytes read.
const MAGIC: u32 = 0xd00d_feed;

/// A PCI host bridge that decodes configuration space by address.
#[derive(Clone, Debug, Default)]
pub(crate) struct PciHost {
    /// Configuration space.
    pub(crate) ecam: Range<u64>,
    /// Where port addresses appear, from port 0 on.
    pub(crate) ports: Option<Range<u64>>,
    /// INTIDs of devices 0 to 3's pin A.
    pub(crate) pins: [Option<u32>; 4],
}

/// The machine as far as it matters to us.
#[derive(Default)]
pub(crate) struct Machine {
    /// RAM.
    pub(crate) ram: ArrayVec<Range<u64>, 16>,
    /// RAM that is not ours, and the device tree itself.
    pub(crate) reserved: ArrayVec<Range<u64>, 16>,
    /// Affinities of the CPUs.
    pub(crate) cpus: ArrayVec<u64, MAX_CPUS>,
    /// Registers of the GIC's distributor and redistributors.
    pub(crate) distributor: Range<u64>,
    pub(crate) redistributors: Range<u64>,
    /// Registers and INTID of a PL011.
    pub(crate) console: Option<(Range<u64>, u32)>,
    /// Registers of a PL031.
    pub(crate) clock: Option<Range<u64>>,
    pub(crate) pci: Option<PciHost>,
    pub(crate) conduit: Option<Conduit>,
    /// The boot module: a bundle.
    pub(crate) module: Option<Range<u64>>,
}

/// Bytes of the device tree at `address`, or `None` if there is none.
///
/// # Safety
///
/// `address` is what the boot loader passed, and is mapped.
pub(crate) unsafe fn tree(address: u64) -> Option<&'static [u8]> {
    if address == 0 || !address.is_multiple_of(8) {
        return None;
    }
    let header = address as *const u32;
    // SAFETY: the boot protocol has put a device tree there, whose first words are magic and size, big-endian.
    let (magic, size) = unsafe { (u32::from_be(header.read()), u32::from_be(header.add(1).read())) };
    if magic != MAGIC || !(40..=TREE_MAX).contains(&size) {
        return None;
    }
    // SAFETY: as above; nobody writes to it.
    Some(unsafe { core::slice::from_raw_parts(address as *const u8, size as usize) })
}

/// Reads the device tree.
pub(crate) fn read(bytes: &[u8]) -> Result<Machine, &'static str> {
    let fdt = Fdt::new(bytes).map_err(|_| "the device tree cannot be read")?;
    let root = fdt.root();
    let mut machine = Machine::default();
    let start = bytes.as_ptr().addr() as u64;
    let _ = machine.reserved.try_push(start..start + bytes.len() as u64);
    for reservation in fdt.memory_reservations() {
        let start = reservation.address();
        let _ = machine.reserved.try_push(start..start.saturating_add(reservation.size()));
    }
    for node in root.children() {
        if is_of_type(&node, "memory") {
            for range in registers(&node) {
                let _ = machine.ram.try_push(range);
            }
        }
    }
    let reserved = root.child("reserved-memory");
    for node in reserved.iter().flat_map(|node| node.children()) {
        for range in registers(&node) {
            let _ = machine.reserved.try_push(range);
        }
    }
    read_cpus(root, &mut machine);
    read_devices(root, &mut machine);
    read_chosen(root, &mut machine);
    let conduit = root.child("psci").and_then(|psci| {
        text(&psci, "method", |method| match method {
            "smc" => Some(Conduit::Smc),
            "hvc" => Some(Conduit::Hvc),
            _ => None,
        })
    });
    machine.conduit = conduit.flatten();
    Ok(machine)
}

impl Machine {
    /// Whether what we cannot do without is there. Apart from [`read`], so that with a console its absence can be said.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.distributor.is_empty() || self.redistributors.is_empty() {
            return Err("no GICv3 in the device tree: QEMU takes -M virt,virtualization=on,gic-version=3");
        }
        Ok(())
    }
}

fn read_cpus(root: FdtNode<'_>, machine: &mut Machine) {
    let Some(cpus) = root.child("cpus") else { return };
    for cpu in cpus.children().filter(|cpu| is_of_type(cpu, "cpu")) {
        if let Some(id) = number(&cpu, "reg")
            && machine.cpus.try_push(id).is_err()
        {
            log::warn!("more than {MAX_CPUS} CPUs; the rest stays unused");
            return;
        }
    }
}

/// Devices lie in the root, or in a bus that changes no addresses.
fn read_devices(root: FdtNode<'_>, machine: &mut Machine) {
    let buses = root.children().filter(|node| node.is_compatible("simple-bus"));
    for node in root.children().chain(buses.flat_map(|bus| bus.children().collect::<ArrayVec<_, 64>>())) {
        let mut ranges = registers(&node);
        if node.is_compatible("arm,gic-v3") {
            machine.distributor = ranges.next().unwrap_or_default();
            machine.redistributors = ranges.next().unwrap_or_default();
        } else if node.is_compatible("arm,pl011") && machine.console.is_none() {
            machine.console = ranges.next().zip(interrupt(&node));
        } else if node.is_compatible("arm,pl031") {
            machine.clock = ranges.next();
        } else if node.is_compatible("pci-host-ecam-generic") {
            machine.pci = ranges.next().map(|ecam| PciHost { ecam, ports: ports(&node), pins: pins(&node) });
        }
    }
}

fn read_chosen(root: FdtNode<'_>, machine: &mut Machine) {
    let Some(chosen) = root.child("chosen") else { return };
    let (start, end) = (number(&chosen, "linux,initrd-start"), number(&chosen, "linux,initrd-end"));
    if let (Some(start), Some(end)) = (start, end)
        && start < end
    {
        machine.module = Some(start..end);
    }
}

/// A number of one cell or two.
fn number(node: &FdtNode<'_>, name: &str) -> Option<u64> {
    Some(cells(node, name)?.iter().fold(0, |value, cell| value << 32 | cell))
}

fn is_of_type(node: &FdtNode<'_>, kind: &str) -> bool {
    text(node, "device_type", |text| text == kind) == Some(true)
}

/// What `look` says of a property's first string.
fn text<R>(node: &FdtNode<'_>, name: &str, look: impl FnOnce(&str) -> R) -> Option<R> {
    let property = node.property(name)?;
    let text = core::str::from_utf8(property.value()).ok()?;
    text.split('\0').next().map(look)
}

/// A property's cells, or as many as there is room for.
fn cells(node: &FdtNode<'_>, name: &str) -> Option<ArrayVec<u64, CELLS_MAX>> {
    let property = node.property(name)?;
    let cells = property.value().chunks_exact(4);
    let value = |cell: &[u8]| u64::from(u32::from_be_bytes([cell[0], cell[1], cell[2], cell[3]]));
    Some(cells.map(value).take(CELLS_MAX).collect())
}

/// The ranges in a node's `reg`, in addresses of its parent.
fn registers<'a>(node: &FdtNode<'a>) -> impl Iterator<Item = Range<u64>> + use<'a> {
    node.reg().ok().flatten().into_iter().flatten().filter_map(|reg| {
        let (start, size) = (reg.address::<u64>().ok()?, reg.size::<u64>().ok()?);
        Some(start..start.checked_add(size)?)
    })
}

/// INTID in a node's `interrupts`: three cells of the GIC's.
fn interrupt(node: &FdtNode<'_>) -> Option<u32> {
    let cells = cells(node, "interrupts")?;
    intid(*cells.first()?, *cells.get(1)?)
}

fn intid(kind: u64, number: u64) -> Option<u32> {
    let base = if kind == TYPE_SPI { SPI_BASE } else { PPI_BASE };
    (number < 1000).then_some(base + number as u32)
}

/// Where a host bridge shows port addresses: of `ranges` (three cells of PCI's, two of the parent, two of size) the one
/// whose space is that of ports.
fn ports(node: &FdtNode<'_>) -> Option<Range<u64>> {
    const SPACE: u64 = 3 << 24;
    const PORTS: u64 = 1 << 24;
    let cells = cells(node, "ranges")?;
    let entry =
        cells.chunks_exact(7).find(|entry| entry[0] & SPACE == PORTS && entry[1] == 0 && entry[2] == 0)?;
    let start = entry[3] << 32 | entry[4];
    Some(start..start.checked_add(entry[5] << 32 | entry[6])?)
}

/// INTIDs of pin A of devices 0 to 3: of `interrupt-map` (three cells of address, one of the pin, the GIC's handle, two of
/// its address, three of the interrupt).
fn pins(node: &FdtNode<'_>) -> [Option<u32>; 4] {
    let mut found = [None; 4];
    let cells = cells(node, "interrupt-map").unwrap_or_default();
    for entry in cells.chunks_exact(10) {
        let device = (entry[0] >> 11 & 0x1f) as usize;
        let (pin, kind, number) = (entry[3], entry[7], entry[8]);
        if pin == 1 && device < found.len() {
            found[device] = intid(kind, number);
        }
    }
    found
}
