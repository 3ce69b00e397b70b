//! The guest's base address registers (PCI, 6.2.5.1).

use super::Windows;
use crate::config::BAR_COUNT;
use crate::physical::{Bar, BarKind, bar_flags};
use core::ops::Range;

/// The smallest memory that a BAR has for the guest: a page, so that no page belongs to two BARs.
const LEN_MIN: u64 = 4096;

/// Where a BAR is in the guest's memory now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Guest physical address of its first byte, a multiple of `len`.
    pub address: u64,
    /// Bytes that the guest sees: a power of two, a page at least.
    pub len: u64,
    /// Bytes that the real BAR has. If it has less than a page, the rest of the page may belong to
    /// other functions: the caller must not map it, but trap accesses. Those beyond this length
    /// read as all ones and are ignored.
    pub real_len: u64,
}

impl Decoded {
    /// The guest physical addresses.
    pub const fn range(&self) -> Range<u64> {
        self.address..self.address + self.len
    }

    /// Whether the memory consists of whole pages, so that the caller may map it.
    pub const fn is_mappable(&self) -> bool {
        self.real_len == self.len
    }
}

/// A BAR of memory.
#[derive(Clone, Copy, Debug)]
struct Register {
    is_64_bit: bool,
    /// Bits of the lower register that are no address.
    flags: u32,
    len: u64,
    real_len: u64,
    /// The address that the guest wrote; bits below `len` are 0.
    address: u64,
    /// The address after reset.
    placed: u64,
}

impl Register {
    fn new(bar: &Bar) -> Self {
        Self {
            is_64_bit: bar.kind == BarKind::Memory64,
            flags: bar_flags(bar.kind, bar.is_prefetchable),
            len: bar.size.max(LEN_MIN),
            real_len: bar.size,
            address: 0,
            placed: 0,
        }
    }

    /// The bits of the address that can be written.
    const fn address_bits(&self) -> u64 {
        let bits = !(self.len - 1);
        if self.is_64_bit { bits } else { bits & 0xffff_ffff }
    }
}

/// The registers of a function.
#[derive(Clone, Debug)]
pub(super) struct Bars([Option<Register>; BAR_COUNT]);

impl Bars {
    /// Registers for all BARs of memory. Those of ports are hidden.
    pub(super) fn new(bars: &[Option<Bar>; BAR_COUNT]) -> Self {
        Self(bars.map(|bar| bar.filter(Bar::is_memory).map(|bar| Register::new(&bar))))
    }

    /// Puts a BAR at an address, now and after each reset.
    pub(super) fn place(&mut self, number: usize, address: u64) -> bool {
        match self.0.get_mut(number) {
            Some(Some(bar)) if address & !bar.address_bits() == 0 => {
                bar.address = address;
                bar.placed = address;
                true
            }
            _ => false,
        }
    }

    pub(super) fn reset(&mut self) {
        self.0.iter_mut().flatten().for_each(|bar| bar.address = bar.placed);
    }

    /// No BAR has an address.
    pub(super) fn clear(&mut self) {
        self.0.iter_mut().flatten().for_each(|bar| bar.address = 0);
    }

    /// The size for the guest in bytes.
    pub(super) fn len(&self, number: usize) -> Option<u64> {
        self.0.get(number)?.as_ref().map(|bar| bar.len)
    }

    /// The BAR that a register belongs to, and whether it is the upper half.
    fn find(&self, number: usize) -> Option<(usize, bool)> {
        if self.0.get(number)?.is_some() {
            return Some((number, false));
        }
        let before = number.checked_sub(1)?;
        self.0[before].is_some_and(|bar| bar.is_64_bit).then_some((before, true))
    }

    pub(super) fn read(&self, number: usize) -> u32 {
        match self.find(number).and_then(|(at, is_high)| Some((self.0[at]?, is_high))) {
            Some((bar, false)) => bar.address as u32 | bar.flags,
            Some((bar, true)) => (bar.address >> 32) as u32,
            None => 0,
        }
    }

    /// Writes the bits in `mask` of a register. All ones read back as the bits of the address,
    /// which is how software determines the size.
    pub(super) fn write(&mut self, number: usize, value: u32, mask: u32) {
        let Some((at, is_high)) = self.find(number) else { return };
        let Some(bar) = &mut self.0[at] else { return };
        let shift = if is_high { 32 } else { 0 };
        let mask = u64::from(mask) << shift & bar.address_bits();
        bar.address = bar.address & !mask | u64::from(value) << shift & mask;
    }

    /// Where the BARs are, if memory is decoded.
    ///
    /// A BAR outside of the windows is nowhere. Nor is one that overlaps another: of two that
    /// overlap none is decoded.
    pub(super) fn decoded(&self, windows: &Windows) -> [Option<Decoded>; BAR_COUNT] {
        let inside = self.0.map(|bar| {
            let bar = bar.filter(|bar| windows.contain(bar.address, bar.len))?;
            Some(Decoded { address: bar.address, len: bar.len, real_len: bar.real_len })
        });
        let overlaps = |one: usize| {
            let others = (0..BAR_COUNT).filter(|&other| other != one);
            others.filter_map(|other| inside[other]).any(|other| {
                inside[one].is_some_and(|bar| {
                    bar.range().start < other.range().end && other.range().start < bar.range().end
                })
            })
        };
        core::array::from_fn(|number| inside[number].filter(|_| !overlaps(number)))
    }
}
