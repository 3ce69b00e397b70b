//! P1, P3: trees that are cut off as a whole, and how they are freed.

use std::sync::atomic::Ordering::Relaxed;

use super::arena::Arena;
use super::observer::Observer;
use super::{G, IssuedAt, M2, RWX, never_walked};
use crate::format::{Entry, is_frozen};
use crate::{
    Amd64Nested, Arm64Stage2, ENTRY_COUNT, FlushRange, Format, Gather, Installed, Invalidation, Level,
    MapError, PageTable, PhysAddr, TableMemory, Tables,
};

type Stage2 = Arm64Stage2<3>;

fn mapped<F: Format>(arena: &Arena, len: u64, level: Level) -> PageTable<F, &Arena> {
    let mut table = PageTable::new(arena).unwrap();
    table.map(0..len, PhysAddr(G), RWX, level).unwrap();
    table
}

/// The same, with an observer.
fn observed(arena: &Arena) -> PageTable<Stage2, &Arena> {
    let mut table = PageTable::new(arena).unwrap();
    arena.watch(Observer::new::<Stage2>(table.root()));
    table.map(0..M2, PhysAddr(G), RWX, Level::Page4K).unwrap();
    table
}

fn detach<'a, F: Format>(table: &PageTable<F, &'a Arena>, len: u64) -> Gather<&'a Arena> {
    table.edit().unwrap().zap(0..len, Tables::Detach).finish()
}

/// The table that an entry points to.
fn below<F: Format>(table: &PageTable<F, &Arena>, at: PhysAddr, level: Level, index: usize) -> PhysAddr {
    match Entry::decode::<F>(table.entries(at)[index].load(Relaxed), level) {
        Entry::Table(next) => next,
        other => panic!("{other:?}"),
    }
}

#[test]
fn p4_reclaiming_looks_at_no_page_and_goes_in_bounded_steps() {
    let arena = Arena::new(520);
    let table = mapped::<Stage2>(&arena, G, Level::Page4K);
    let mut freeing = detach(&table, G).release_in_steps(&IssuedAt(table.stamp())).unwrap();
    let (mut steps, mut before) = (0, 0);
    while freeing.step(4 * ENTRY_COUNT as u32) {
        steps += 1;
        assert!(freeing.table_count() - before <= 4, "a step frees as many tables as it may clear entries");
        before = freeing.table_count();
    }
    assert!(steps >= 513 / 4, "{steps} steps");
    assert_eq!((freeing.table_count(), freeing.visited_count()), (513, 511), "the link stands for the first");
}

#[test]
fn p1_a_detached_tree_stays_until_its_receipt() {
    let arena = Arena::new(520);
    let table = mapped::<Stage2>(&arena, G, Level::Page4K);
    let early = IssuedAt(table.stamp());
    let used_count = arena.used_count();
    let gather = detach(&table, G).release(&early).expect_err("the flush was issued before the zap");
    assert_eq!(arena.used_count(), used_count, "f62d4c3eb687: nothing is freed before the invalidation");
    gather.release(&IssuedAt(table.stamp())).unwrap();
    assert_eq!(arena.used_count(), 1);
}

#[test]
fn p1_what_faults_put_into_a_detached_tree_is_reclaimed_with_it() {
    let arena = Arena::new(16);
    let table = mapped::<Stage2>(&arena, M2, Level::Page4K);
    let middle = below(&table, table.root(), Level::Page1G, 0);
    let last = below(&table, middle, Level::Page2M, 0);
    let gather = detach(&table, G);
    // A fault still in progress through `middle`, and one through `last`.
    let late = TableMemory::allocate(&&arena).unwrap();
    for (at, index, value) in [
        (middle, 7, Stage2::table(late, Level::Page2M)),
        (last, 9, Stage2::leaf(PhysAddr(G), Level::Page4K, RWX)),
    ] {
        let entry = &table.entries(at)[index];
        let _ = entry.compare_exchange(entry.load(Relaxed), value, Relaxed, Relaxed);
    }
    for at in [middle, last] {
        assert!(is_frozen(table.entries(at)[0].load(Relaxed)), "nobody fills the link");
    }
    assert_eq!(gather.release(&IssuedAt(table.stamp())).unwrap().table_count, 3);
    assert_eq!(arena.used_count(), 1);
}

