//! Operands, compared with what a processor decodes from them.

use std::vec::Vec;

use proptest::prelude::*;

use crate::tlbi::{
    Errata, Features, Granule, LeafLevel, Limits, PIECE_BYTES_MAX, Pages, Plan, Ranges, Setup, Stale,
    base_alignment, page, plan, range,
};

const GRANULES: [Granule; 3] = [Granule::Size4K, Granule::Size16K, Granule::Size64K];
const LEVELS: [Option<LeafLevel>; 4] =
    [None, Some(LeafLevel::One), Some(LeafLevel::Two), Some(LeafLevel::Three)];
/// The widest base, in granules.
const BASE_END: u64 = 1 << 37;

/// The meaning of a range operand, read field by field after the manual's table: first byte, bytes,
/// TTL.
fn decoded(operand: u64) -> (Granule, u64, u64, u64) {
    assert_eq!(operand >> 48, 0, "NS and reserved bits");
    let granule = match operand >> 46 & 3 {
        1 => Granule::Size4K,
        2 => Granule::Size16K,
        3 => Granule::Size64K,
        _ => panic!("TG is reserved: the processor does nothing"),
    };
    let (scale, num) = (operand >> 44 & 3, operand >> 39 & 31);
    let base = (operand & (BASE_END - 1)) << granule.shift();
    (granule, base, ((num + 1) << (5 * scale + 1)) << granule.shift(), operand >> 37 & 3)
}

/// Checks that operands cover a range as they should.
fn check(granule: Granule, start: u64, len: u64) -> Result<(), TestCaseError> {
    let (end, mask) = (start + len, granule.bytes() - 1);
    // The processor's first address, and the end of what has been covered without a gap.
    let (first, mut reached, mut count, mut covered) = (start & !mask, start & !mask, 0, 0);
    for operand in Ranges::new(granule, start, len, None).expect("in reach") {
        let (of, base, bytes, ttl) = decoded(operand);
        prop_assert_eq!((of, ttl), (granule, 0));
        prop_assert!(bytes <= PIECE_BYTES_MAX, "{bytes:#x}");
        prop_assert!(base.is_multiple_of(base_alignment(granule)));
        prop_assert!(base <= reached && base + bytes > reached, "a gap at {reached:#x}, or no progress");
        prop_assert!(base + bytes <= BASE_END << granule.shift());
        prop_assert!(reached < end, "an operand too many");
        reached = base + bytes;
        covered += bytes;
        count += 1;
    }
    prop_assert!(reached >= end, "{reached:#x} of {end:#x}");
    // Less than twice as much, in granules; one may be added to make the number even.
    let wanted = ((end + mask) & !mask) - first;
    prop_assert!(covered < 2 * wanted || covered <= 2 * granule.bytes(), "{covered:#x} for {wanted:#x}");
    // One operand, if that does not exceed the limit; at most one for every 2 GiB beyond.
    prop_assert!(wanted > 3 << 30 || count <= 1, "{count} for {wanted:#x}");
    prop_assert!(count <= 2 + wanted / (3 << 30), "{count} for {wanted:#x}");
    Ok(())
}

#[test]
fn p17_the_last_page_is_covered_without_going_beyond_it() {
    for granule in GRANULES {
        let last = (BASE_END - 1) << granule.shift();
        check(granule, last, granule.bytes()).expect("covered");
        check(granule, last - 64 * granule.bytes(), 65 * granule.bytes()).expect("covered");
        assert!(Ranges::new(granule, last, 2 * granule.bytes(), None).is_none(), "beyond");
        assert!(Pages::new(granule, last, 2 * granule.bytes(), None, false).is_none());
    }
    assert!(Ranges::new(Granule::Size4K, u64::MAX, 2, None).is_none(), "it wraps");
    assert_eq!(Ranges::new(Granule::Size4K, 0x5123, 0, None).unwrap().count(), 0, "nothing");
    assert_eq!(Pages::new(Granule::Size4K, 0x5123, 0, None, false).unwrap().count(), 0);
}

#[test]
fn operands_bit_by_bit() {
    assert_eq!(page(Granule::Size4K, 0x4020_3000, None), 0x4_0203);
    assert_eq!(page(Granule::Size4K, 0x4020_3fff, Some(LeafLevel::Three)), 0b0111 << 44 | 0x4_0203);
    assert_eq!(
        page(Granule::Size64K, 0xf_0000_0000_0000, Some(LeafLevel::Two)),
        0b1110 << 44 | 0xf0_0000_0000
    );
    // 1 GiB from 1 GiB: 4 units of 65,536.
    let expected = 1 << 46 | 3 << 44 | 3 << 39 | 2 << 37 | 0x4_0000;
    assert_eq!(range(Granule::Size4K, 1 << 30, 3, 4, Some(LeafLevel::Two)), expected);
    assert_eq!(range(Granule::Size16K, 1 << 30, 0, 32, None), 2 << 46 | 31 << 39 | 0x1_0000);
}

#[test]
fn p18_reserved_hints_are_none() {
    // No blocks at level 1 with 16 KiB while DS is 0; no level 0 at all.
    assert_eq!(page(Granule::Size16K, 0, Some(LeafLevel::One)), 0);
    assert_eq!(decoded(range(Granule::Size16K, 0, 0, 1, Some(LeafLevel::One))).3, 0);
    for (granule, level) in GRANULES.into_iter().flat_map(|granule| LEVELS.map(|level| (granule, level))) {
        let ttl = page(granule, 0, level) >> 44;
        assert!(ttl == 0 || ttl & 3 != 0 && ttl >> 2 != 0, "{granule:?} {level:?}: {ttl:#b}");
    }
}

