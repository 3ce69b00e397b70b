use std::sync::atomic::Ordering::Relaxed;

use super::arena::Arena;
use super::{G, M2, R, RW, RWX, RX, never_walked};
use crate::{
    Amd64Host, Amd64Nested, Format, Level, MapError, PageTable, Permissions, PhysAddr, TableMemory, Tables,
};

fn host(arena: &Arena) -> PageTable<Amd64Host, &Arena> {
    PageTable::new(arena).unwrap()
}

/// All leaves: start, level, permissions.
fn leaves<F: Format>(table: &PageTable<F, &Arena>) -> Vec<(u64, Level, Permissions)> {
    let mut found = Vec::new();
    table.for_each(0..u64::MAX, |range, mapping| {
        found.push((range.start, mapping.level, mapping.permissions))
    });
    found
}

fn count(leaves: &[(u64, Level, Permissions)], level: Level) -> usize {
    leaves.iter().filter(|leaf| leaf.1 == level).count()
}

#[test]
fn map_refuses_bad_ranges_and_frames() {
    let arena = Arena::new(16);
    let mut table = host(&arena);
    let mut map = |range, pa| table.map(range, PhysAddr(pa), R, Level::Page1G);
    assert_eq!(map(0..0x1800, 0), Err(MapError::Unaligned));
    assert_eq!(map(0..0x1000, 0x800), Err(MapError::Unaligned));
    assert_eq!(map(0..0x2000, (1 << 52) - 0x1000), Err(MapError::OutOfRange));
    assert_eq!(map(0..0x2000, u64::MAX - 0xfff), Err(MapError::OutOfRange));
    assert_eq!(map(0x1000..0x1000, 0), Ok(()), "nothing is mapped to nothing");
    assert_eq!(arena.used_count(), 1);
}

#[test]
fn map_takes_the_largest_pages_that_fit() {
    let arena = Arena::new(16);
    let mut table = host(&arena);
    table.map(M2 - 0x1000..2 * G + M2 + 0x1000, PhysAddr(M2 - 0x1000), RW, Level::Page1G).unwrap();
    let found = leaves(&table);
    assert_eq!(count(&found, Level::Page1G), 1);
    assert_eq!(count(&found, Level::Page2M), 511 + 1);
    assert_eq!(count(&found, Level::Page4K), 2);
    for address in [M2 - 0x1000, M2, G - 1, G, 2 * G - 1, 2 * G, 2 * G + M2 + 0xfff] {
        assert_eq!(table.query(address).unwrap().pa, PhysAddr(address));
    }
}

#[test]
fn map_takes_smaller_pages_where_the_frames_lie_differently() {
    let arena = Arena::new(1024);
    let mut table = host(&arena);
    table.map(0..G, PhysAddr(M2), RW, Level::Page1G).unwrap();
    assert_eq!(count(&leaves(&table), Level::Page2M), 512);
    table.map(G..G + M2, PhysAddr(0x1000), RW, Level::Page1G).unwrap();
    assert_eq!(count(&leaves(&table), Level::Page4K), 512);
}

#[test]
fn a_guard_page_is_punched_out_of_a_huge_page() {
    let arena = Arena::new(8);
    let mut table = host(&arena);
    table.map(0..2 * G, PhysAddr(0), RW, Level::Page1G).unwrap();
    let guard = G + 5 * M2 + 0x7000;
    let gather = table.unmap(guard..guard + 0x1000).unwrap();
    assert_eq!(gather.table_count(), 0);
    gather.release(&never_walked()).unwrap();
    assert_eq!(table.query(guard), None);
    assert_eq!(table.query(guard + 0xfff), None);
    let found = leaves(&table);
    let counts = [Level::Page1G, Level::Page2M, Level::Page4K].map(|level| count(&found, level));
    assert_eq!(counts, [1, 511, 511]);
    for address in (0..2 * G).step_by(0x10_0000).chain([guard - 1, guard + 0x1000]) {
        let mapping = table.query(address).unwrap();
        assert_eq!((mapping.pa, mapping.permissions), (PhysAddr(address), RW));
    }
}

#[test]
fn sections_end_up_with_their_own_permissions_and_none_with_w_and_x() {
    let arena = Arena::new(8);
    let mut table = host(&arena);
    table.map(0..G, PhysAddr(0), RW, Level::Page1G).unwrap();
    let sections = [
        (M2..M2 + 0x5000, RX),
        (M2 + 0x5000..M2 + 0x9000, R),
        (4 * M2..6 * M2, RX),
        (M2 + 0x9000..M2 + 0x9000, R), // an empty section
    ];
    for (range, permissions) in sections.clone() {
        table.protect(range, permissions).unwrap().release(&never_walked()).unwrap();
    }
    let both = Permissions::WRITE | Permissions::EXECUTE;
    assert!(leaves(&table).iter().all(|leaf| !leaf.2.contains(both)));
    for (range, permissions) in sections {
        for address in range.step_by(0x1000) {
            assert_eq!(table.query(address).unwrap().permissions, permissions);
        }
    }
    assert_eq!(table.query(M2 - 1).unwrap().permissions, RW);
    assert_eq!(table.query(M2 + 0x9000).unwrap().permissions, RW);
    assert_eq!(table.query(4 * M2).unwrap().level, Level::Page2M, "whole pages are not split");
}

