//! P14: the assumptions of the inner loops, and that they have the same effect as single-leaf
//! changes.

use std::sync::atomic::Ordering::Relaxed;

use super::arena::Arena;
use super::{M2, RW, never_walked};
use crate::format::{FROZEN, is_settled, piece, repermitted, settled};
use crate::{
    Amd64Guest, Amd64Host, Amd64Nested, Arm64Stage1, Arm64Stage2, ENTRY_COUNT, Ept, Format, Invalidation,
    Level, PageTable, Permissions, PhysAddr,
};

const PA: PhysAddr = PhysAddr(0x12_4000_0000);

/// Every leaf that a change, a fault, or a processor may leave behind.
fn leaves<F: Format>(level: Level) -> Vec<u64> {
    let admitted =
        (0..=u8::MAX).filter_map(Permissions::from_bits).filter(|permissions| F::admits(*permissions));
    let fresh = admitted.map(|permissions| F::leaf(PA, level, permissions));
    let mut all: Vec<u64> = fresh.collect();
    for leaf in all.clone() {
        let read_only = repermitted::<F>(leaf, level, F::permissions(leaf) - Permissions::WRITE);
        all.extend([
            F::dirtied(leaf),
            F::cleaned(leaf),
            read_only,
            F::dirtied(read_only),
            F::cleaned(read_only),
        ]);
    }
    all
}

fn check<F: Format>() {
    for leaf in leaves::<F>(Level::Page4K) {
        let allows = F::permissions(leaf);
        if is_settled::<F>(leaf) {
            assert!(F::is_dirty(leaf) && allows.contains(Permissions::WRITE), "{leaf:x}");
            assert_eq!(settled::<F>(leaf), leaf);
            assert_eq!(F::dirtied(leaf), leaf, "a processor has nothing to change");
        }
        if allows.contains(Permissions::WRITE) {
            let expected = repermitted::<F>(leaf, Level::Page4K, allows - Permissions::WRITE);
            assert_eq!(F::protected(leaf, Level::Page4K), expected, "{leaf:x}");
            assert_eq!(F::is_dirty(expected), F::is_dirty(leaf), "it is known still");
        }
    }
    let writable = F::leaf(PA, Level::Page4K, RW);
    assert!(is_settled::<F>(writable), "or the loop is a slow one");
    for absent in [0, FROZEN, F::mark(5)] {
        assert!(!is_settled::<F>(absent));
    }
    for leaf in leaves::<F>(Level::Page2M) {
        let first = piece::<F>(leaf, PA, Level::Page4K);
        for index in [1, 511u64] {
            let pa = PhysAddr(PA.0 + index * 4096);
            assert_eq!(
                piece::<F>(leaf, pa, Level::Page4K),
                first + index * 4096,
                "pieces differ by their size"
            );
        }
    }
}

#[test]
fn p14_settled_leaves_are_those_that_no_processor_changes() {
    check::<Amd64Nested>();
    check::<Amd64Guest>();
    check::<Amd64Host>();
    check::<Ept>();
    check::<Arm64Stage1>();
    check::<Arm64Stage2<3>>();
    check::<Arm64Stage2<4, true>>();
}

/// A table with runs of each kind of entry, across the boundaries of the loops' groups.
fn mixed<F: Format>(arena: &Arena) -> PageTable<F, &Arena> {
    let mut table = PageTable::new(arena).unwrap();
    table.map(0..M2, PA, RW, Level::Page4K).unwrap();
    let last = super::leaf_of(&table, 0).unwrap().0;
    let kinds: Vec<u64> = leaves::<F>(Level::Page4K).into_iter().chain([0, F::mark(3)]).collect();
    let mut run = 0;
    let entries: &[crate::sync::AtomicU64] = {
        let at = arena.used().find(|(_, entries)| std::ptr::eq(&entries[0], last)).unwrap();
        at.1
    };
    for (index, entry) in entries.iter().enumerate() {
        // Runs of 1 to 40 of one kind, with every fourth one unchanged.
        run += usize::from(index * 7 % 40 < 5);
        if run % 4 != 0 {
            let kind = kinds[run * 5 % kinds.len()];
            let address = if F::is_present(kind) { index as u64 * 4096 } else { 0 };
            entry.store(kind + address, Relaxed);
        }
    }
    table
}

