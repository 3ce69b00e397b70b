//! The processor's own TLB: the translations that each TLBI for it must drop.

use super::prelude::*;
use crate::arch::aarch64::window::NOT_GLOBAL;

/// Rounds of each row, and rounds without a flush, one of which must show the old page.
const ROUNDS: u32 = 200;
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
    guarded::load(address).is_err_and(|fault| matches!(fault.cause(), Cause::Translation(_)))
}

/// Words, each of which is mapped, checked, and unmapped.
struct Words {
    address: u64,
    words: u64,
    every: u64,
}

impl Words {
    /// `map` maps them with the round's number or unmaps them; `take` is the flush in question.
    /// Returns the number of words that are still visible.
    fn left(&self, round: u64, map: &impl Fn(Option<u64>), take: impl FnOnce()) -> Result<u64, u64> {
        let places = || (0..self.words).map(|word| self.address + word * self.every);
        map(Some(round));
        let missing = places().filter(|place| guarded::load(*place) != Ok(round)).count() as u64;
        map(None);
        take();
        let left = places().filter(|place| !is_gone(*place)).count() as u64;
        if missing == 0 { Ok(left) } else { Err(missing) }
    }

    /// `take` must drop all of them, in every round. Without it one must be seen after unmapping,
    /// otherwise the row is not significant.
    fn gone_by(&self, map: impl Fn(Option<u64>), take: impl Fn(u64)) -> Verdict {
        window::enter(TestSpace::shared().register());
        let verdict = self.rounds(map, take);
        tlbi::settle();
        window::leave();
        verdict
    }

    fn rounds(&self, map: impl Fn(Option<u64>), take: impl Fn(u64)) -> Verdict {
        let mut notices = false;
        for round in 0..TRIES {
            let left = self.left(round, &map, || tlbi::complete(Scope::Local));
            tlbi::settle();
            notices |= left != Ok(0);
            if notices {
                break;
            }
        }
        needs!(notices, "the TLB keeps nothing that is taken away without a flush, in {TRIES} tries");
        for round in rounds(ROUNDS).map(u64::from) {
            match self.left(round, &map, || take(round)) {
                Ok(left) => {
                    ensure!(left == 0, "{left} words are seen after they were taken away, round {round}")
                }
                Err(missing) => {
                    ensure!(missing == 0, "{missing} words are not as they were mapped, round {round}")
                }
            }
        }
        Ok(())
    }
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

/// A page, by a flush of it.
pub(super) fn page(kind: Kind) -> Verdict {
    let words = Words { address: WINDOW, words: 1, every: PAGE };
    let target = TlbiOperand::page(WINDOW, TestSpace::shared().asid());
    words.gone_by(|round| map_pages(WINDOW, 1, round), |_| tlbi::flush(Form(Scope::Local, kind), target))
}

/// A flush drops a global page, regardless of its ASID (C5.5, `TLBI VAE1`).
pub(super) fn global(kind: Kind) -> Verdict {
    let words = Words { address: WINDOW, words: 1, every: PAGE };
    let leaf = TestSpace::shared().leaf(WINDOW);
    let map = |round: Option<u64>| match round {
        Some(round) => write(leaf, page_entry(page_of(round).address()) & !NOT_GLOBAL),
        None => replace(leaf, 0),
    };
    words.gone_by(map, |_| tlbi::flush(Form(Scope::Local, kind), TlbiOperand::page(WINDOW, 0x77)))
}

/// A page, with the level in the operand.
pub(super) fn with_level(kind: Kind) -> Verdict {
    needs!(machine::get().platform.has_levels, "the processor has no hints of the level (FEAT_TTL)");
    let words = Words { address: WINDOW, words: 1, every: PAGE };
    let target = TlbiOperand { level: Some(3), ..TlbiOperand::page(WINDOW, TestSpace::shared().asid()) };
    words.gone_by(|round| map_pages(WINDOW, 1, round), |_| tlbi::flush(Form(Scope::Local, kind), target))
}

/// Memory for a block, with the same word in each place that is checked.
pub(super) fn block_memory() -> &'static [Page] {
    static PAGES: spin::Once<&[Page]> = spin::Once::new();
    PAGES.call_once(|| window::take(512, 512))
}

/// Maps a block with the round's number in each of its places, or none.
pub(super) fn map_block(round: Option<u64>) {
    let entry = TestSpace::shared().entry(BLOCK_WINDOW, 2);
    match round {
        Some(round) => {
            block_memory().iter().for_each(|page| page.write(&[round]));
            write(entry, block_entry(block_memory()[0].address()));
        }
        None => replace(entry, 0),
    }
}

/// A flush of any address drops all of a block, regardless of its form in the TLB (A17).
pub(super) fn block(kind: Kind) -> Verdict {
    let words = Words { address: BLOCK_WINDOW, words: PLACES, every: PLACE_EVERY };
    let asid = TestSpace::shared().asid();
    words.gone_by(map_block, |round| {
        let offset = round * 0x1_f123 % BLOCK;
        tlbi::flush(Form(Scope::Local, kind), TlbiOperand::page(BLOCK_WINDOW + offset, asid));
    })
}

/// NUM and SCALE of ranges, the number of their pages that are checked, and the distance between
/// these: up to 512 pages, the size of a table.
pub(super) const RANGES: [(u64, u64, u64, u64); 5] =
    [(0, 0, 2, 1), (4, 0, 10, 1), (31, 0, 64, 1), (0, 1, 64, 1), (7, 1, PLACES, 73)];

/// All pages of a range, including the first and the last.
pub(super) fn range(kind: Kind) -> Verdict {
    needs!(machine::get().platform.has_ranges, "the processor has no TLBI by range (FEAT_TLBIRANGE)");
    for (num, scale, words, every) in RANGES {
        let Some(range) = Range::new(num, scale) else { continue };
        let target =
            TlbiOperand { range: Some(range), ..TlbiOperand::page(WINDOW, TestSpace::shared().asid()) };
        let words = Words { address: WINDOW, words, every: every * PAGE };
        words.gone_by(
            |round| map_pages(WINDOW, range.pages(), round),
            |_| tlbi::flush(Form(Scope::Local, kind), target),
        )?;
    }
    Ok(())
}
