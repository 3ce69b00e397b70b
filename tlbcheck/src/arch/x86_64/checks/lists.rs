//! Lists: the position of an element, the pages it names, and the other elements.

use tlbcheck::spans::{self, Filler, Span};
use tlfs::PAGE_WORDS;

use super::prelude::*;
use super::sets::flush_all;
use super::stale::FLUSHED;
use crate::arch::x86_64::window::FILLER;

const ROUNDS: u32 = 3;

pub(super) fn flush_list(kind: Kind, via: Via, vp: u32, flags: FlushFlags, elements: &[u64]) -> Verdict {
    let set = sparse_of(vp);
    hypercall::flush(&Flush { via, flags, ..plain(kind, only(kind, vp, &set), elements) })
}

/// The element that counts is flushed at any position in a list of any length (O9, H4).
pub(super) fn places(kind: Kind, via: Via) -> Verdict {
    offers(kind, via)?;
    let processor = machine::second()?;
    let vp = machine::vp(processor);
    let mut words = [0; PAGE_WORDS];
    watch::during(What::page(processor, WINDOW), |watch| {
        watch.notices(|| flush_list(kind, via, vp, FlushFlags::new(), &[WINDOW]))?;
        for (length, place) in spans::places(kind.elements_max(via, 1)) {
            for filler in [Filler::PagesFrom(FILLER), Filler::Nothing] {
                let list = spans::list(&mut words, length, place, WINDOW, filler);
                for _ in rounds(ROUNDS) {
                    let stale = watch.round(|| flush_list(kind, via, vp, FlushFlags::new(), list))?;
                    ensure!(stale == 0, "element {place} of {length} is not flushed");
                }
            }
        }
        Ok(())
    })
}

/// What each span watches is flushed by its element, in both list calls, every form (H9, H22, H23).
pub(super) fn spans(element: Element, spans: impl Iterator<Item = Span> + Clone) -> Verdict {
    let offered = machine::flushes()?.interface();
    needs!(element == Element::Plain || offered.extended_ranges, "CPUID 0x40000003 has no extended ranges");
    let processor = machine::second()?;
    let vp = machine::vp(processor);
    let Some(Span { watched, .. }) = spans.clone().next() else { return Ok(()) };
    let whole =
        || flush_list(Kind::List, Via::Memory, vp, FlushFlags::new(), &[Element::Plain.word(watched, 0)]);
    watch::during(What::page(processor, watched), |watch| {
        watch.notices(whole)?;
        for span in spans {
            for (kind, via) in ways().filter(|(kind, _)| kind.is_list()) {
                // Alone, and after another element: the first may be the only right one.
                let list = [FILLER, span.word];
                for list in [&list[1..], &list] {
                    for _ in rounds(ROUNDS) {
                        let flush = || flush_list(kind, via, vp, element.flags(), list);
                        let stale = watch.round(flush)?;
                        ensure!(stale == 0, "{:#x} by {kind:?}, {via:?}: not flushed", span.word);
                    }
                }
            }
        }
        Ok(())
    })
}

/// Elements without a translatable address are skipped, and the elements after them are not.
pub(super) fn not_canonical() -> Verdict {
    machine::flushes()?;
    let processor = machine::second()?;
    let vp = machine::vp(processor);
    watch::during(What::page(processor, WINDOW), |watch| {
        watch.notices(flush_all)?;
        for kind in kinds().filter(|kind| kind.is_list()) {
            for word in spans::NOT_CANONICAL {
                let list = [word, word, WINDOW];
                for list in [&list[..], &list[1..]] {
                    let flush = || flush_list(kind, Via::Memory, vp, FlushFlags::new(), list);
                    let stale = watch.round(flush)?;
                    ensure!(stale == 0, "behind {word:#x} nothing is flushed, {kind:?}");
                }
            }
        }
        Ok(())
    })
}

/// A flush of one address in a page of 2 MiB drops all of it, whatever its form in the TLB (A17).
pub(super) fn large() -> Verdict {
    let offered = machine::flushes()?.interface();
    let processor = machine::second()?;
    let vp = machine::vp(processor);
    watch::during(What::large_page(processor), |watch| {
        let plain = |address| {
            let list = [Element::Plain.word(address, 0)];
            flush_list(Kind::List, Via::Memory, vp, FlushFlags::new(), &list)
        };
        watch.notices(|| plain(LARGE_WINDOW))?;
        for element in [Element::Plain, Element::Extended4K, Element::Extended2M] {
            if element != Element::Plain && !offered.extended_ranges {
                continue;
            }
            for (kind, via) in ways().filter(|(kind, _)| kind.is_list()) {
                for offset in FLUSHED {
                    let list = [element.word(LARGE_WINDOW + offset, 0)];
                    let flush = || flush_list(kind, via, vp, element.flags(), &list);
                    let stale = watch.round(flush)?;
                    ensure!(stale == 0, "{stale} stale pieces after a flush of {:#x}, {kind:?}", list[0]);
                }
            }
        }
        Ok(())
    })
}
