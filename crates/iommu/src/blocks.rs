//! Blocks of 2^n pages, aligned to their size, which commands name.

use core::ops::Range;

/// Bits of the offset in a page.
pub(crate) const PAGE_SHIFT: u32 = 12;
/// Pages of the largest block that is not everything, as a power of two.
pub(crate) const ORDER_MAX: u32 = 52 - PAGE_SHIFT;

/// The S bit: the address contains the size.
const SIZE: u64 = 1 << 0;
/// Everything: all ones but the last bit of the page number.
const EVERYTHING: u64 = 0x7fff_ffff_ffff_f000 | SIZE;

/// Which entries of an address go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Those of leaves.
    Leaves,
    /// Those of tables, too: a table was cut off.
    Tables,
}

/// 2^`order` pages, from the page with this number on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) page: u64,
    pub(crate) order: u32,
}

impl Block {
    /// The address with the size in it: with the S bit, the lowest bits of the page number say the
    /// size, as many ones as the size has doublings beyond two pages, then a zero. Sizes above 2^52
    /// bytes are everything: their zero would be among the bits that extend the sign.
    pub(crate) const fn operand(self) -> u64 {
        match self.order {
            0 => self.page << PAGE_SHIFT,
            order if order > ORDER_MAX => EVERYTHING,
            order => (self.page | ((1 << (order - 1)) - 1)) << PAGE_SHIFT | SIZE,
        }
    }
}

/// The blocks of a range of pages, in ascending order.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    /// The next page.
    next: u64,
    /// How many are left.
    left: u64,
}

impl Blocks {
    /// The blocks for a range of bytes, at most `max`.
    pub(crate) fn of(range: Range<u64>, max: usize) -> Self {
        if range.is_empty() {
            return Self { next: 0, left: 0 };
        }
        let first = range.start >> PAGE_SHIFT;
        let last = (range.end - 1) >> PAGE_SHIFT;
        let exact = Self { next: first, left: last - first + 1 };
        let has_blocks = exact.left < 2 << ORDER_MAX && exact.clone().nth(max).is_none();
        if has_blocks { exact } else { Self::around(first, last) }
    }

    /// The smallest block that contains both pages.
    const fn around(first: u64, last: u64) -> Self {
        let order = u64::BITS - (first ^ last).leading_zeros();
        let size = 1 << order;
        Self { next: first & !(size - 1), left: size }
    }
}

impl Iterator for Blocks {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        let order = self.left.checked_ilog2()?.min(self.next.trailing_zeros());
        let block = Block { page: self.next, order };
        self.next += 1 << order;
        self.left -= 1 << order;
        Some(block)
    }
}
