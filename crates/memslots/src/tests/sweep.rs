//! Memory is traversed in pieces, whatever slots are added or removed meanwhile.

use super::{PAGE, slot, untouched};
use crate::{Memslots, Piece, Sweep};

/// Slots of 5 and 2 pages, adjacent, and 3 more further up.
fn memslots() -> Memslots {
    let slot = |(id, page, count)| slot(id, page, count, host(id, 0) * PAGE);
    untouched(&[(1, 4, 5), (2, 9, 2), (3, 100, 3)].map(slot))
}

/// A page of the memory behind a slot.
fn host(id: u16, page: u64) -> u64 {
    1000 * u64::from(id) + page
}

/// Pages of a piece: the first, how many, and the first one's memory.
fn pages(piece: &Piece) -> (u64, u64, u64) {
    assert_eq!(piece.host.end - piece.host.start, piece.gpas.end - piece.gpas.start);
    (piece.gpas.start / PAGE, (piece.gpas.end - piece.gpas.start) / PAGE, piece.host.start / PAGE)
}

#[test]
fn u6_a_sweep_covers_all_memory_once_in_bounded_pieces() {
    let memslots = memslots();
    let mut sweep = Sweep::new(2 * PAGE);
    let found: Vec<_> =
        core::iter::from_fn(|| sweep.next(&memslots.memory()).map(|piece| pages(&piece))).collect();
    let expected = [
        (4, 2, host(1, 0)),
        (6, 2, host(1, 2)),
        (8, 1, host(1, 4)),
        (9, 2, host(2, 0)),
        (100, 2, host(3, 0)),
        (102, 1, host(3, 2)),
    ];
    assert_eq!(found, expected);
    assert_eq!(sweep.next(&memslots.memory()), None);
}

#[test]
fn u6_slots_may_come_between_two_pieces_of_a_sweep() {
    let mut memslots = memslots();
    let mut sweep = Sweep::new(4 * PAGE);
    let mut next = |memslots: &Memslots| sweep.next(&memslots.memory()).map(|piece| pages(&piece).0);
    assert_eq!(next(&memslots), Some(4));
    for (id, page) in [(4, 0), (5, 50)] {
        // SAFETY: the test only looks slots up.
        unsafe { memslots.add(slot(id, page, 1, 0)) }.unwrap();
    }
    let rest: Vec<_> = core::iter::from_fn(|| next(&memslots)).collect();
    assert_eq!(rest, [8, 9, 50, 100], "the one below is passed over");
}
