//! Covering a range of addresses by operands.

use super::operand::{BASE_BITS, Granule, LeafLevel, SCALE_MAX, UNITS_MAX, page, range, unit};

/// The most bytes that one operand covers: 3.75 GiB. QEMU 7.2 computes the length of a range in 32
/// bits, so 4 GiB or more would invalidate nothing. 3.75 GiB is the largest smaller length that
/// SCALE 3 can name with the 4 KiB granule.
pub const PIECE_BYTES_MAX: u64 = 0xf000_0000;

/// The alignment of a range's base, in bytes: with VTCR_EL2.DS = 0 a range can begin at any
/// granule. (With DS = 1 the base is in units of 64 KiB, and must also be a multiple of the unit of
/// SCALE.)
pub const fn base_alignment(granule: Granule) -> u64 {
    granule.bytes()
}

/// The granules that a range of bytes covers, in whole or in part: the first, and the one after the
/// last. `None` if an operand cannot name them all.
pub(super) fn granules(granule: Granule, start: u64, len: u64) -> Option<(u64, u64)> {
    let end = start.checked_add(len)?;
    let (first, end) = (start >> granule.shift(), end.div_ceil(granule.bytes()));
    (end <= 1 << BASE_BITS).then_some((first, if len == 0 { first } else { end }))
}

/// Operands of RIPAS2E1IS that together cover a range.
///
/// A range of at most [`PIECE_BYTES_MAX`] takes one operand, or two if one would exceed the limit.
/// To achieve this the last operand may cover more than requested, though less than twice the
/// remainder, and no address beyond the widest base.
#[derive(Clone, Debug)]
pub struct Ranges {
    granule: Granule,
    leaf: Option<LeafLevel>,
    /// In granules.
    next: u64,
    end: u64,
}

impl Ranges {
    /// For the `len` bytes from `start`; with a `leaf`, only leaves of that level need to be
    /// dropped. `None` if the range ends beyond what operands can name: flush the whole VMID.
    pub fn new(granule: Granule, start: u64, len: u64, leaf: Option<LeafLevel>) -> Option<Self> {
        let (next, end) = granules(granule, start, len)?;
        Some(Self { granule, leaf, next, end })
    }
}

impl Iterator for Ranges {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let rest = self.end.checked_sub(self.next).filter(|&rest| rest != 0)?;
        let (scale, units) = piece(rest, PIECE_BYTES_MAX >> self.granule.shift());
        let span = units * unit(scale);
        // Moved down where it would otherwise reach beyond the last address; it covers the same
        // addresses, and starts lower.
        let base = self.next.min((1 << BASE_BITS) - span);
        let operand = range(self.granule, base << self.granule.shift(), scale, units, self.leaf);
        self.next += span;
        Some(operand)
    }
}

/// Scale and units of the next operand for `rest` granules, of which one operand may cover `most`.
///
/// The smallest sufficient scale, hence more than one unit unless the scale is 0: rounding up adds
/// less than a unit, which is less than the requested length.
fn piece(rest: u64, most: u64) -> (u32, u64) {
    let wanted = rest.min(most);
    let scale = (0..SCALE_MAX).find(|&scale| wanted <= unit(scale) * UNITS_MAX).unwrap_or(SCALE_MAX);
    let (up, down) = (wanted.div_ceil(unit(scale)), wanted / unit(scale));
    (scale, if up * unit(scale) <= most { up } else { down })
}

const _: () = {
    let mut granule = [Granule::Size4K, Granule::Size16K, Granule::Size64K].as_slice();
    while let [first, rest @ ..] = granule {
        let most = PIECE_BYTES_MAX >> first.shift();
        // Rounding down then leaves at least one unit, so every piece makes progress.
        assert!(most > unit(2) * UNITS_MAX / 2 && most <= unit(SCALE_MAX) * UNITS_MAX);
        assert!(base_alignment(*first).is_power_of_two());
        granule = rest;
    }
};

/// Operands of IPAS2E1IS, one per leaf.
#[derive(Clone, Debug)]
pub struct Pages {
    granule: Granule,
    leaf: Option<LeafLevel>,
    stride: u64,
    next: u64,
    end: u64,
}

impl Pages {
    /// For the `len` bytes from `start`, in which no leaf is smaller than those of level `smallest`
    /// (pages, if it is not known). With `only_leaves`, only leaves of exactly that level need to
    /// be dropped. `None` as in [`Ranges::new`].
    pub fn new(
        granule: Granule,
        start: u64,
        len: u64,
        smallest: Option<LeafLevel>,
        only_leaves: bool,
    ) -> Option<Self> {
        let (first, end) = granules(granule, start, len)?;
        let shift = smallest.unwrap_or(LeafLevel::Three).shift(granule);
        let stride = 1 << shift;
        let end = end << granule.shift();
        let next = if len == 0 { end } else { (first << granule.shift()) & !(stride - 1) };
        let leaf = if only_leaves { smallest } else { None };
        Some(Self { granule, leaf, stride, next, end })
    }

    /// The number of remaining operands.
    pub fn count_left(&self) -> u64 {
        self.end.saturating_sub(self.next).div_ceil(self.stride)
    }
}

impl Iterator for Pages {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        (self.next < self.end).then(|| {
            let operand = page(self.granule, self.next, self.leaf);
            self.next += self.stride;
            operand
        })
    }
}
