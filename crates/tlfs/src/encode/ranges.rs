//! Ranges of virtual addresses, and the list elements that name them.

use crate::{ExtendedGvaEntry, GvaEntry, PageSize};

/// Virtual addresses from `first` to `last`, both inclusive, so that a range can end with the
/// address space. The range covers every page that contains one of them. It is empty if `last` is
/// below `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VaRange {
    /// The first address.
    pub first: u64,
    /// The last address.
    pub last: u64,
    /// Size of the pages that the range is mapped with, or a smaller size. A larger size needs
    /// fewer elements, if the hypervisor offers large pages.
    pub page_size: PageSize,
}

impl VaRange {
    /// The addresses from `first` to `last`, mapped with 4 KiB pages or of any size.
    pub const fn new(first: u64, last: u64) -> Self {
        Self { first, last, page_size: PageSize::Small }
    }

    /// The same range, mapped with pages of `page_size`.
    #[must_use]
    pub const fn of(self, page_size: PageSize) -> Self {
        Self { page_size, ..self }
    }
}

/// Page numbers still to be put into elements. Counting pages rather than addresses keeps every
/// value below 2^53: nothing wraps, wherever the range ends.
#[derive(Clone, Copy, Debug)]
struct Run {
    next: u64,
    count: u64,
    size: PageSize,
}

/// How the elements of a list are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Plain,
    Extended,
}

impl Format {
    const fn pages_max(self) -> u64 {
        match self {
            Self::Plain => GvaEntry::PAGES_MAX,
            Self::Extended => ExtendedGvaEntry::PAGES_MAX,
        }
    }

    const fn size(self, range: &VaRange) -> PageSize {
        match self {
            Self::Plain => PageSize::Small,
            Self::Extended => range.page_size,
        }
    }

    fn run(self, range: &VaRange) -> Option<Run> {
        let size = self.size(range);
        let (first, last) = (range.first >> size.shift(), range.last >> size.shift());
        (range.first <= range.last).then(|| Run { next: first, count: last - first + 1, size })
    }

    /// Pages and elements that `range` takes.
    pub(super) fn cost(self, range: &VaRange) -> (u64, u64) {
        self.run(range).map_or((0, 0), |run| (run.count, run.count.div_ceil(self.pages_max())))
    }
}

/// The elements for the ranges of an iterator.
#[derive(Clone, Debug)]
pub(super) struct Elements<R> {
    ranges: R,
    format: Format,
    run: Option<Run>,
}

impl<R: Iterator<Item = VaRange>> Elements<R> {
    pub(super) const fn new(ranges: R, format: Format) -> Self {
        Self { ranges, format, run: None }
    }
}

impl<R: Iterator<Item = VaRange>> Iterator for Elements<R> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let mut run = match self.run.take() {
            Some(run) => run,
            None => self.ranges.find_map(|range| self.format.run(&range))?,
        };
        let pages = run.count.min(self.format.pages_max());
        let large = match run.size {
            PageSize::Small => ExtendedGvaEntry::new(),
            PageSize::Large => ExtendedGvaEntry::new().with_large(true),
            PageSize::Huge => ExtendedGvaEntry::new().with_large(true).with_huge(true),
        };
        let word = run.next << run.size.shift() | large.into_bits() | (pages - 1);
        run.next += pages;
        run.count -= pages;
        self.run = (run.count > 0).then_some(run);
        Some(word)
    }
}
