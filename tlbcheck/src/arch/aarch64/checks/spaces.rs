//! Address spaces with separate ASIDs: translations that must not be mixed, and those of other
//! spaces that a flush must drop.

use super::prelude::*;
use spin::Once;

const ROUNDS: u32 = 200;
const TRIES: u64 = 200;
/// Address of these rows' pages, where no other row has left translations.
const PLACE: u64 = WINDOW + 16 * PAGE;

/// Two spaces with different ASIDs, and a page for each.
fn pair() -> ([TestSpace; 2], &'static [Page]) {
    static SPACES: Once<[TestSpace; 2]> = Once::new();
    static PAGES: Once<&[Page]> = Once::new();
    (*SPACES.call_once(|| [TestSpace::new(2), TestSpace::new(3)]), PAGES.call_once(|| take(2, 1)))
}

/// Maps a page in each of the two at [`PLACE`], containing the space's number and the round's.
fn map(round: u64) {
    let (spaces, pages) = pair();
    for (index, (space, page)) in spaces.iter().zip(pages).enumerate() {
        page.write(&[2 * round + index as u64]);
        write(space.leaf(PLACE), page_entry(page.address()));
    }
}

fn unmap() {
    pair().0.iter().for_each(|space| replace(space.leaf(PLACE), 0));
}

/// Runs a row that enters spaces, and leaves no translations of it.
fn in_spaces(row: impl FnOnce(&[TestSpace; 2]) -> Verdict) -> Verdict {
    let verdict = row(&pair().0);
    window::leave();
    unmap();
    tlbi::settle();
    verdict
}

/// No switch that keeps translations mixes two ASIDs.
pub(super) fn mixes() -> Verdict {
    map(0);
    in_spaces(|spaces| {
        for round in rounds(ROUNDS) {
            let index = round as usize % 2;
            window::enter(spaces[index].register());
            let seen = guarded::load(PLACE);
            ensure!(seen == Ok(index as u64), "in space {index} {seen:x?} is seen, in round {round}");
        }
        Ok(())
    })
}

/// Whether the first space's page is visible when the second one has taken over its ASID by `take`.
fn sees_former(round: u64, take: impl FnOnce(u16)) -> Result<bool, u64> {
    let (spaces, _) = pair();
    let asid = spaces[0].asid();
    map(round);
    window::enter(spaces[0].register());
    let before = guarded::load(PLACE);
    // Without a third ASID in between: some machines drop everything at a change of it.
    // Translations of the first space are cached before the flush.
    window::enter(spaces[1].under(asid).register());
    take(asid);
    let after = guarded::load(PLACE);
    window::leave();
    unmap();
    tlbi::settle();
    match (before, after) {
        (Ok(first), Ok(second)) if first == 2 * round => Ok(second != 2 * round + 1),
        _ => Err(round),
    }
}

/// An ASID can be given to another space after a flush.
pub(super) fn reused(kind: Kind) -> Verdict {
    in_spaces(|_| {
        let notices = (0..TRIES).any(|round| sees_former(round, |_| ()) == Ok(true));
        needs!(notices, "the TLB keeps nothing of an ASID that changes hands, in {TRIES} tries");
        for round in rounds(ROUNDS).map(u64::from) {
            let former = sees_former(round, |asid| {
                tlbi::flush(Form(Scope::Local, kind), TlbiOperand::page(0, asid));
            });
            ensure!(former.is_ok(), "a page is not seen as it is mapped, round {round}");
            ensure!(former == Ok(false), "the former space's page is seen, round {round}");
        }
        Ok(())
    })
}

/// Number of the two spaces that still have their page after `take`, which is called in the second.
fn left(round: u64, take: impl FnOnce()) -> Result<usize, u64> {
    let (spaces, _) = pair();
    map(round);
    let mut missing = 0;
    for space in &spaces {
        window::enter(space.register());
        missing += u64::from(guarded::load(PLACE).is_err());
    }
    unmap();
    take();
    let is_left = |space: &&TestSpace| {
        window::enter(space.register());
        !is_gone(PLACE)
    };
    let left = spaces.iter().filter(is_left).count();
    window::leave();
    tlbi::settle();
    if missing == 0 { Ok(left) } else { Err(missing) }
}

/// A flush of all ASIDs drops the page of one that is not in use.
pub(super) fn others(kind: Kind) -> Verdict {
    in_spaces(|_| {
        let notices = (0..TRIES).any(|round| left(round, || tlbi::order(Scope::Local)) != Ok(0));
        needs!(notices, "the TLB keeps nothing of an ASID that is not in use, in {TRIES} tries");
        for round in rounds(ROUNDS).map(u64::from) {
            let left = left(round, || tlbi::flush(Form(Scope::Local, kind), TlbiOperand::page(PLACE, 0)));
            ensure!(left == Ok(0), "{left:?} spaces of two still have their page, round {round}");
        }
        Ok(())
    })
}