#[test]
fn p3_a_detached_entry_is_not_filled_before_it_is_thawed() {
    let arena = Arena::new(16);
    let table = observed(&arena);
    let look = || drop(arena.observe(|observer| observer.look(&arena)));
    look();
    let install = || table.install(0x1000, PhysAddr(G + 0x1000), Level::Page4K, RWX);
    let gather = detach(&table, G);
    let breaks = arena.observe(|observer| observer.breaks.len());
    assert_eq!(breaks, Some(0), "one flush is enough");
    assert_eq!(install(), Err(MapError::Raced));
    assert_eq!(table.mark(0x1000, 7), Err(MapError::Raced));
    assert_eq!(table.look(0x1000), crate::Look::Absent);
    let freeing = gather.release_in_steps(&IssuedAt(table.stamp())).unwrap();
    let _ = arena.observe(|observer| observer.on_flush(&arena));
    let flushed = freeing.flushed().expect("there was a flush");
    let _ = freeing.finish();
    let thawed = table.edit().unwrap().thaw(0..G, flushed).finish();
    assert_eq!(thawed.invalidation(), Invalidation::Nothing);
    assert_eq!(install(), Ok(Installed::New(Level::Page4K)));
    look();
}

#[test]
fn p3_what_was_detached_after_a_flush_is_not_thawed_for_it() {
    let arena = Arena::new(16);
    let table = mapped::<Stage2>(&arena, M2, Level::Page4K);
    table.install(G, PhysAddr(0), Level::Page4K, RWX).unwrap();
    let first = detach(&table, G);
    let receipt = IssuedAt(table.stamp());
    let second = table.edit().unwrap().zap(G..2 * G, Tables::Detach).finish();
    let freeing = first.release_in_steps(&receipt).unwrap();
    table
        .edit()
        .unwrap()
        .thaw(0..u64::MAX, freeing.flushed().unwrap())
        .finish()
        .release(&never_walked())
        .unwrap();
    let _ = freeing.finish();
    assert_eq!(table.install(0, PhysAddr(0), Level::Page4K, RWX), Ok(Installed::New(Level::Page4K)));
    assert_eq!(table.install(G, PhysAddr(0), Level::Page4K, RWX), Err(MapError::Raced));
    let freeing = second.release_in_steps(&IssuedAt(table.stamp())).unwrap();
    let flushed = freeing.flushed().unwrap();
    let _ = freeing.finish();
    // A receipt of another table proves nothing.
    let other = mapped::<Stage2>(&arena, M2, Level::Page4K);
    let _ = other.edit().unwrap().thaw(0..u64::MAX, flushed).finish();
    table.edit().unwrap().thaw(0..u64::MAX, flushed).finish().release(&never_walked()).unwrap();
    assert_eq!(table.install(G, PhysAddr(0), Level::Page4K, RWX), Ok(Installed::New(Level::Page4K)));
}

#[test]
fn p14_a_collapse_detaches_what_it_replaces_and_counts_as_dirty() {
    let arena = Arena::new(520);
    let table = mapped::<Amd64Nested>(&arena, G, Level::Page4K);
    let change = table.edit().unwrap().collapse(0..G, Level::Page1G, PhysAddr(G), RWX).unwrap();
    let gather = change.finish();
    assert_eq!((gather.visited_count(), gather.detached_count()), (2, 1));
    let mapping = table.query(0x12_3000).unwrap();
    assert_eq!((mapping.level, mapping.is_dirty), (Level::Page1G, true));
    assert_eq!(gather.release(&IssuedAt(table.stamp())).unwrap().table_count, 513);
}

#[test]
fn p3_p18_pages_change_their_size_in_place_where_processors_can() {
    let arena = Arena::new(520);
    let table = mapped::<Stage2>(&arena, G, Level::Page1G);
    arena.watch(Observer::new::<Stage2>(table.root()));
    arena.resizes_in_place.store(true, Relaxed);
    let split = table.edit().unwrap().split(0..M2, Level::Page4K).finish();
    // Both blocks at their former level, so that a hint is right.
    let block = |len, level| FlushRange { start: 0, len, level, tables: false };
    let expected = [block(G, Level::Page1G), block(M2, Level::Page2M)];
    assert_eq!(split.invalidation(), Invalidation::Ranges(&expected));
    split.release(&IssuedAt(table.stamp())).unwrap();
    let back = table.edit().unwrap().collapse(0..G, Level::Page1G, PhysAddr(G), RWX).unwrap().finish();
    let tables = FlushRange { start: 0, len: G, level: Level::Page4K, tables: true };
    assert_eq!(back.invalidation(), Invalidation::Ranges(&[tables]));
    assert_eq!(back.release(&IssuedAt(table.stamp())).unwrap().table_count, 2);
    assert_eq!(arena.observe(|observer| observer.breaks.len()), Some(0));
    // Where a page is cut at its edge there is nothing to flush the block by.
    let gather = table.edit().unwrap().unmap(0x1000..0x2000).unwrap().finish();
    assert_eq!(arena.observe(|observer| observer.breaks.len()), Some(2));
    gather.release(&never_walked()).unwrap();
}
