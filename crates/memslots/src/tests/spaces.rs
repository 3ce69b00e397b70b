use super::{PAGE, finish, receipt, settle, slot, stamp};
use crate::{Memslots, Retired, SlotError, SlotId, SpaceId, Treatment};

const OTHER: SpaceId = SpaceId(1);

/// A slot at page 0 of the first space, and one of the same name at page 1 of the other.
fn two_spaces() -> Memslots<2> {
    let memslots = Memslots::<2>::with_spaces(48);
    let mut update = memslots.begin_update().unwrap();
    // SAFETY: the tests only look slots up.
    unsafe { update.add(slot(1, 0, 1, 0)) }.unwrap();
    // SAFETY: as above.
    unsafe { update.space(OTHER).unwrap().add(slot(1, 1, 1, 0)) }.unwrap();
    finish(update);
    memslots
}

fn pages(memslots: &Memslots<2>) -> [Vec<u64>; 2] {
    [SpaceId::FIRST, OTHER].map(|space| {
        let mut pages = Vec::new();
        memslots.memory_of(space).for_each(|slot| pages.push(slot.gpa.0 / PAGE));
        pages
    })
}

#[test]
fn p11_all_spaces_are_shown_before_any_is_waited_for() {
    let memslots = two_spaces();
    assert_eq!(memslots.begin_update().unwrap().space(SpaceId(2)).unwrap_err(), SlotError::UnknownSpace);
    for holder in memslots.spaces() {
        let held = memslots.memory_of(holder);
        let mut update = memslots.begin_update().unwrap();
        for space in memslots.spaces() {
            update.space(space).unwrap().remove(SlotId(1)).unwrap();
        }
        let published = update.publish().wait(|| false).expect_err("a reader of one space is there");
        assert_eq!(pages(&memslots), [vec![], vec![]], "the reader is of space {}", holder.0);
        drop(held);
        let mut quiesced = published.wait(|| false).unwrap();
        // Each space has tables of its own, so each needs a receipt.
        assert!(quiesced.settle(SpaceId::FIRST, &receipt(), stamp()));
        let mut quiesced = quiesced.finish(|_| panic!("given back")).expect_err("one is missing");
        assert!(!quiesced.needs_receipt(SpaceId::FIRST) && quiesced.needs_receipt(OTHER));
        assert!(quiesced.settle(OTHER, &receipt(), stamp()));
        let mut seen = Vec::new();
        quiesced.for_each_change(|change| {
            assert_eq!(change.treatment, Treatment::Zap);
            seen.push((change.space, change.range().start / PAGE));
        });
        assert_eq!(seen, [(SpaceId::FIRST, 0), (OTHER, 1)]);
        let mut spaces = Vec::new();
        let free = |retired| match retired {
            Retired::Memory { space, .. } => spaces.push(space),
            Retired::Log { .. } => panic!("there are no logs"),
        };
        quiesced.finish(free).unwrap();
        assert_eq!(spaces, [SpaceId::FIRST, OTHER]);
        // Back to the initial state, for the next round.
        let mut update = memslots.begin_update().unwrap();
        // SAFETY: the test only looks slots up.
        unsafe { update.add(slot(1, 0, 1, 0)) }.unwrap();
        // SAFETY: as above.
        unsafe { update.space(OTHER).unwrap().add(slot(1, 1, 1, 0)) }.unwrap();
        settle(update).finish(|_| ()).unwrap();
    }
}
