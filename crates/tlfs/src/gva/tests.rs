//! Ranges at the edges of the address space.

use super::*;
use proptest::prelude::*;
use std::vec::Vec;

const LOW_LAST: u64 = 0x0000_7fff_ffff_f000;
const HIGH_FIRST: u64 = 0xffff_8000_0000_0000;
const TOP: u64 = 0xffff_ffff_ffff_f000;

#[test]
fn h22_extended_golden_elements() {
    use PageSize::{Huge, Large, Small};
    const LARGE: u64 = 1 << 11;
    const HUGE: u64 = LARGE | 1 << 12;
    const GIB: u64 = 1 << 30;
    const GIB_PAGES: u64 = 1 << 18;
    let rows = [
        (0x5003, Small, Some((0x5000, 4))),
        (0x20_0000 | LARGE, Large, Some((0x20_0000, 512))),
        (0x20_0000 | LARGE | 4, Large, Some((0x20_0000, 5 * 512))),
        (0x3f_e000 | LARGE, Large, Some((0x20_0000, 512))), // reserved bits say nothing
        (GIB | HUGE | 1, Huge, Some((GIB, 2 * GIB_PAGES))),
        (GIB | HUGE | 0x7ff, Huge, Some((GIB, 2048 * GIB_PAGES))),
        ((GIB + (1 << 21)) | HUGE, Huge, Some((GIB, 2 * GIB_PAGES))), // in the middle of a page
        // h23: the highest count at the top of the address space.
        (u64::MAX, Huge, Some((!0 << 30, GIB_PAGES))),
    ];
    for (word, size, expected) in rows {
        let entry = ExtendedGvaEntry::from_bits(word);
        let expected = expected.map(|(start, pages)| PageRange { start, pages });
        assert_eq!((entry.size(), entry.canonical(VaWidth::Bits48)), (size, expected), "{word:#x}");
    }
}

fn is_canonical(address: u64, bits: u32) -> bool {
    let sign = (address as i64) >> (bits - 1);
    sign == 0 || sign == -1
}

/// An address near which ranges begin, and how many pages away from it: often none, or one.
fn place() -> impl Strategy<Value = (u64, i64)> {
    let edges = [0, LOW_LAST, HIGH_FIRST, TOP, 1 << 56, !0 << 56].as_slice();
    let edge = prop_oneof![6 => prop::sample::select(edges), 1 => any::<u64>()];
    (edge, prop_oneof![-1i64..=1, -4097i64..=-4094, -5000i64..5000])
}

proptest! {
    #[test]
    fn h9_a_range_holds_exactly_the_canonical_pages_named(
        (edge, distance) in place(),
        additional in prop_oneof![0u64..3, 4094u64..4096, 0u64..4096],
        wide in any::<bool>(),
    ) {
        let start = (edge & !0xfff).wrapping_add((distance << 12) as u64);
        let (width, bits) = if wide { (VaWidth::Bits57, 57) } else { (VaWidth::Bits48, 48) };
        let named = (0..=additional).map_while(|page| start.checked_add(page << 12));
        let model: Vec<u64> = named.filter(|page| is_canonical(*page, bits)).collect();
        let range = GvaEntry::from_bits(start | additional).canonical(width);
        let pages: Vec<u64> =
            range.into_iter().flat_map(|range| (0..range.pages).map(move |page| range.start + (page << 12))).collect();
        prop_assert_eq!(range.map(|range| range.last()), model.last().copied());
        prop_assert_eq!(pages, model);
    }

    #[test]
    fn h9_h23_an_extended_range_holds_exactly_the_canonical_pages_named(
        (edge, distance) in place(),
        size in prop::sample::select([PageSize::Small, PageSize::Large, PageSize::Huge].as_slice()),
        additional in prop_oneof![0u64..3, 2046u64..2048, 0u64..2048],
        wide in any::<bool>(),
    ) {
        let bytes = 1u64 << size.shift();
        let start = (edge & !(bytes - 1)).wrapping_add((distance as u64).wrapping_mul(bytes));
        let kind = [0, 1 << 11, 3 << 11][size as usize];
        let (width, bits) = if wide { (VaWidth::Bits57, 57) } else { (VaWidth::Bits48, 48) };
        let word = start | kind | additional;
        let entry = ExtendedGvaEntry::from_bits(word);
        prop_assert_eq!(entry.size(), size);
        let range = entry.canonical(width);
        // Page by page; a page of the element's size is canonical as a whole or not at all.
        let named = (0..=additional).map_while(|page| start.checked_add(page * bytes));
        let model: Vec<u64> = named.filter(|page| is_canonical(*page, bits)).collect();
        let pages = range.map_or(0, |range| range.pages);
        prop_assert_eq!(pages, model.len() as u64 * (bytes >> 12));
        prop_assert_eq!(range.map(|range| range.start), model.first().copied());
        prop_assert!(range.is_none_or(|range| range.last() >= range.start));
    }
}
