//! Lists of ranges that must flush one page: the watched page, and the element that names it.

use tlfs::{PAGE_SIZE, PAGE_WORDS};

use crate::form::Element;

const PAGE: u64 = PAGE_SIZE as u64;

/// An element, and a page that it must flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The element.
    pub word: u64,
    /// An address in the last page that it names, among those that can be translated.
    pub watched: u64,
}

/// End of spans that may end anywhere: the last page of a GiB far from everything else.
pub const FAR: u64 = (1 << 45) + (4096 << 30) - PAGE;
/// The last page of the lower half of addresses, the first of the upper one, and the very last one.
pub const LOWER_END: u64 = (1 << 47) - PAGE;
/// The first page of the upper half.
pub const UPPER_START: u64 = u64::MAX << 47;
/// The very last page.
pub const UPPER_END: u64 = u64::MAX - (PAGE - 1);

/// Elements whose last page is the one at [`FAR`].
pub fn tails(element: Element) -> impl Iterator<Item = Span> + Clone {
    let additional: &[u16] = match element {
        Element::Plain => &[0, 1, 14, 15, 16, 511, 512, 2047, 2048, 4095],
        Element::Extended4K => &[0, 1, 15, 16, 512, 2047],
        Element::Extended2M => &[0, 1, 3, 4, 7, 15, 511, 2047],
        Element::Extended1G => &[0, 1, 3, 15, 63, 2047],
    };
    additional.iter().map(move |additional| {
        let start = FAR - (u64::from(*additional) << element.shift());
        Span { word: element.word(start, *additional), watched: FAR }
    })
}

/// Ranges from the lower half to non-canonical addresses: the lower half's part must be flushed.
pub fn into_the_hole() -> impl Iterator<Item = Span> + Clone {
    [(0, 1), (0, 4095), (3, 4), (3, 100), (4094, 4095)].into_iter().map(|(before, additional)| Span {
        word: Element::Plain.word(LOWER_END - before * PAGE, additional),
        watched: LOWER_END,
    })
}

/// Ranges that start at non-canonical addresses and end in the upper half.
pub fn out_of_the_hole() -> impl Iterator<Item = Span> + Clone {
    [(1, 1), (1, 4095), (4095, 4095), (100, 101)].into_iter().map(|(before, additional)| Span {
        word: Element::Plain.word(UPPER_START - before * PAGE, additional),
        watched: UPPER_START,
    })
}

/// Ranges that reach the very last page, and would continue after it.
pub fn over_the_end() -> impl Iterator<Item = Span> + Clone {
    [(0, 0), (0, 1), (0, 4095), (7, 7), (7, 8)].into_iter().map(|(before, additional)| Span {
        word: Element::Plain.word(UPPER_END - before * PAGE, additional),
        watched: UPPER_END,
    })
}

/// List elements without a translatable address.
pub const NOT_CANONICAL: [u64; 5] =
    [1 << 47, 0x1234_5678_9abc_d000, (UPPER_START - PAGE) & !0xfff, 1 << 63, (1 << 47) + 0xfff];

/// Lengths of lists, and the index of the element that counts: the limits of hypervisors' internal
/// buffers, and of the capacity of a page or the registers.
pub fn places(longest: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
    const LENGTHS: [usize; 14] = [1, 2, 4, 8, 9, 15, 16, 17, 31, 32, 33, 64, 128, 256];
    let shorter = LENGTHS.into_iter().filter(move |length| *length < longest);
    let lists = shorter.chain(core::iter::once(longest));
    lists.flat_map(|length| {
        let places = [length - 1, 0, length / 2];
        let count = if length < 3 { 1 } else { 3 };
        places.into_iter().take(count).map(move |place| (length, place))
    })
}

/// The other elements of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filler {
    /// Single pages from this address on, every other page.
    PagesFrom(u64),
    /// Nothing translatable: then a hypervisor that misses the one element has nothing to do, and
    /// does not even interrupt the target, which would drop translations on some machines.
    Nothing,
}

impl Filler {
    const fn word(self, index: usize) -> u64 {
        match self {
            Self::PagesFrom(first) => first + index as u64 * 2 * PAGE,
            Self::Nothing => NOT_CANONICAL[0] + index as u64 * PAGE,
        }
    }
}

/// Writes a list of `length` elements; the one at `place` is `word`, the others are fillers.
/// Returns the list, cut to the available room.
pub fn list(words: &mut [u64; PAGE_WORDS], length: usize, place: usize, word: u64, filler: Filler) -> &[u64] {
    let length = length.min(words.len());
    for (index, slot) in words[..length].iter_mut().enumerate() {
        *slot = if index == place { word } else { filler.word(index) };
    }
    &words[..length]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;
    use tlfs::{GvaList, VaWidth};

    /// The pages that the element names.
    fn range(word: u64, extended: bool) -> Option<(u64, u64)> {
        let words = [word];
        let list = GvaList::new(&words, VaWidth::Bits48).extended(extended);
        list.ranges().next().map(|range| (range.start, range.last()))
    }

    #[test]
    fn h9_h23_what_is_watched_is_the_end_of_what_is_named() {
        for element in [Element::Plain, Element::Extended4K, Element::Extended2M, Element::Extended1G] {
            for span in tails(element) {
                let (_, last) = range(span.word, element != Element::Plain).expect("canonical");
                assert_eq!(last, span.watched, "{element:?} {:#x}", span.word);
            }
        }
        for span in into_the_hole() {
            assert_eq!(range(span.word, false).map(|(_, last)| last), Some(LOWER_END));
        }
        for span in out_of_the_hole() {
            assert_eq!(range(span.word, false).map(|(first, _)| first), Some(UPPER_START));
        }
        for span in over_the_end() {
            assert_eq!(range(span.word, false).map(|(_, last)| last), Some(UPPER_END));
        }
        for word in NOT_CANONICAL {
            assert_eq!(range(word, false), None, "{word:#x}");
        }
    }

    #[test]
    fn lists_have_one_element_that_counts() {
        let mut words = [0; PAGE_WORDS];
        let pages = Filler::PagesFrom(0x1000);
        let list = list(&mut words, 17, 16, 0xabc0_0000, pages);
        assert_eq!(list.len(), 17);
        assert_eq!(list.iter().filter(|word| **word == 0xabc0_0000).count(), 1);
        assert_eq!((list[0], list[15], list[16]), (0x1000, 0x1f000, 0xabc0_0000));
        let list = super::list(&mut words, 509, 3, 0xabc0_0000, Filler::Nothing);
        let named = list.iter().filter(|word| range(**word, false).is_some());
        assert_eq!(named.copied().collect::<Vec<_>>(), [0xabc0_0000]);
    }

    #[test]
    fn h4_places_go_to_the_limit_and_not_beyond() {
        for longest in [1, 9, 11, 507, 509] {
            let places: Vec<_> = places(longest).collect();
            assert!(places.contains(&(longest, longest - 1)));
            assert!(places.iter().all(|(length, place)| place < length && *length <= longest));
        }
        assert!(places(509).any(|pair| pair == (16, 15)) && places(509).any(|pair| pair == (17, 16)));
    }
}
