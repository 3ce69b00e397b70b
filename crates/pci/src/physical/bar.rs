//! Base address registers and their sizes (PCI, 6.2.5.1).

use crate::config::{Address, BAR_COUNT, ConfigSpace, register};
use pci_types::CommandRegister;

/// What a BAR decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarKind {
    /// Memory, with an address of 32 bits.
    Memory32,
    /// Memory, with an address of 64 bits in two registers.
    Memory64,
    /// I/O ports.
    Io,
}

/// A base address register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// What it decodes.
    pub kind: BarKind,
    /// Whether reads have no side effects.
    pub is_prefetchable: bool,
    /// Its first address (host physical), or port.
    pub address: u64,
    /// Its size in bytes, a power of two: 16 or more for memory, 4 or more for ports.
    pub size: u64,
}

impl Bar {
    /// Whether it is memory.
    pub const fn is_memory(&self) -> bool {
        !matches!(self.kind, BarKind::Io)
    }
}

/// Bits of a BAR: I/O, the type of memory, prefetchable.
const IO: u32 = 1 << 0;
const TYPE: u32 = 3 << 1;
const TYPE_64: u32 = 2 << 1;
const TYPE_RESERVED: u32 = 3 << 1;
const PREFETCHABLE: u32 = 1 << 3;

/// Register of the BAR with this number.
pub(crate) const fn register_of(number: usize) -> u16 {
    register::BAR + 4 * number as u16
}

/// The bits of the lower register that are no address.
pub(crate) const fn flags(kind: BarKind, is_prefetchable: bool) -> u32 {
    let kind = match kind {
        BarKind::Io => return IO,
        BarKind::Memory32 => 0,
        BarKind::Memory64 => TYPE_64,
    };
    kind | if is_prefetchable { PREFETCHABLE } else { 0 }
}

/// Reads and sizes all BARs of an ordinary function.
///
/// Sizing writes all ones to an address register. Meanwhile the function decodes nothing and does
/// no DMA. The status, in the upper half of the command's double word, is written as 0, which
/// clears none of its bits.
pub(super) fn read_all(space: &impl ConfigSpace, address: Address) -> [Option<Bar>; BAR_COUNT] {
    let command = space.read(address, register::COMMAND) & 0xffff;
    let decode =
        CommandRegister::IO_ENABLE | CommandRegister::MEMORY_ENABLE | CommandRegister::BUS_MASTER_ENABLE;
    space.write(address, register::COMMAND, command & !u32::from(decode.bits()));
    let mut bars = [None; BAR_COUNT];
    let mut number = 0;
    while number < BAR_COUNT {
        let (bar, registers) = read(space, address, number);
        bars[number] = bar;
        number += registers;
    }
    space.write(address, register::COMMAND, command);
    bars
}

/// The BAR with this number, and how many registers it takes.
fn read(space: &impl ConfigSpace, address: Address, number: usize) -> (Option<Bar>, usize) {
    let at = register_of(number);
    let low = space.read(address, at);
    if low & IO != 0 {
        // A device of 16 bits has zeros in the upper half of its mask.
        let mask = size(space, address, at) & !3;
        let bar = (mask != 0).then(|| Bar {
            kind: BarKind::Io,
            is_prefetchable: false,
            address: u64::from(low & !3),
            size: 1 << mask.trailing_zeros(),
        });
        return (bar, 1);
    }
    let is_prefetchable = low & PREFETCHABLE != 0;
    match low & TYPE {
        TYPE_RESERVED => (None, 1),
        TYPE_64 => {
            if number + 1 == BAR_COUNT {
                // There is no register for its upper half.
                return (None, 1);
            }
            let high = space.read(address, at + 4);
            let mask =
                u64::from(size(space, address, at) & !15) | u64::from(size(space, address, at + 4)) << 32;
            let base = u64::from(low & !15) | u64::from(high) << 32;
            (memory(BarKind::Memory64, is_prefetchable, base, mask), 2)
        }
        _ => {
            let mask = u64::from(size(space, address, at) & !15);
            (memory(BarKind::Memory32, is_prefetchable, u64::from(low & !15), mask), 1)
        }
    }
}

/// A BAR of memory whose address bits are `mask`; none if it has no such bit.
fn memory(kind: BarKind, is_prefetchable: bool, address: u64, mask: u64) -> Option<Bar> {
    (mask != 0).then(|| Bar { kind, is_prefetchable, address, size: 1 << mask.trailing_zeros() })
}

/// What a register reads after all ones were written to it. Its value is restored.
fn size(space: &impl ConfigSpace, address: Address, at: u16) -> u32 {
    let value = space.read(address, at);
    space.write(address, at, u32::MAX);
    let mask = space.read(address, at);
    space.write(address, at, value);
    mask
}