const SETUP: Setup = Setup {
    granule: Granule::Size4K,
    features: Features { range: true, ttl: true, forces_write_back: true, instructions_by_vmid: false },
    errata: Errata { repeat_tlbi: false, speculative_at: false },
    limits: Limits { pages_max: 512, ranges_max: 4 },
};

fn operands(setup: &Setup, stale: Stale) -> Vec<u64> {
    match plan(setup, [stale]) {
        Plan::Ranges(_) => crate::tlbi::plan::by_range(setup, &stale).unwrap().collect(),
        Plan::Pages(_) => crate::tlbi::plan::by_page(setup, &stale).unwrap().collect(),
        Plan::Nothing | Plan::Whole => Vec::new(),
    }
}

#[test]
fn p18_hints_are_for_known_leaves_and_processors_that_know_them() {
    for (leaf, tables, ttl, range) in LEVELS
        .into_iter()
        .flat_map(|leaf| (0..8).map(move |bits: u32| (leaf, bits & 1 != 0, bits & 2 != 0, bits & 4 != 0)))
    {
        let features = Features { range, ttl, ..SETUP.features };
        let setup = Setup { features, ..SETUP };
        let hints: Vec<_> = operands(&setup, Stale { start: 0, len: 4 << 20, leaf, tables })
            .into_iter()
            .map(|operand| if range { operand >> 37 & 3 } else { operand >> 44 & 0xf })
            .collect();
        let level = leaf.map_or(0, |level| level as u64);
        let is_right = !tables && ttl && leaf.is_some();
        let expected = match (is_right, range) {
            (false, _) => 0,
            (true, true) => level,
            (true, false) => 1 << 2 | level,
        };
        if !(range || leaf == Some(LeafLevel::Two) || leaf == Some(LeafLevel::One)) {
            assert!(hints.is_empty(), "1,024 pages are more than the limit");
            continue;
        }
        assert!(
            !hints.is_empty() && hints.iter().all(|&hint| hint == expected),
            "{leaf:?} {tables} {ttl} {range}"
        );
    }
}

#[test]
fn plans_by_features_and_limits() {
    let stale = |len| Stale { start: 5 << 30, len, leaf: Some(LeafLevel::Three), tables: false };
    let without = Setup { features: Features { range: false, ..SETUP.features }, ..SETUP };
    assert!(matches!(plan(&SETUP, []), Plan::Nothing));
    assert!(matches!(plan(&SETUP, [stale(0)]), Plan::Nothing));
    assert!(matches!(plan(&SETUP, [stale(1 << 30)]), Plan::Ranges(_)));
    assert!(matches!(plan(&SETUP, [stale(1 << 30); 4]), Plan::Ranges(_)));
    assert!(matches!(plan(&SETUP, [stale(1 << 30); 5]), Plan::Whole), "too many ranges");
    assert!(matches!(plan(&SETUP, [stale(4096); 5]), Plan::Pages(_)), "small ones");
    assert!(matches!(plan(&without, [stale(2 << 20)]), Plan::Pages(_)), "512 of them");
    assert!(matches!(plan(&without, [stale(2 << 20), stale(4096)]), Plan::Whole), "513");
    assert!(matches!(plan(&SETUP, [stale(1 << 50)]), Plan::Whole), "beyond what operands name");
    assert!(matches!(plan(&SETUP, [stale(u64::MAX)]), Plan::Whole));
}

#[test]
fn features_are_those_of_all_processors() {
    let max = Features::from_id(2 << 56, 1 << 48 | 1 << 40, 0b11 << 14);
    assert_eq!(max, SETUP.features);
    let vpipt = Features::from_id(1 << 56, 0, 0b10 << 14);
    assert_eq!(vpipt, Features { instructions_by_vmid: true, ..Features::default() });
    assert_eq!(max.common(vpipt), vpipt);
}

fn granule() -> impl Strategy<Value = Granule> {
    prop_oneof![Just(Granule::Size4K), Just(Granule::Size16K), Just(Granule::Size64K)]
}

proptest! {
    #[test]
    fn p17_any_range_of_any_granule_is_covered(
        granule in granule(),
        start in any::<u64>(),
        // All orders of magnitude alike, up to 2^52.
        bits in 0u32..53,
        len in any::<u64>(),
    ) {
        let limit = (BASE_END << granule.shift()).min(1 << 52);
        let len = (len & ((1 << bits) - 1) | 1 << bits).min(limit);
        let start = start % (limit - len + 1);
        // 2^52 bytes are over a million operands: those far from the end are like those near it.
        if len > 1 << 44 {
            let first = Ranges::new(granule, start, len, None).unwrap().next().unwrap();
            prop_assert_eq!(decoded(first).1, start & !(granule.bytes() - 1));
            check(granule, start + (len - (1 << 44)), 1 << 44)?;
        } else {
            check(granule, start, len)?;
        }
    }

    #[test]
    fn p17_pages_cover_in_strides_of_the_smallest_leaf(
        granule in granule(),
        start in 0u64..1 << 44,
        leaves in 1u64..700,
        level in prop_oneof![Just(None), Just(Some(LeafLevel::Two)), Just(Some(LeafLevel::Three))],
        only_leaves in any::<bool>(),
    ) {
        let stride = 1u64 << level.unwrap_or(LeafLevel::Three).shift(granule);
        let len = leaves * stride;
        let pages = Pages::new(granule, start, len, level, only_leaves).unwrap();
        prop_assert!(pages.count_left() <= leaves + 1);
        let mut reached = start & !(stride - 1);
        for operand in pages {
            prop_assert_eq!((operand & ((1 << 40) - 1)) << 12, reached);
            prop_assert_eq!(operand >> 44 == 0, !only_leaves || level.is_none());
            reached += stride;
        }
        prop_assert!(reached >= start + len && reached < start + len + stride);
    }
}
