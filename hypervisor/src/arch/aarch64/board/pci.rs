//! The serial ports on the PCI bus.
//!
//! A 16550 on PCI has one base address register, in port space; a host bridge maps port space at an
//! address. Nothing else of the bus is used. Source: PCI Local Bus Specification 3.0, sections 6.2
//! and 6.2.5.

use baremetal::devicetree::PciHost;

/// Vendor and device of QEMU's 16550s: one, two, four ports.
const SERIAL_2X: u32 = 0x0003_1b36;

const COMMAND: u64 = 0x04;
const BAR0: u64 = 0x10;
const PORT_SPACE: u32 = 1 << 0;
/// Size of a function's configuration space in bytes, and number of functions of a device.
const FUNCTION: u64 = 4096;
const FUNCTIONS: u64 = 8;
/// Base of the ports in port space.
const PORT: u32 = 0x1000;

/// Finds a card with two serial ports on the first bus; returns the address of their registers, and
/// its INTID.
pub(crate) fn find_ports(host: &PciHost) -> Option<(u64, Option<u32>)> {
    let space = host.ports?;
    for device in 0..32 {
        let function = host.ecam.start + device * FUNCTIONS * FUNCTION;
        if function + FUNCTION > host.ecam.end || read(function) != SERIAL_2X {
            continue;
        }
        write(function + BAR0, PORT);
        write(function + COMMAND, read(function + COMMAND) & 0xffff | PORT_SPACE);
        // Pin A of device n is wired like pin A of device n % 4.
        return Some((space.start + u64::from(PORT), host.pins[device as usize % 4]));
    }
    None
}

fn read(address: u64) -> u32 {
    // SAFETY: the device tree says that configuration space is there, and it is mapped as device
    // memory; reading it has no effect on the values read here.
    unsafe { (address as *const u32).read_volatile() }
}

fn write(address: u64, value: u32) {
    // SAFETY: as above; no other code uses the card.
    unsafe { (address as *mut u32).write_volatile(value) };
}
