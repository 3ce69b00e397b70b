use std::sync::atomic::Ordering::Relaxed;

use super::arena::Arena;
use super::{G, IssuedAt, RWX, never_walked};
use crate::{Amd64Nested, FlushRange, Invalidation, Level, PageTable, PhysAddr, Progress, Tables};

fn table(arena: &Arena) -> PageTable<Amd64Nested, &Arena> {
    PageTable::new(arena).unwrap()
}

fn fill(table: &PageTable<Amd64Nested, &Arena>, pages: impl IntoIterator<Item = u64>) {
    for page in pages {
        table.install(page << 12, PhysAddr(page << 12), Level::Page4K, RWX).unwrap();
    }
}

#[test]
fn p1_tables_are_kept_until_a_receipt_is_new_enough() {
    let arena = Arena::new(16);
    let mut table = table(&arena);
    fill(&table, 0..4);
    let issued_before = IssuedAt(table.stamp());
    let gather = table.zap(0..G, Tables::Free);
    let used_count = arena.used_count();
    let gather = gather.release(&issued_before).expect_err("the flush was issued before the zap");
    assert_eq!((arena.used_count(), gather.table_count()), (used_count, 2));
    assert_eq!(gather.release(&IssuedAt(table.stamp())).unwrap().table_count, 2);
    assert_eq!(arena.used_count(), used_count - 2);
}

#[test]
fn p1_a_receipt_of_a_former_table_at_the_same_place_frees_nothing() {
    let arena = Arena::new(16);
    let mut former = table(&arena);
    for _ in 0..3 {
        let _ = former.zap(0..G, Tables::Free);
    }
    let (receipt, root) = (IssuedAt(former.stamp()), former.root());
    former.dismantle().release(&never_walked()).unwrap();
    let mut table = table(&arena);
    assert_eq!(table.root(), root);
    fill(&table, 0..1);
    assert!(table.zap(0..G, Tables::Free).release(&receipt).is_err());
}

#[test]
fn empty_tables_still_need_a_flush_of_walk_caches() {
    let arena = Arena::new(16);
    let mut table = table(&arena);
    fill(&table, 0..1);
    let before = IssuedAt(table.stamp());
    table.zap(0..G, Tables::Keep).release(&never_walked()).unwrap();
    let gather = table.zap(0..G, Tables::Free);
    let all = FlushRange { start: 0, len: G, level: Level::Page4K, tables: true };
    assert_eq!((gather.invalidation(), gather.table_count()), (Invalidation::Ranges(&[all]), 2));
    assert!(gather.release(&before).is_err());
}

#[test]
fn nothing_to_flush_needs_no_flush() {
    let arena = Arena::new(16);
    let mut table = table(&arena);
    let before = IssuedAt(table.stamp());
    let gather = table.zap(0..u64::MAX, Tables::Free);
    assert_eq!(gather.invalidation(), Invalidation::Nothing);
    assert_eq!(gather.release(&before).unwrap().table_count, 0);
}

#[test]
fn p1_tables_that_are_cut_off_for_their_frames_are_frozen_until_they_are_free() {
    let arena = Arena::new(16);
    let table = table(&arena);
    fill(&table, [0, 5, 1 << 17]);
    table.mark(0x7000, 3).unwrap();
    let mut change = table.edit().unwrap().zap(0..G, Tables::Free).with_frames();
    assert_eq!(change.step(u32::MAX), Progress::Done);
    let gather = change.take_gather();
    let held: Vec<_> = arena.used().filter(|(at, _)| *at != table.root()).skip(1).collect();
    assert_eq!(held.len(), gather.table_count());
    for (at, entries) in held {
        let all = entries.iter().all(|entry| crate::format::is_frozen(entry.load(Relaxed)));
        assert!(all, "a fault could fill {at:?}");
    }
    gather.release(&never_walked()).unwrap();
}

#[test]
fn p18_ranges_are_joined_where_a_hint_stays_right() {
    let arena = Arena::new(1);
    let table = table(&arena);
    let decode = crate::format::Entry::decode::<Amd64Nested>;
    let (small, large, huge) = (Level::Page4K, Level::Page2M, Level::Page1G);
    let range = |start, len, level, tables| FlushRange { start, len, level, tables };
    for (pushed, expected) in [
        // Leaves of one level, next to each other.
        ([range(0, 5, small, false), range(5, 2, small, false)], vec![range(0, 7, small, false)]),
        ([range(0, 5, large, false), range(5, 2, small, false)], vec![]),
        ([range(0, 5, small, false), range(6, 2, small, false)], vec![]),
        ([range(0, 5, small, false), range(5, 2, large, false)], vec![]),
        ([range(5, 2, small, false), range(0, 5, small, false)], vec![]),
        // Tables of any level; the smallest entry counts.
        ([range(0, 5, large, true), range(5, 2, small, true)], vec![range(0, 7, small, true)]),
        ([range(0, 5, small, true), range(5, 2, huge, true)], vec![range(0, 7, small, true)]),
        ([range(0, 5, small, true), range(5, 2, small, false)], vec![]),
    ] {
        let mut gather = crate::Gather::<_, crate::NoFrames>::new(&arena, decode, table.stamp());
        for range in pushed {
            match range.tables {
                true => gather.cut(range.start, range.len, range.level),
                false => gather.leaves(range.start, range.len, range.level),
            }
        }
        let expected = if expected.is_empty() { pushed.to_vec() } else { expected };
        assert_eq!(gather.invalidation(), Invalidation::Ranges(&expected));
        gather.deepen(small);
        let Invalidation::Ranges([.., last]) = gather.invalidation() else { panic!("{gather:?}") };
        assert_eq!(last.level, small);
    }
}