#[test]
fn running_out_of_tables_while_splitting_changes_no_translation() {
    for capacity in 2..4 {
        let arena = Arena::new(capacity);
        let mut table = host(&arena);
        table.map(0..G, PhysAddr(0), RW, Level::Page1G).unwrap();
        assert_eq!(table.unmap(0x1000..0x2000).unwrap_err(), MapError::OutOfTables);
        assert_eq!(table.protect(0x1000..0x2000, R).unwrap_err(), MapError::OutOfTables);
        for address in [0, 0x1000, M2 - 1, M2, G - 1] {
            let mapping = table.query(address).unwrap();
            assert_eq!((mapping.pa, mapping.permissions), (PhysAddr(address), RW));
        }
    }
}

#[test]
fn p14_bits_that_the_processor_set_survive_splitting_and_protecting() {
    const DIRTY: u64 = 1 << 6;
    let arena = Arena::new(8);
    let mut table = PageTable::<Amd64Nested, _>::new(&arena).unwrap();
    // Not writable, so without D; then the processor is made to set it.
    table.map(0..G, PhysAddr(0), R, Level::Page1G).unwrap();
    let leaf = table.cell(first_entry(&table, table.root()), Level::Page1G, 0);
    leaf.fetch_or(DIRTY, Relaxed);
    table.protect(0..0x1000, RX).unwrap().release(&never_walked()).unwrap();
    let middle = first_entry(&table, first_entry(&table, table.root()));
    let last = first_entry(&table, middle);
    for (cell, what) in [
        (table.cell(middle, Level::Page2M, M2), "split off"),
        (table.cell(last, Level::Page4K, 0x1000), "split off twice"),
        (table.cell(last, Level::Page4K, 0), "protected"),
    ] {
        assert_ne!(cell.load(Relaxed) & DIRTY, 0, "{what}");
    }
}

fn first_entry(table: &PageTable<Amd64Nested, &Arena>, at: PhysAddr) -> PhysAddr {
    Amd64Nested::address(table.entries(at)[0].load(Relaxed), Level::Page4K)
}

#[test]
fn zap_takes_the_whole_page_that_its_range_touches() {
    let arena = Arena::new(8);
    let mut table = PageTable::<Amd64Nested, _>::new(&arena).unwrap();
    table.map(0..2 * M2, PhysAddr(0), RWX, Level::Page2M).unwrap();
    let gather = table.zap(M2 + 1..M2 + 2, Tables::Free);
    let range = crate::FlushRange { start: M2, len: M2, level: Level::Page2M, tables: false };
    assert_eq!(gather.invalidation(), crate::Invalidation::Ranges(&[range]));
    gather.release(&never_walked()).unwrap();
    assert_eq!(leaves(&table), [(0, Level::Page2M, RWX)]);
}

#[test]
fn s3_zapping_a_range_costs_what_the_range_holds() {
    let arena = Arena::new(64);
    let mut table = PageTable::<Amd64Nested, _>::new(&arena).unwrap();
    for gib in 0..16 {
        table.install(gib * G, PhysAddr(0), Level::Page4K, RWX).unwrap();
    }
    let gather = table.zap(3 * G..3 * G + 0x1000, Tables::Free);
    assert_eq!(gather.visited_count(), 4, "one entry per level");
    gather.release(&never_walked()).unwrap();
    let gather = table.zap(4 * G..5 * G, Tables::Free);
    assert_eq!(gather.visited_count(), 2, "root, and the entry of the PDPT that is cut");
    assert_eq!(gather.release(&never_walked()).unwrap().table_count, 2);
}

#[test]
fn both_halves_of_the_host_space_are_zapped() {
    let arena = Arena::new(16);
    let mut table = host(&arena);
    let high = 0xffff_ffff_8000_0000;
    table.map(high..high + G, PhysAddr(0), RW, Level::Page1G).unwrap();
    table.map(0..G, PhysAddr(0), RW, Level::Page1G).unwrap();
    assert_eq!(leaves(&table), [(0, Level::Page1G, RW), (high, Level::Page1G, RW)]);
    table.zap(0..u64::MAX, Tables::Free).release(&never_walked()).unwrap();
    assert_eq!(leaves(&table), []);
    assert_eq!(arena.used_count(), 1);
}

#[test]
fn dismantling_gives_back_every_table() {
    let arena = Arena::new(64);
    let mut table = host(&arena);
    table.map(0..3 * G + 0x3000, PhysAddr(0x1000), RW, Level::Page2M).unwrap_err();
    // The first part is mapped, as far as memory sufficed.
    let used_count = arena.used_count();
    assert_eq!(used_count, 64);
    let gather = table.dismantle();
    assert_eq!(arena.used_count(), used_count);
    assert_eq!(gather.release(&never_walked()).unwrap().table_count, used_count);
    assert_eq!(arena.used_count(), 0);
    assert!((&arena).allocate().is_some());
}
