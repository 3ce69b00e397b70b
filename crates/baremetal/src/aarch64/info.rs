//! The loader's information: the device tree.

use dtoolkit::fdt::Fdt;

pub use crate::devicetree::{Board, Conduit, Gic, Ram};

use super::{clock, gic, power, serial, tables};

/// Where QEMU puts a device tree for an ELF, which it starts without passing the address: the
/// beginning of the virt machine's RAM.
const DEVICE_TREE_DEFAULT: u64 = 0x4000_0000;
/// The first bytes of a device tree.
const MAGIC: u32 = u32::from_be_bytes([0xd0, 0x0d, 0xfe, 0xed]);

/// A copy of the loader's information: nothing refers to the loader's own memory.
pub type BootInfo = Board;

/// The device tree at `address`, if there is one.
///
/// # Safety
///
/// Memory there is mapped; if it begins like a device tree, it is one that nothing changes.
pub unsafe fn tree(address: u64) -> Option<&'static [u8]> {
    if address == 0 || !address.is_multiple_of(8) {
        return None;
    }
    // SAFETY: the caller's promise.
    let magic = unsafe { (address as *const u32).read_volatile() };
    if u32::from_be(magic) != MAGIC {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { Fdt::from_raw(address as *const u8) }.ok()?.data())
}

/// Reads the device tree, maps RAM, and passes device addresses to the other modules.
///
/// # Safety
///
/// `address` is the loader's value, or 0, and memory there is mapped one to one.
pub(super) unsafe fn read(address: u64) -> BootInfo {
    let address = if address == 0 { DEVICE_TREE_DEFAULT } else { address };
    // SAFETY: the caller's promise; if nothing else is there, a word of RAM is.
    let bytes = unsafe { tree(address) };
    let bytes = bytes.unwrap_or_else(|| panic!("there is no device tree at {address:#x}"));
    let board = Board::read(bytes).unwrap_or_else(|why| panic!("{why}"));
    if let Some(uart) = board.uarts.first() {
        serial::set_address(uart.registers.start);
    }
    tables::map_ram(&board.ram);
    power::set_conduit(board.psci);
    clock::set_virtual_timer(board.virtual_timer);
    if let Some(found) = &board.gic {
        gic::set_place(found);
    }
    board
}
