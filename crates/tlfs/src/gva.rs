//! Ranges of guest virtual addresses.

use bitfield_struct::bitfield;

/// Page numbers are what is left of a 64-bit address above the page offset.
const PAGE_SHIFT: u32 = 12;
const LAST_PAGE: u64 = u64::MAX >> PAGE_SHIFT;

/// How many bits of a virtual address translate. The rest must equal the highest of them, or the
/// address is not canonical: no translation of it can exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VaWidth {
    /// Four levels of page tables.
    #[default]
    Bits48,
    /// Five levels.
    Bits57,
}

impl VaWidth {
    /// Pages in either canonical half.
    const fn half_pages(self) -> u64 {
        match self {
            Self::Bits48 => 1 << (47 - PAGE_SHIFT),
            Self::Bits57 => 1 << (56 - PAGE_SHIFT),
        }
    }
}

/// Canonical pages that follow one another; never empty, never past the end of the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRange {
    /// Address of the first page, a multiple of the page size.
    pub start: u64,
    /// Number of 4 KiB pages, at least 1.
    pub pages: u64,
}

impl PageRange {
    /// Address of the last page. (The address after it would not fit for the last page of all.)
    pub const fn last(&self) -> u64 {
        self.start + ((self.pages - 1) << PAGE_SHIFT)
    }
}

/// An element of a flush list, HV_GVA_RANGE: a page and the number of pages that follow it, so 1 to
/// 4096 pages. TLFS, "HvCallFlushVirtualAddressList".
///
/// The extended format, in which bit 11 marks large pages, is not decoded: it needs flag bit 3, and a
/// call with that flag does not pass [`decode`](crate::decode()).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct GvaEntry {
    /// Number of pages after the first one.
    #[bits(12)]
    pub additional_pages: u16,
    /// Bits 63:12 of the first page's address.
    #[bits(52)]
    pub page_number: u64,
}

impl GvaEntry {
    /// The part of the range that can be translated: `None` if there is none.
    ///
    /// Pages that are not canonical are ignored, as the flush instructions ignore them. A range is
    /// much shorter than the hole between the halves, so what is left is one piece: a range that
    /// starts in the lower half ends with it, and one that starts in the hole begins with the upper
    /// half. A range does not wrap: it ends with the address space.
    pub fn canonical(self, width: VaWidth) -> Option<PageRange> {
        let half = width.half_pages();
        let first = self.page_number();
        let last = (first + u64::from(self.additional_pages())).min(LAST_PAGE);
        let upper = LAST_PAGE - (half - 1);
        let (first, last) = if first < half { (first, last.min(half - 1)) } else { (first.max(upper), last) };
        (first <= last).then(|| PageRange { start: first << PAGE_SHIFT, pages: last - first + 1 })
    }
}

/// The elements of a flush list that are still to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GvaList<'a> {
    entries: &'a [u64],
    width: VaWidth,
}

impl<'a> GvaList<'a> {
    /// A list over `entries`, each a [`GvaEntry`], for addresses of `width`.
    pub const fn new(entries: &'a [u64], width: VaWidth) -> Self {
        Self { entries, width }
    }