fn entries<F: Format>(table: &PageTable<F, &Arena>) -> Vec<u64> {
    (0..ENTRY_COUNT as u64).map(|page| super::last_entry(table, page * 4096).0.load(Relaxed)).collect()
}

fn sweep<F: Format>(first: u64, end: u64) {
    let arena = Arena::new(8);
    let table = mixed::<F>(&arena);
    let before = entries(&table);
    let mut told = Vec::new();
    let change = table
        .edit()
        .unwrap()
        .clean(first * 4096..end * 4096, |page: std::ops::Range<u64>| told.push(page.start / 4096));
    let gather = change.finish();
    let is_in = |page: &u64| (first..end).contains(page);
    let dirty = |page: &u64| {
        let entry = before[*page as usize];
        F::is_present(entry) && F::is_dirty(entry)
    };
    assert_eq!(told, (0..512).filter(is_in).filter(dirty).collect::<Vec<_>>());
    for (page, (&old, new)) in (0..).zip(before.iter().zip(entries(&table))) {
        let expected = if is_in(&page) && dirty(&page) { F::cleaned(old) } else { old };
        assert_eq!(new, expected, "page {page}");
    }
    if let Invalidation::Ranges(ranges) = gather.invalidation() {
        let flushed = |page: &u64| {
            ranges.iter().any(|range| (range.start..range.start + range.len).contains(&(page * 4096)))
        };
        assert_eq!((0..512).filter(flushed).collect::<Vec<_>>(), told, "what has changed, and no more");
    }
    gather.release(&never_walked()).unwrap();

    let before = entries(&table);
    table.edit().unwrap().write_protect(first * 4096..end * 4096).finish().release(&never_walked()).unwrap();
    for (page, (&old, new)) in (0..).zip(before.iter().zip(entries(&table))) {
        let allows = F::permissions(old);
        let is_changed = is_in(&page) && F::is_present(old) && allows.contains(Permissions::WRITE);
        let expected =
            if is_changed { repermitted::<F>(old, Level::Page4K, allows - Permissions::WRITE) } else { old };
        assert_eq!(new, expected, "page {page}");
    }
}

#[test]
fn p14_going_over_a_table_does_what_is_done_to_each_leaf() {
    for (first, end) in [(0, 512), (0, 3), (61, 67), (5, 509), (64, 128), (127, 385), (200, 201)] {
        sweep::<Amd64Nested>(first, end);
        sweep::<Ept>(first, end);
        sweep::<Arm64Stage2<3>>(first, end);
        sweep::<Arm64Stage1>(first, end);
    }
}

#[test]
fn p18_runs_are_told_as_ranges_across_words() {
    let arena = Arena::new(8);
    let mut table = PageTable::<Amd64Nested, _>::new(&arena).unwrap();
    table.map(0..M2, PA, RW, Level::Page4K).unwrap();
    let hole = |page: u64| super::leaf_of(&table, page * 4096).unwrap().0.store(0, Relaxed);
    [3, 63, 64, 300, 511].into_iter().for_each(hole);
    let gather = table.edit().unwrap().write_protect(0..M2).finish();
    let Invalidation::Ranges(ranges) = gather.invalidation() else { panic!("{gather:?}") };
    let runs: Vec<_> = ranges.iter().map(|range| (range.start / 4096, range.len / 4096)).collect();
    assert_eq!(runs, [(0, 3), (4, 59), (65, 235), (301, 210)]);
    gather.release(&never_walked()).unwrap();
}
