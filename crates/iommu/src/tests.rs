//! What the tests of all kinds of IOMMUs have in common.

use core::ops::Range;

use proptest::prelude::*;

/// Ranges that are not empty, and how many blocks there may be.
pub(crate) fn ranges() -> impl Strategy<Value = (Range<u64>, usize)> {
    let starts = prop_oneof![0..1u64 << 24, any::<u64>()];
    let ranges = (starts, prop_oneof![1..1u64 << 24, 1..u64::MAX])
        .prop_map(|(start, len)| start..start.saturating_add(len).max(1));
    (ranges.prop_filter("empty", |range| !range.is_empty()), 0usize..9)
}

/// The blocks, with their last bytes, are all of a range, and little else.
pub(crate) fn every_page_is_named(
    blocks: &[(u64, u64)],
    range: Range<u64>,
    max: usize,
) -> Result<(), TestCaseError> {
    prop_assert!(!blocks.is_empty() && blocks.len() <= max.max(1));
    // In ascending order without gaps, from before the start to after the end.
    prop_assert!(blocks[0].0 <= range.start);
    prop_assert!(blocks.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0));
    prop_assert!(blocks[blocks.len() - 1].1 >= range.end - 1);
    if blocks.len() > 1 {
        prop_assert_eq!(blocks[0].0, range.start & !0xfff);
        prop_assert_eq!(blocks[blocks.len() - 1].1, (range.end - 1) | 0xfff);
    }
    Ok(())
}
