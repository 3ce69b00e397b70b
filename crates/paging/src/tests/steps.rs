//! P4: the guarantees of a change in steps.

use super::arena::Arena;
use super::{G, M2, RWX, RX, never_walked};
use crate::{
    Amd64Nested, Change, DirtySink, Level, MapError, PageTable, Permissions, PhysAddr, Progress, Tables,
};

type Table<'a> = PageTable<Amd64Nested, &'a Arena>;

/// 4 MiB of small pages, then 4 MiB of large ones.
fn table(arena: &Arena) -> Table<'_> {
    let mut table = PageTable::new(arena).unwrap();
    table.map(0..2 * M2, PhysAddr(G), RWX, Level::Page4K).unwrap();
    table.map(2 * M2..4 * M2, PhysAddr(G + 2 * M2), RWX, Level::Page2M).unwrap();
    table
}

/// Steps through a change; each step visits as many entries as it was told, the last one no more.
fn measure<S: DirtySink>(change: Change<'_, Amd64Nested, &Arena, S>, entries_max: u32) -> u64 {
    measure_with(change, entries_max, |count| assert_eq!(count, u64::from(entries_max.max(1))))
}

fn measure_with<S: DirtySink>(
    mut change: Change<'_, Amd64Nested, &Arena, S>,
    entries_max: u32,
    check: impl Fn(u64),
) -> u64 {
    let mut visited_count = 0;
    loop {
        let progress = change.step(entries_max);
        let gather = change.take_gather();
        let count = gather.visited_count();
        gather.release(&never_walked()).unwrap();
        visited_count += count;
        match progress {
            Progress::More => check(count),
            Progress::Done => {
                assert!(count <= u64::from(entries_max.max(1)));
                return visited_count;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn p4_a_step_visits_as_many_entries_as_it_is_told() {
    for entries_max in [0, 1, 2, 7, 512, 5000] {
        let arena = Arena::new(16);
        let table = table(&arena);
        let edit = || table.edit().unwrap();
        // The root's entry, that of 1 GiB, four of 2 MiB, and two tables of pages.
        let all = 1 + 1 + 4 + 1024;
        assert_eq!(measure(edit().write_protect(0..4 * M2), entries_max), all);
        assert_eq!(measure(edit().clean(0..4 * M2, |_| ()), entries_max), all);
        assert_eq!(measure(edit().protect(0..4 * M2, RX).unwrap(), entries_max), all);
        // Filling a table counts the same as visiting it.
        let check =
            |count| assert!((1..=4 + u64::from(entries_max.div_ceil(512))).contains(&count), "{count}");
        assert_eq!(measure_with(edit().split(0..4 * M2, Level::Page4K), entries_max, check), 1 + 1 + 4);
        let back = edit().collapse(0..M2, Level::Page2M, PhysAddr(G), RWX).unwrap();
        assert_eq!(measure(back, entries_max), 1 + 1 + 1);
        assert_eq!(measure(edit().zap(0..M2, Tables::Keep), entries_max), 1 + 1 + 1);
        assert_eq!(measure(edit().zap(M2..2 * M2, Tables::Keep), entries_max), 1 + 1 + 1 + 512);
        assert_eq!(measure(edit().zap(0..4 * M2, Tables::Free), entries_max), 1 + 1 + 4);
        assert_eq!(arena.used_count(), 3);
        table.install(G, PhysAddr(0), Level::Page1G, RWX).unwrap();
        assert_eq!(measure_with(edit().split(G..G + M2, Level::Page4K), entries_max, check), 1 + 1 + 1);
    }
}

#[test]
fn a_split_that_finds_no_table_stops_there_and_can_go_on() {
    let arena = Arena::new(4);
    let mut table = Table::new(&arena).unwrap();
    table.map(0..4 * M2, PhysAddr(0), RWX, Level::Page2M).unwrap();
    let spare = PageTable::<Amd64Nested, _>::new(&arena).unwrap();
    let mut change = table.edit().unwrap().split(0..4 * M2, Level::Page4K);
    assert_eq!(change.step(u32::MAX), Progress::OutOfTables);
    assert_eq!(change.step(u32::MAX), Progress::OutOfTables, "it tries again");
    spare.dismantle().release(&never_walked()).unwrap();
    assert_eq!(change.step(u32::MAX), Progress::OutOfTables, "the next one");
    let gather = change.finish();
    assert_eq!(gather.unsplit_count(), 3);
    gather.release(&never_walked()).unwrap();
    let level = |address| table.query(address).map(|mapping| mapping.level);
    assert_eq!([0, M2, 3 * M2].map(level), [Level::Page4K, Level::Page2M, Level::Page2M].map(Some));
}

#[test]
fn there_is_one_editor_at_a_time() {
    let arena = Arena::new(1);
    let table = Table::new(&arena).unwrap();
    let editor = table.edit();
    assert!(editor.is_some() && table.edit().is_none());
    drop(editor);
    let change = table.edit().unwrap().zap(0..G, Tables::Keep);
    assert!(table.edit().is_none(), "a change is the editor");
    let _ = change.finish();
    assert!(table.edit().is_some());
}

#[test]
fn a_collapse_that_cannot_be_is_refused() {
    let arena = Arena::new(16);
    let table = table(&arena);
    let collapse = |range, level, pa, permissions| {
        table.edit().unwrap().collapse(range, level, PhysAddr(pa), permissions).err()
    };
    assert_eq!(collapse(0..M2, Level::Page2M, 0x1000, RWX), Some(MapError::Unaligned));
    assert_eq!(collapse(0x800..M2, Level::Page2M, 0x800, RWX), Some(MapError::Unaligned));
    assert_eq!(collapse(0..M2, Level::Page512G, 0, RWX), Some(MapError::Unaligned));
    assert_eq!(collapse(0..M2, Level::Page2M, 1 << 52, RWX), Some(MapError::OutOfRange));
    assert_eq!(collapse(0..M2, Level::Page2M, 0, Permissions::WRITE), Some(MapError::Permissions));
    assert!(table.edit().is_some());
}
