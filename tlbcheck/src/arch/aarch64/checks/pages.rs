//! The translations that each TLBI must drop: from the processor's own TLB, or from the TLBs of all
//! processors, none of which sees a page after the flush that removed it is complete (O1). See
//! [`watch`](crate::arch::aarch64::watch).

use super::prelude::*;
use crate::arch::aarch64::window::NOT_GLOBAL;

/// Rounds of each row, of one processor or all, and rounds of one without a flush, one of which
/// must show the old page.
const LOCAL_ROUNDS: u32 = 200;
const ROUNDS: u32 = 100;
const TRIES: u64 = 200;

/// The pages that alternate.
static PAGES: [Page; 2] = [const { Page::new() }; 2];

pub(super) fn page_of(round: u64) -> &'static Page {
    let page = &PAGES[(round % 2) as usize];
    page.write(&[round]);
    page
}

/// Whether nothing is mapped at the address, from the processor's view.
pub(super) fn is_gone(address: u64) -> bool {
    watch::is_translation_fault(guarded::load(address))
}

/// Words at [`WINDOW`] in the shared space.
pub(super) fn at_window(words: u64, every: u64) -> What {
    What { address: WINDOW, words, every, each: 0, space: TestSpace::shared().register(), control: 0 }
}

/// The places of a block at [`LARGE_WINDOW`].
pub(super) fn at_block() -> What {
    What { address: LARGE_WINDOW, words: PIECES_SEEN, every: SEEN_EVERY, ..at_window(1, PAGE) }
}

/// `map` maps the words with a round's number or unmaps them; after `take`, which is a flush of
/// `scope`, none of them is seen there.
fn gone_by(scope: Scope, what: What, map: impl Fn(Option<u64>), take: impl Fn(u64)) -> Verdict {
    if scope == Scope::Local {
        window::enter(what.space);
        let verdict = gone_here(&what, map, take);
        tlbi::settle();
        window::leave();
        return verdict;
    }
    let put = |round| {
        map(Some(round));
        (Expected::Value, round)
    };
    let unmap = |_| {
        map(None);
        (Expected::Gone, 0)
    };
    alternate(what, put, unmap, take)
}

/// Maps the words, unmaps them, and takes them. Returns the number of words that are not visible
/// before, and of those that are afterwards.
fn wrong(what: &What, round: u64, map: &impl Fn(Option<u64>), take: impl FnOnce()) -> (usize, usize) {
    let places = || (0..what.words).map(|word| what.address + word * what.every);
    map(Some(round));
    let missing = places().filter(|place| guarded::load(*place) != Ok(round)).count();
    map(None);
    take();
    (missing, places().filter(|place| !is_gone(*place)).count())
}

/// Without the flush a word must be seen once after unmapping, otherwise the row is not
/// significant.
fn gone_here(what: &What, map: impl Fn(Option<u64>), take: impl Fn(u64)) -> Verdict {
    let notices = (0..TRIES).any(|round| {
        let wrong = wrong(what, round, &map, || tlbi::complete(Scope::Local));
        tlbi::settle();
        wrong != (0, 0)
    });
    needs!(notices, "the TLB keeps nothing that is taken away without a flush, in {TRIES} tries");
    for round in rounds(LOCAL_ROUNDS).map(u64::from) {
        let (missing, left) = wrong(what, round, &map, || take(round));
        ensure!(missing == 0, "{missing} words are not as they were mapped, round {round}");
        ensure!(left == 0, "{left} words are seen after they were taken away, round {round}");
    }
    Ok(())
}

/// `put` and `take` alternate, which return what all processors find then; `flush` comes after
/// `take`, whose state is the last one as well.
pub(super) fn alternate(
    what: What,
    put: impl Fn(u64) -> (Expected, u64),
    take: impl Fn(u64) -> (Expected, u64),
    flush: impl Fn(u64),
) -> Verdict {
    take(0);
    let verdict = watch::during(what, |watch| {
        watch.notices(&put, &take)?;
        take(0);
        tlbi::settle();
        for round in rounds(ROUNDS).map(u64::from) {
            watch.expect(put(round))?;
            let taken = take(round);
            flush(round);
            watch.expect(taken)?;
        }
        Ok(())
    });
    take(0);
    tlbi::settle();
    verdict
}

fn needs_of(Form(scope, _): Form) -> Verdict {
    let has_outer = machine::get().platform.has_outer;
    needs!(scope != Scope::Outer || has_outer, "there is no TLBI for the outer domain (FEAT_TLBIOS)");
    Ok(())
}

