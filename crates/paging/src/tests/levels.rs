//! P17, P18: the ranges of a gather.

use super::arena::Arena;
use super::{G, M2, RWX, never_walked};
use crate::{
    Amd64Guest, Amd64Nested, FlushRange, Frames, Gather, Invalidation, Level, PageTable, PhysAddr, Progress,
    Tables,
};

fn ranges<R: Frames>(gather: Gather<&Arena, R>) -> Vec<FlushRange> {
    let Invalidation::Ranges(ranges) = gather.invalidation() else { panic!("{gather:?}") };
    let ranges = ranges.to_vec();
    gather.release(&never_walked()).unwrap();
    ranges
}

const fn leaves(start: u64, len: u64, level: Level) -> FlushRange {
    FlushRange { start, len, level, tables: false }
}

const fn tables(start: u64, len: u64, level: Level) -> FlushRange {
    FlushRange { start, len, level, tables: true }
}

/// A page of each size, next to each other.
fn mixed(arena: &Arena) -> PageTable<Amd64Nested, &Arena> {
    let mut table = PageTable::new(arena).unwrap();
    table.map(G - M2 - 0x1000..2 * G, PhysAddr(G - M2 - 0x1000), RWX, Level::Page1G).unwrap();
    table
}

#[test]
fn p18_ranges_of_leaves_have_one_level_each() {
    let arena = Arena::new(8);
    let expected = [
        leaves(G - M2 - 0x1000, 0x1000, Level::Page4K),
        leaves(G - M2, M2, Level::Page2M),
        leaves(G, G, Level::Page1G),
    ];
    assert_eq!(ranges(mixed(&arena).zap(0..4 * G, Tables::Keep)), expected);
    let table = mixed(&arena);
    assert_eq!(ranges(table.edit().unwrap().write_protect(0..4 * G).finish()), expected);
    assert_eq!(ranges(table.edit().unwrap().clean(0..4 * G, |_| ()).finish()), expected);
    assert_eq!(ranges(table.edit().unwrap().protect(0..2 * G, RWX).unwrap().finish()), expected);
}

#[test]
fn p18_a_table_that_goes_is_told_and_so_is_the_smallest_leaf() {
    let arena = Arena::new(8);
    // Below 1 GiB there are both sizes. The contents of a table that is cut off are not examined: a
    // table of 2 MiB pages may always have had tables below.
    let expected = [tables(0, G, Level::Page4K), leaves(G, G, Level::Page1G)];
    assert_eq!(ranges(mixed(&arena).zap(0..4 * G, Tables::Free)), expected);
    let mut large = PageTable::<Amd64Nested, _>::new(&arena).unwrap();
    large.map(0..G, PhysAddr(0), RWX, Level::Page2M).unwrap();
    assert_eq!(ranges(large.zap(0..G, Tables::Free)), [tables(0, G, Level::Page4K)]);
    for level in [Level::Page2M, Level::Page4K] {
        large.map(0..M2, PhysAddr(0), RWX, level).unwrap();
        let mut framed = large.edit().unwrap().zap(0..G, Tables::Free).with_frames();
        assert_eq!(framed.step(u32::MAX), Progress::Done);
        assert_eq!(ranges(framed.take_gather()), [tables(0, G, level)]);
    }
}

#[test]
fn p18_a_gather_taken_in_the_middle_of_a_table_covers_the_table_again() {
    let arena = Arena::new(8);
    let mut table = PageTable::<Amd64Nested, _>::new(&arena).unwrap();
    table.map(0..M2, PhysAddr(0), RWX, Level::Page4K).unwrap();
    let mut change = table.edit().unwrap().zap(0..M2, Tables::Free).with_frames();
    let _ = change.step(100);
    let first = change.take_gather();
    let _ = change.step(u32::MAX);
    let second = change.take_gather();
    assert_eq!((first.table_count(), second.table_count()), (0, 1));
    assert_eq!(ranges(first), [tables(0, M2, Level::Page4K)]);
    assert_eq!(ranges(second), [tables(0, M2, Level::Page4K)]);
}

#[test]
fn p17_ranges_reach_the_ends_of_the_address_space() {
    let arena = Arena::new(8);
    let mut table = PageTable::<Amd64Guest, _>::new(&arena).unwrap();
    let last = 0u64.wrapping_sub(M2);
    for start in [0, last] {
        table.install(start, PhysAddr(0), Level::Page2M, RWX).unwrap();
    }
    let expected = [leaves(0, M2, Level::Page2M), leaves(last, M2, Level::Page2M)];
    assert_eq!(ranges(table.zap(0..u64::MAX, Tables::Keep)), expected);
    table.install(last + 0x1f_f000, PhysAddr(0), Level::Page4K, RWX).unwrap();
    assert_eq!(ranges(table.zap(last..u64::MAX, Tables::Free)), [tables(last, M2, Level::Page4K)]);
}
