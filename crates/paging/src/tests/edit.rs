use super::arena::Arena;
use super::{G, M2, R, RW, RX, never_walked};
use crate::{Amd64Host, Format, Level, MapError, PageTable, Permissions, PhysAddr, Tables};

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
    // Whole pages are not split for their rights.
    table.protect(4 * M2..6 * M2, RX).unwrap().release(&never_walked()).unwrap();
    assert_eq!(count(&leaves(&table), Level::Page2M), 511 + 1);
    assert_eq!([4 * M2 - 1, 4 * M2, 6 * M2].map(|at| table.query(at).unwrap().permissions), [RW, RX, RW]);
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
