//! Flushes of all processors: none sees a page after the flush that removed it is complete (O1).
//! See [`watch`](crate::arch::aarch64::watch).

use super::local::{RANGES, map_block, map_pages};
use super::prelude::*;

const ROUNDS: u32 = 100;

/// Words at [`WINDOW`] in the shared space.
pub(super) fn at_window(words: u64, every: u64) -> What {
    What { address: WINDOW, words, every, each: 0, space: TestSpace::shared().register(), control: 0 }
}

/// `map` maps the words with a round's number or unmaps them; after `take` nobody sees them.
fn gone_by(what: What, map: impl Fn(Option<u64>), take: impl Fn(u64)) -> Verdict {
    map(None);
    watch::during(what, |watch| {
        watch.notices(
            |round| {
                map(Some(round));
                (Expected::Value, round)
            },
            |_| {
                map(None);
                (Expected::Gone, 0)
            },
        )?;
        map(None);
        tlbi::settle();
        for round in rounds(ROUNDS).map(u64::from) {
            map(Some(round));
            watch.expect(Expected::Value, round)?;
            map(None);
            take(round);
            watch.expect(Expected::Gone, 0)?;
        }
        Ok(())
    })
}

fn needs_of(Form(scope, _): Form) -> Verdict {
    let has_outer = machine::get().platform.has_outer;
    needs!(scope != Scope::Outer || has_outer, "there is no TLBI for the outer domain (FEAT_TLBIOS)");
    Ok(())
}

/// A page.
pub(super) fn page(form: Form) -> Verdict {
    needs_of(form)?;
    let target = TlbiOperand::page(WINDOW, TestSpace::shared().asid());
    gone_by(at_window(1, PAGE), |round| map_pages(WINDOW, 1, round), |_| tlbi::flush(form, target))
}

/// The same with the level in the operand.
pub(super) fn with_level(form: Form) -> Verdict {
    needs!(machine::get().platform.has_levels, "the processor has no hints of the level (FEAT_TTL)");
    let target = TlbiOperand { level: Some(3), ..TlbiOperand::page(WINDOW, TestSpace::shared().asid()) };
    gone_by(at_window(1, PAGE), |round| map_pages(WINDOW, 1, round), |_| tlbi::flush(form, target))
}

/// All pages of a range.
pub(super) fn range(form: Form) -> Verdict {
    needs_of(form)?;
    needs!(machine::get().platform.has_ranges, "the processor has no TLBI by range (FEAT_TLBIRANGE)");
    for (num, scale, words, every) in RANGES {
        let Some(range) = Range::new(num, scale) else { continue };
        let target =
            TlbiOperand { range: Some(range), ..TlbiOperand::page(WINDOW, TestSpace::shared().asid()) };
        let map = |round| map_pages(WINDOW, range.pages(), round);
        gone_by(at_window(words, every * PAGE), map, |_| tlbi::flush(form, target))?;
    }
    Ok(())
}

/// A flush of any address drops all of a block (A17).
pub(super) fn block() -> Verdict {
    let what = What { address: BLOCK_WINDOW, words: PLACES, every: PLACE_EVERY, ..at_window(1, PAGE) };
    let asid = TestSpace::shared().asid();
    gone_by(what, map_block, |round| {
        let target = TlbiOperand::page(BLOCK_WINDOW + round * 0x1_f123 % BLOCK, asid);
        tlbi::flush(Form(Scope::Inner, Kind::Va), target);
    })
}

/// A page is unmapped, flushed, and replaced by another one at once: no processor sees the old one.
pub(super) fn remap() -> Verdict {
    let leaf = TestSpace::shared().leaf(WINDOW);
    let map = |round: u64| page_entry(page_of(round).address());
    let target = TlbiOperand::page(WINDOW, TestSpace::shared().asid());
    replace(leaf, 0);
    tlbi::settle();
    let verdict = watch::during(at_window(1, PAGE), |watch| {
        watch.notices(
            |round| {
                write(leaf, map(2 * round));
                (Expected::Value, 2 * round)
            },
            |round| {
                replace(leaf, 0);
                write(leaf, map(2 * round + 1));
                (Expected::Value, 2 * round + 1)
            },
        )?;
        for round in rounds(ROUNDS).map(u64::from) {
            replace(leaf, 0);
            tlbi::flush(Form(Scope::Inner, Kind::VaLast), target);
            write(leaf, map(round));
            watch.expect(Expected::Value, round)?;
        }
        Ok(())
    });
    replace(leaf, 0);
    tlbi::settle();
    verdict
}
