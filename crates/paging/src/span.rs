//! Ranges of input addresses, split along the tree.

use core::ops::Range;

use crate::{Format, Level, MapError};

/// A range of offsets from the start of the root table's span: input addresses without their sign
/// extension, so that the end of the address space can be expressed.
pub(crate) type Span = Range<u64>;

/// The offset of a valid input address.
pub(crate) fn offset<F: Format>(address: u64) -> Option<u64> {
    let offset = address & (u64::MAX >> (64 - F::INPUT_BITS));
    (address_of::<F>(offset) == address).then_some(offset)
}

/// The input address at an offset.
pub(crate) fn address_of<F: Format>(offset: u64) -> u64 {
    if F::SIGN_EXTENDED {
        let unused = 64 - F::INPUT_BITS;
        ((offset << unused) as i64 >> unused) as u64
    } else {
        offset
    }
}

/// A range that must be page-aligned, valid throughout, and not cross the hole in the middle of a
/// sign-extended space.
pub(crate) fn exact<F: Format>(range: &Range<u64>) -> Result<Span, MapError> {
    if (range.start | range.end) & Level::Page4K.offset_mask() != 0 {
        return Err(MapError::Unaligned);
    }
    if range.is_empty() {
        return Ok(0..0);
    }
    let last = range.end - 1;
    let start = offset::<F>(range.start).ok_or(MapError::OutOfRange)?;
    let end = offset::<F>(last).ok_or(MapError::OutOfRange)? + 1;
    // A range over the hole has valid ends, but is longer than its offsets are.
    if end.checked_sub(start) != Some(range.end - range.start) {
        return Err(MapError::OutOfRange);
    }
    Ok(start..end)
}

/// The valid part of a range, rounded outwards to whole pages: at most one part on each side of the
/// hole.
pub(crate) fn widened<F: Format>(range: &Range<u64>) -> [Span; 2] {
    if range.is_empty() {
        return [0..0, 0..0];
    }
    let page = Level::Page4K.offset_mask();
    let (first, last) = (range.start & !page, (range.end - 1) | page);
    let half = 1u64 << (F::INPUT_BITS - 1);
    let (low_end, high_start) =
        if F::SIGN_EXTENDED { (half, half.wrapping_neg()) } else { (half * 2, u64::MAX) };
    let low = first.min(low_end)..last.min(low_end - 1) + 1;
    let high = if F::SIGN_EXTENDED && last >= high_start {
        let base = high_start - half;
        first.max(high_start) - base..last - base + 1
    } else {
        0..0
    };
    [low, high]
}

/// The part of a span that one entry of a table covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpanPiece {
    pub(crate) span: Span,
    /// Whether the entry's whole extent is in the span.
    pub(crate) whole: bool,
    /// Start of the entry's extent.
    pub(crate) entry_start: u64,
}

/// Splits a span of one table of `level` by its entries: at most 512 pieces.
pub(crate) fn pieces(span: Span, level: Level) -> impl Iterator<Item = SpanPiece> {
    let mut next = span.start;
    core::iter::from_fn(move || {
        if next >= span.end {
            return None;
        }
        let entry_start = next & !level.offset_mask();
        let start = next;
        next = span.end.min(entry_start + level.size());
        Some(SpanPiece { span: start..next, whole: next - start == level.size(), entry_start })
    })
}