    /// The elements as the guest wrote them.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = GvaEntry> + use<'a> {
        self.entries.iter().map(|entry| GvaEntry::from_bits(*entry))
    }

    /// The canonical pages that the elements name, in list order; elements without any are left out.
    pub fn ranges(&self) -> impl Iterator<Item = PageRange> + use<'a> {
        let width = self.width;
        self.entries().filter_map(move |entry| entry.canonical(width))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const LOW_LAST: u64 = 0x0000_7fff_ffff_f000;
    const HIGH_FIRST: u64 = 0xffff_8000_0000_0000;
    const TOP: u64 = 0xffff_ffff_ffff_f000;

    #[test]
    fn h9_ranges_at_the_edges_keep_their_valid_part() {
        use VaWidth::{Bits48, Bits57};
        let rows = [
            (Bits48, 0, 0, Some((0, 1))),
            (Bits48, 0, 4095, Some((0, 4096))),
            (Bits48, 0x1000, 1, Some((0x1000, 2))),
            (Bits48, LOW_LAST, 0, Some((LOW_LAST, 1))),
            (Bits48, LOW_LAST, 1, Some((LOW_LAST, 1))),
            (Bits48, LOW_LAST, 4095, Some((LOW_LAST, 1))),
            (Bits48, LOW_LAST - 0x1000, 1, Some((LOW_LAST - 0x1000, 2))),
            (Bits48, LOW_LAST - 0x1000, 2, Some((LOW_LAST - 0x1000, 2))),
            (Bits48, LOW_LAST - 4095 * 0x1000, 4095, Some((LOW_LAST - 4095 * 0x1000, 4096))),
            (Bits48, LOW_LAST + 0x1000, 0, None),
            (Bits48, LOW_LAST + 0x1000, 4095, None),
            (Bits48, 0x8000_0000_0000_0000, 4095, None),
            (Bits48, HIGH_FIRST - 0x1000, 0, None),
            (Bits48, HIGH_FIRST - 0x1000, 1, Some((HIGH_FIRST, 1))),
            (Bits48, HIGH_FIRST - 0x1000, 4095, Some((HIGH_FIRST, 4095))),
            (Bits48, HIGH_FIRST - 4095 * 0x1000, 4095, Some((HIGH_FIRST, 1))),
            (Bits48, HIGH_FIRST - 4096 * 0x1000, 4095, None),
            (Bits48, HIGH_FIRST, 0, Some((HIGH_FIRST, 1))),
            (Bits48, HIGH_FIRST, 4095, Some((HIGH_FIRST, 4096))),
            (Bits48, TOP, 0, Some((TOP, 1))),
            (Bits48, TOP, 1, Some((TOP, 1))),
            (Bits48, TOP, 4095, Some((TOP, 1))),
            (Bits48, TOP - 0x1000, 4095, Some((TOP - 0x1000, 2))),
            (Bits48, TOP - 4095 * 0x1000, 4095, Some((TOP - 4095 * 0x1000, 4096))),
            (Bits57, LOW_LAST, 1, Some((LOW_LAST, 2))),
            (Bits57, 0x00ff_ffff_ffff_f000, 1, Some((0x00ff_ffff_ffff_f000, 1))),
            (Bits57, 0x0100_0000_0000_0000, 4095, None),
            (Bits57, 0xfeff_ffff_ffff_f000, 1, Some((0xff00_0000_0000_0000, 1))),
            (Bits57, TOP, 4095, Some((TOP, 1))),
        ];
        for (width, address, additional, expected) in rows {
            let range = GvaEntry::from_bits(address | additional).canonical(width);
            let expected = expected.map(|(start, pages)| PageRange { start, pages });
            assert_eq!(range, expected, "{width:?} {address:#x}+{additional}");
        }
    }

    #[test]
    fn the_last_page_of_a_range_does_not_overflow() {
        let range = GvaEntry::from_bits(u64::MAX).canonical(VaWidth::Bits48).unwrap();
        assert_eq!((range.start, range.last()), (TOP, TOP));
    }

    #[test]
    fn a_list_leaves_out_what_has_no_canonical_page() {
        let list = [0x5000, LOW_LAST + 0x1000, TOP | 5];
        let list = GvaList::new(&list, VaWidth::Bits48);
        assert_eq!(list.entries().len(), 3);
        assert_eq!(list.ranges().map(|range| range.start).collect::<Vec<_>>(), [0x5000, TOP]);
    }

    fn is_canonical(address: u64, bits: u32) -> bool {
        let sign = (address as i64) >> (bits - 1);
        sign == 0 || sign == -1
    }

    proptest! {
        #[test]
        fn h9_a_range_holds_exactly_the_canonical_pages_named(
            edge in prop_oneof![
                Just(0), Just(LOW_LAST), Just(HIGH_FIRST), Just(TOP), Just(1 << 56), Just(!0 << 56), any::<u64>(),
            ],
            distance in -5000i64..5000,
            additional in 0u64..4096,
            wide in any::<bool>(),
        ) {
            let start = (edge & !0xfff).wrapping_add((distance << 12) as u64);
            let (width, bits) = if wide { (VaWidth::Bits57, 57) } else { (VaWidth::Bits48, 48) };
            let named = (0..=additional).map_while(|page| start.checked_add(page << 12));
            let model: Vec<u64> = named.filter(|page| is_canonical(*page, bits)).collect();
            let range = GvaEntry::from_bits(start | additional).canonical(width);
            let pages: Vec<u64> =
                range.into_iter().flat_map(|range| (0..range.pages).map(move |page| range.start + (page << 12))).collect();
            prop_assert_eq!(pages, model);
        }
    }
}
