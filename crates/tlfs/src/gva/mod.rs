//! Ranges of guest virtual addresses.

use bitfield_struct::bitfield;

/// Page numbers are the bits of a 64-bit address above the page offset.
const PAGE_SHIFT: u32 = 12;
const LAST_PAGE: u64 = u64::MAX >> PAGE_SHIFT;

/// How many bits of a virtual address are translated. The rest must equal the highest of them;
/// otherwise the address is not canonical and no translation of it can exist.
///
/// Exhaustive: the architecture has these two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VaWidth {
    /// Four levels of page tables.
    #[default]
    Bits48,
    /// Five levels.
    Bits57,
}

impl VaWidth {
    /// Pages in each canonical half.
    const fn half_pages(self) -> u64 {
        match self {
            Self::Bits48 => 1 << (47 - PAGE_SHIFT),
            Self::Bits57 => 1 << (56 - PAGE_SHIFT),
        }
    }
}

/// Consecutive canonical pages; never empty, never past the end of the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRange {
    /// Address of the first page, a multiple of the page size.
    pub start: u64,
    /// Number of 4 KiB pages, at least 1.
    pub pages: u64,
}

impl PageRange {
    /// Address of the last page. (The address after it would not fit for the very last page.)
    pub const fn last(&self) -> u64 {
        self.start + ((self.pages - 1) << PAGE_SHIFT)
    }
}

/// Page sizes that a flush list can use.
///
/// Exhaustive: the entries of a list have these three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PageSize {
    /// 4 KiB.
    #[default]
    Small,
    /// 2 MiB.
    Large,
    /// 1 GiB.
    Huge,
}

impl PageSize {
    /// Binary logarithm of the size in bytes.
    pub const fn shift(self) -> u32 {
        match self {
            Self::Small => PAGE_SHIFT,
            Self::Large => 21,
            Self::Huge => 30,
        }
    }
}

/// The part of the pages `first` to `last` that can be translated; `None` if that is empty. `first
/// <= last`, and `last` is a page number.
///
/// Pages that are not canonical are ignored, as the flush instructions ignore them. No element
/// names as many pages as the hole between the halves contains, so the rest is contiguous: a range
/// that starts in the lower half ends with it, and one that starts in the hole begins with the
/// upper half.
#[inline]
fn canonical(first: u64, last: u64, width: VaWidth) -> Option<PageRange> {
    let half = width.half_pages();
    let upper = LAST_PAGE - (half - 1);
    let (first, last) = if first < half { (first, last.min(half - 1)) } else { (first.max(upper), last) };
    (first <= last).then(|| PageRange { start: first << PAGE_SHIFT, pages: last - first + 1 })
}

/// An element of a flush list, HV_GVA_RANGE: a page and the number of pages that follow it, so 1 to
/// 4096 pages. TLFS, "HvCallFlushVirtualAddressList".
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
    /// The most pages that an element names.
    pub const PAGES_MAX: u64 = 1 << 12;

    /// The part of the range that can be translated; `None` if that is empty. A range does not
    /// wrap: it ends with the address space.
    #[inline]
    pub fn canonical(self, width: VaWidth) -> Option<PageRange> {
        let first = self.page_number();
        canonical(first, (first + u64::from(self.additional_pages())).min(LAST_PAGE), width)
    }
}

/// An element of a flush list in the extended format, HV_GVA_RANGE_EXTENDED: 1 to 2048 pages of 4
/// KiB, 2 MiB or 1 GiB. A list uses it if
/// [`FlushFlags::extended_ranges`](crate::FlushFlags::extended_ranges) is set. The format is not in
/// the published TLFS; the layout is that of Microsoft's own headers.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct ExtendedGvaEntry {
    /// Number of pages after the first one.
    #[bits(11)]
    pub additional_pages: u16,
    /// The pages are large; otherwise bits 63:12 are those of the first page's address.
    pub large: bool,
    /// Large pages are 1 GiB, otherwise 2 MiB.
    pub huge: bool,
    /// Ignored for large pages: it is below their first address bit.
    #[bits(8)]
    reserved: u8,
    /// Bits 63:21 of the first page's address, for both sizes of large pages.
    #[bits(43)]
    pub large_page_number: u64,
}

