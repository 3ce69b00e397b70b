//! List elements of both formats: the result is canonical, and no page that was named is missing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quell_tlfs::{GvaList, VaWidth};

fuzz_target!(|input: (Vec<u64>, bool, bool, u8)| {
    let (words, extended, wide, probe) = input;
    let width = guest::width(wide);
    let sign_bit = if width == VaWidth::Bits57 { 56 } else { 47 };
    let is_canonical = |address: u64| matches!((address as i64) >> sign_bit, 0 | -1);
    let list = GvaList::new(&words, width).extended(extended);
    for (word, (_, range)) in words.iter().zip(list.elements()) {
        let large = extended && word >> 11 & 1 == 1;
        let shift = match (large, word >> 12 & 1) {
            (false, _) => 12,
            (true, 0) => 21,
            (true, _) => 30,
        };
        let additional = word & if extended { 0x7ff } else { 0xfff };
        if let Some(range) = range {
            assert!(range.pages >= 1 && range.last() >= range.start && range.start % 4096 == 0);
            assert!(is_canonical(range.start) && is_canonical(range.last()));
            assert_eq!(range.start >> 63, range.last() >> 63, "one half");
            assert!(range.pages <= (additional + 2) << (shift - 12));
        }
        // One of the pages that the element names, by its own arithmetic.
        let first = word >> if large { 21 } else { 12 } << if large { 21 } else { 12 };
        let page = u64::from(probe) * additional / 255;
        if let Some(address) = first.checked_add(page << shift)
            && is_canonical(address)
        {
            let range = range.expect("a canonical page is named");
            assert!((range.start..=range.last()).contains(&(address & !0xfff)), "{word:#x} {address:#x}");
        }
    }
});