/// Maps the page of a round, or none, at `count` addresses from `address` on.
pub(super) fn map_pages(address: u64, count: u64, round: Option<u64>) {
    let space = TestSpace::shared();
    let value = round.map(|round| page_entry(page_of(round).address()));
    for place in (0..count).map(|page| address + page * PAGE) {
        match value {
            Some(value) => write(space.leaf(place), value),
            None => replace(space.leaf(place), 0),
        }
    }
}

/// A page; with its level in the operand if there is one.
pub(super) fn page(form: Form, level: Option<u8>) -> Verdict {
    needs_of(form)?;
    let has_levels = machine::get().platform.has_levels;
    needs!(level.is_none() || has_levels, "the processor has no hints of the level (FEAT_TTL)");
    let target = TlbiOperand { level, ..TlbiOperand::page(WINDOW, TestSpace::shared().asid()) };
    let map = |round| map_pages(WINDOW, 1, round);
    gone_by(form.0, at_window(1, PAGE), map, |_| tlbi::flush(form, target))
}

/// A flush drops a global page, regardless of its ASID (C5.5, `TLBI VAE1`).
pub(super) fn global(form: Form) -> Verdict {
    let leaf = TestSpace::shared().leaf(WINDOW);
    let map = |round: Option<u64>| match round {
        Some(round) => write(leaf, page_entry(page_of(round).address()) & !NOT_GLOBAL),
        None => replace(leaf, 0),
    };
    gone_by(form.0, at_window(1, PAGE), map, |_| tlbi::flush(form, TlbiOperand::page(WINDOW, 0x77)))
}

/// Memory for a block, with the same word in each place that is checked.
pub(super) fn block_memory() -> &'static [Page] {
    static PAGES: spin::Once<&[Page]> = spin::Once::new();
    PAGES.call_once(|| take(512, 512))
}

/// Maps a block with the round's number in each of its places, or none.
pub(super) fn map_block(round: Option<u64>) {
    let entry = TestSpace::shared().entry(LARGE_WINDOW, 2);
    match round {
        Some(round) => {
            block_memory().iter().for_each(|page| page.write(&[round]));
            write(entry, block_entry(block_memory()[0].address()));
        }
        None => replace(entry, 0),
    }
}

/// A flush of any address drops all of a block, regardless of its form in the TLB (A17).
pub(super) fn block(form: Form) -> Verdict {
    let asid = TestSpace::shared().asid();
    gone_by(form.0, at_block(), map_block, |round| {
        tlbi::flush(form, TlbiOperand::page(LARGE_WINDOW + round * 0x1_f123 % LARGE_PAGE, asid));
    })
}

/// NUM and SCALE of ranges, the number of their pages that are checked, and the distance between
/// these: up to 512 pages, the size of a table.
const RANGES: [(u64, u64, u64, u64); 5] =
    [(0, 0, 2, 1), (4, 0, 10, 1), (31, 0, 64, 1), (0, 1, 64, 1), (7, 1, PIECES_SEEN, 73)];

/// All pages of a range, including the first and the last.
pub(super) fn range(form: Form) -> Verdict {
    needs_of(form)?;
    needs!(machine::get().platform.has_ranges, "the processor has no TLBI by range (FEAT_TLBIRANGE)");
    for (num, scale, words, every) in RANGES {
        let Some(range) = Range::new(num, scale) else { continue };
        let target =
            TlbiOperand { range: Some(range), ..TlbiOperand::page(WINDOW, TestSpace::shared().asid()) };
        let map = |round| map_pages(WINDOW, range.pages(), round);
        gone_by(form.0, at_window(words, every * PAGE), map, |_| tlbi::flush(form, target))?;
    }
    Ok(())
}

/// A page is unmapped, flushed, and replaced by another one at once: no processor sees the old one.
pub(super) fn remap() -> Verdict {
    let leaf = TestSpace::shared().leaf(WINDOW);
    let map = |round| {
        write(leaf, page_entry(page_of(round).address()));
        (Expected::Value, round)
    };
    let target = TlbiOperand::page(WINDOW, TestSpace::shared().asid());
    settle(leaf, 0);
    let verdict = watch::during(at_window(1, PAGE), |watch| {
        let change = |round| {
            replace(leaf, 0);
            map(2 * round + 1)
        };
        watch.notices(|round| map(2 * round), change)?;
        for round in rounds(ROUNDS).map(u64::from) {
            replace(leaf, 0);
            tlbi::flush(Form(Scope::Inner, Kind::VaLast), target);
            watch.expect(map(round))?;
        }
        Ok(())
    });
    settle(leaf, 0);
    verdict
}
