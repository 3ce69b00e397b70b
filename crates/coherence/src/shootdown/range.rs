//! Runs of pages, in memory and packed into words.

use crate::sync::{AtomicU64, Ordering, const_fn};

/// A run of pages of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageRange {
    /// Address of the first page.
    pub first: u64,
    /// Number of pages.
    pub pages: u64,
    /// Binary logarithm of a page's size in bytes: 12, 21 or 30 on x86-64.
    pub shift: u8,
}

/// The smallest page. In packed words, the address bits below it hold other values.
const SHIFT_MIN: u8 = 12;
/// A larger shift would move an address out of its word.
const SHIFT_MAX: u8 = 63;
/// The address bits of an inline word; the rest holds the number of pages.
const ADDRESS: u64 = !0xfff;
/// Pages that an inline word can count.
pub(super) const INLINE_PAGES_MAX: u64 = 1 << 12;

impl PageRange {
    /// `pages` pages of 4 KiB.
    pub const fn small(first: u64, pages: u64) -> Self {
        Self { first, pages, shift: 12 }
    }

    /// `pages` pages of 2 MiB.
    pub const fn large(first: u64, pages: u64) -> Self {
        Self { first, pages, shift: 21 }
    }

    /// The addresses of the pages, in ascending order.
    pub fn addresses(self) -> impl Iterator<Item = u64> + Clone {
        let Self { first, pages, shift } = self.normal();
        (0..pages).map(move |page| first + (page << shift))
    }

    /// The address of the last byte. A range without pages is treated as its first page.
    pub const fn last(self) -> u64 {
        let Self { first, pages, shift } = self.normal();
        first + (pages.saturating_sub(1) << shift) + ((1 << shift) - 1)
    }

    /// The range clipped to a possible page size, a page-aligned start, and no page beyond the end
    /// of the address space.
    pub(super) const fn normal(self) -> Self {
        let shift = match self.shift {
            ..=SHIFT_MIN => SHIFT_MIN,
            SHIFT_MAX.. => SHIFT_MAX,
            shift => shift,
        };
        let first = self.first >> shift << shift;
        let room = ((u64::MAX - first) >> shift) + 1;
        Self { first, pages: if self.pages < room { self.pages } else { room }, shift }
    }

    /// The two ranges merged into one, if `next` continues where this one ends. Both are normal and
    /// have pages.
    pub(super) fn joined(self, next: Self) -> Option<Self> {
        let follows = self.shift == next.shift && self.last().checked_add(1) == Some(next.first);
        follows.then_some(Self { pages: self.pages + next.pages, ..self })
    }

    /// Address and number of pages in one word, if the number fits. The page size is stored
    /// elsewhere.
    pub(super) fn packed(self) -> Option<u64> {
        let fits = (1..=INLINE_PAGES_MAX).contains(&self.pages);
        fits.then(|| self.first & ADDRESS | (self.pages - 1))
    }

    /// The inverse of [`packed`](Self::packed).
    pub(super) const fn unpacked(word: u64, shift: u8) -> Self {
        Self { first: word & ADDRESS, pages: (word & !ADDRESS) + 1, shift }
    }
}

/// Room for one range in a list that an initiator lends to its targets.
///
/// Written by its CPU while no request refers to it, read by targets between request and
/// acknowledgement; the target's slot orders the two.
#[derive(Debug)]
pub struct RangeCell {
    /// Address, and the page size's logarithm below it.
    first: AtomicU64,
    pages: AtomicU64,
}

impl RangeCell {
    const_fn! {
        /// An empty cell.
        pub fn new() -> Self {
            Self { first: AtomicU64::new(0), pages: AtomicU64::new(0) }
        }
    }

    pub(super) fn write(&self, range: PageRange) {
        self.first.store(range.first & ADDRESS | u64::from(range.shift), Ordering::Relaxed);
        self.pages.store(range.pages, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> PageRange {
        let first = self.first.load(Ordering::Relaxed);
        PageRange {
            first: first & ADDRESS,
            pages: self.pages.load(Ordering::Relaxed),
            shift: (first & !ADDRESS) as u8,
        }
    }
}

impl Default for RangeCell {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn p17_ranges_end_where_the_address_space_does() {
        let top = PageRange::small(u64::MAX - 0xfff, 5).normal();
        assert_eq!((top.pages, top.last()), (1, u64::MAX));
        assert!(top.addresses().eq([u64::MAX - 0xfff]));
        let all = PageRange { first: 0x1234, pages: u64::MAX, shift: 12 }.normal();
        assert_eq!((all.first, all.pages, all.last()), (0x1000, (1 << 52) - 1, u64::MAX));
        let huge = PageRange { first: u64::MAX, pages: u64::MAX, shift: u8::MAX }.normal();
        assert_eq!((huge.first, huge.pages, huge.last()), (1 << 63, 1, u64::MAX));
        assert_eq!(PageRange::default().addresses().count(), 0);
        assert_eq!(PageRange::large(0x40_0000, 2).last(), 0x7f_ffff);
    }

    fn ranges() -> impl Strategy<Value = PageRange> {
        let shift = prop_oneof![Just(12u8), Just(21), Just(30)];
        (any::<u64>(), 1u64..6000, shift)
            .prop_map(|(first, pages, shift)| PageRange { first, pages, shift }.normal())
    }

    proptest! {
        #[test]
        fn what_travels_is_what_was_sent(range in ranges()) {
            let cell = RangeCell::new();
            cell.write(range);
            prop_assert_eq!(cell.read(), range);
            match range.packed() {
                Some(word) => prop_assert_eq!(PageRange::unpacked(word, range.shift), range),
                None => prop_assert!(range.pages > INLINE_PAGES_MAX),
            }
        }

        #[test]
        fn joined_ranges_have_the_pages_of_both(first in 0u64..1 << 20, a in 1u64..9, gap in 0u64..2, b in 1u64..9) {
            let one = PageRange::small(first << 12, a);
            let two = PageRange::small((first + a + gap) << 12, b);
            let both: Vec<_> = one.addresses().chain(two.addresses()).collect();
            prop_assert_eq!(one.joined(two).is_some(), gap == 0);
            if let Some(joined) = one.joined(two) {
                prop_assert!(joined.addresses().eq(both));
            }
            prop_assert_eq!(one.joined(PageRange { shift: 21, ..two }), None);
        }
    }
}
