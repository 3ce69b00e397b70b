//! Operands of AMD64's INVLPGB, for a [`Broadcast`](super::Broadcast) on processors that have it.
//!
//! Source: AMD64 Architecture Programmer's Manual, volume 3, "INVLPGB". CPUID `Fn8000_0008_EBX[3]`
//! announces the instruction.

use crate::shootdown::range::PageRange;
use crate::shootdown::remote::Flush;

/// rAX: the address is valid.
const VA_VALID: u64 = 1 << 0;
/// rAX: the ASID is valid; without it the entries of every guest are dropped.
const ASID_VALID: u64 = 1 << 2;
/// rAX: cached upper levels stay.
const FINAL_ONLY: u64 = 1 << 4;
/// ECX: the count is in pages of 2 MiB.
const LARGE: u32 = 1 << 31;

const SMALL_SHIFT: u8 = 12;
const LARGE_SHIFT: u8 = 21;

/// Registers of one INVLPGB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operands {
    /// Address and flags.
    pub rax: u64,
    /// Number of pages after the first one, and their size.
    pub ecx: u32,
    /// PCID and ASID. The ASID is the host's, or a guest's own as it sees it: 0. No PCID is marked
    /// valid, so all are invalidated.
    pub edx: u32,
}

/// Pages that one INVLPGB takes, from EDX of CPUID `Fn8000_0008`, which has the highest count of
/// *further* pages.
pub const fn pages_max(fn8000_0008_edx: u32) -> u32 {
    (fn8000_0008_edx & 0xffff) + 1
}

/// The INVLPGBs for a flush: its pages under all PCIDs, global translations excepted. Pages that
/// are neither 4 KiB nor 2 MiB make it a flush of everything. `pages_max` is the result of
/// [`pages_max()`].
pub fn operands<'a>(flush: &Flush<'a>, pages_max: u32) -> impl Iterator<Item = Operands> + use<'a> {
    let takes = |range: &PageRange| matches!(range.normal().shift, SMALL_SHIFT | LARGE_SHIFT);
    let ranges = flush.ranges().filter(|ranges| ranges.iter().all(takes));
    let everything = ranges.is_none().then_some(Operands { rax: ASID_VALID, ecx: 0, edx: 0 });
    let flags = ASID_VALID | VA_VALID | if flush.frees_tables() { 0 } else { FINAL_ONLY };
    let pages_max = pages_max.clamp(1, 1 << 16);
    let singly =
        ranges.unwrap_or_default().iter().flat_map(move |range| pieces(range.normal(), pages_max, flags));
    everything.into_iter().chain(singly)
}

/// One run of pages, in pieces of `pages_max`.
fn pieces(range: PageRange, pages_max: u32, flags: u64) -> impl Iterator<Item = Operands> {
    let size = if range.shift == LARGE_SHIFT { LARGE } else { 0 };
    let step = u64::from(pages_max);
    (0..range.pages.div_ceil(step)).map(move |piece| {
        let done = piece * step;
        let pages = (range.pages - done).min(step);
        // At most 2^16 pages: the count of further pages has 16 bits.
        Operands {
            rax: (range.first + (done << range.shift)) | flags,
            ecx: (pages - 1) as u32 | size,
            edx: 0,
        }
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn flush(ranges: Option<&[PageRange]>, tables: bool) -> Flush<'_> {
        Flush { root: 0x1000, ranges, tables }
    }

    #[test]
    fn e4_count_is_one_less_and_stride_and_valid_bits_are_set() {
        assert_eq!((pages_max(0), pages_max(7), pages_max(0xabcd_ffff)), (1, 8, 1 << 16));
        let ranges = [PageRange::small(0x5000, 3), PageRange::large(0x40_0000, 2)];
        let found: Vec<_> = operands(&flush(Some(&ranges), false), 2).collect();
        let expected = [
            Operands { rax: 0x5015, ecx: 1, edx: 0 },
            Operands { rax: 0x7015, ecx: 0, edx: 0 },
            Operands { rax: 0x40_0015, ecx: 1 | 1 << 31, edx: 0 },
        ];
        assert_eq!(found, expected);
        let tables: Vec<_> = operands(&flush(Some(&ranges[..1]), true), 8).collect();
        assert_eq!(tables, [Operands { rax: 0x5005, ecx: 2, edx: 0 }]);
    }

    #[test]
    fn e4_everything_is_of_one_asid_and_so_are_pages_of_another_size() {
        let everything = [Operands { rax: 4, ecx: 0, edx: 0 }];
        assert!(operands(&flush(None, false), 8).eq(everything));
        let huge = [PageRange::small(0, 1), PageRange { first: 0, pages: 1, shift: 30 }];
        assert!(operands(&flush(Some(&huge), false), 8).eq(everything));
        assert_eq!(operands(&flush(Some(&[]), false), 8).count(), 0);
    }

    proptest! {
        #[test]
        fn e4_every_page_is_named_once(first in 0u64..1 << 36, pages in 1u64..300, large: bool, pages_max in 1u32..70) {
            let range = if large { PageRange::large(first << 21, pages) } else { PageRange::small(first << 12, pages) };
            let ranges = [range];
            let named = operands(&flush(Some(&ranges), false), pages_max).flat_map(|operands| {
                let count = u64::from(operands.ecx & 0xffff) + 1;
                assert!(count <= u64::from(pages_max) && (operands.ecx >> 31 == 1) == large);
                PageRange { first: operands.rax & !0xfff, pages: count, ..range }.addresses()
            });
            prop_assert!(named.eq(range.addresses()));
        }
    }
}