impl ExtendedGvaEntry {
    /// The most pages that an element names.
    pub const PAGES_MAX: u64 = 1 << 11;

    /// The size of the pages.
    pub const fn size(self) -> PageSize {
        match (self.large(), self.huge()) {
            (false, _) => PageSize::Small,
            (true, false) => PageSize::Large,
            (true, true) => PageSize::Huge,
        }
    }

    /// The part of the range that can be translated, in 4 KiB pages; `None` if that is empty. A
    /// range does not wrap: it ends with the address space.
    ///
    /// An address of 1 GiB pages that is not a multiple of their size stands for every page that
    /// the range touches from there: one page too many is better than one too few.
    pub fn canonical(self, width: VaWidth) -> Option<PageRange> {
        let pages = u64::from(self.additional_pages()) + 1;
        let shift = self.size().shift();
        // In 4 KiB pages, all of these values stay below 2^52 + 2^29 + 2^18.
        let in_page = (1 << (shift - PAGE_SHIFT)) - 1;
        let start = if self.large() {
            self.large_page_number() << (PageSize::Large.shift() - PAGE_SHIFT)
        } else {
            self.into_bits() >> PAGE_SHIFT
        };
        let last = (start + (pages << (shift - PAGE_SHIFT)) - 1) | in_page;
        canonical(start & !in_page, last.min(LAST_PAGE), width)
    }
}

/// The elements of a flush list that remain to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GvaList<'a> {
    entries: &'a [u64],
    width: VaWidth,
    /// Index of the first element in the whole list.
    first: u16,
    extended: bool,
}

impl<'a> GvaList<'a> {
    /// A list over `entries`, each a [`GvaEntry`], for addresses of `width`.
    pub const fn new(entries: &'a [u64], width: VaWidth) -> Self {
        Self { entries, width, first: 0, extended: false }
    }

    /// The same list with `first` as the index of its first element in the whole list.
    #[must_use]
    pub const fn starting_at(self, first: u16) -> Self {
        Self { first, ..self }
    }

    /// The same list, with [`ExtendedGvaEntry`] elements if `extended`.
    #[must_use]
    pub const fn extended(self, extended: bool) -> Self {
        Self { extended, ..self }
    }

    /// Whether the elements are [`ExtendedGvaEntry`]s.
    pub const fn is_extended(&self) -> bool {
        self.extended
    }

    /// The elements as the guest wrote them, [`GvaEntry`]s or [`ExtendedGvaEntry`]s.
    pub const fn words(&self) -> &'a [u64] {
        self.entries
    }

    /// The canonical pages that the elements name, in list order; elements that name none are
    /// skipped.
    #[inline]
    pub fn ranges(&self) -> impl Iterator<Item = PageRange> + Clone + use<'a> {
        let Self { width, extended, .. } = *self;
        self.entries.iter().filter_map(move |entry| element(*entry, extended, width))
    }

    /// Each element's index, counted from element 0 of the whole list, and the canonical pages that
    /// it names; `None` if it names none. A caller that stops before element `index` continues
    /// there with [`CallRegisters::resumed_at`](crate::CallRegisters::resumed_at).
    #[inline]
    pub fn elements(&self) -> impl Iterator<Item = (u16, Option<PageRange>)> + Clone + use<'a> {
        let Self { width, extended, .. } = *self;
        // A rep count has 12 bits.
        (self.first..=u16::MAX)
            .zip(self.entries)
            .map(move |(index, entry)| (index, element(*entry, extended, width)))
    }
}

/// The canonical pages of one list element.
#[inline]
fn element(word: u64, extended: bool, width: VaWidth) -> Option<PageRange> {
    if extended {
        ExtendedGvaEntry::from_bits(word).canonical(width)
    } else {
        GvaEntry::from_bits(word).canonical(width)
    }
}

#[cfg(test)]
mod tests;
