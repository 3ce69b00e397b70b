//! P3: formats that must break before they make.

use std::sync::atomic::Ordering::Relaxed;

use super::arena::Arena;
use super::observer::Observer;
use super::{G, M2, R, RWX, never_walked};
use crate::{
    Amd64Nested, Arm64Stage1, Arm64Stage2, FlushRange, Format, Installed, Level, PageTable, PhysAddr, Tables,
};

/// A table under observation, with memory mapped.
fn observed<F: Format>(arena: &Arena, len: u64, level: Level) -> PageTable<F, &Arena> {
    let mut table = PageTable::new(arena).unwrap();
    arena.watch(Observer::new::<F>(table.root()));
    arena.observe(|observer| observer.is_strict = true).unwrap();
    table.map(0..len, PhysAddr(G), RWX, level).unwrap();
    look(arena);
    arena.observe(|observer| observer.publish_count = 0).unwrap();
    table
}

fn look(arena: &Arena) {
    arena.observe(|observer| observer.look(arena)).unwrap();
}

fn breaks(arena: &Arena) -> Vec<FlushRange> {
    arena.observe(|observer| observer.breaks.clone()).unwrap()
}

fn publish_count(arena: &Arena) -> usize {
    arena.observe(|observer| observer.publish_count).unwrap()
}

/// Split, collapsed, and punched; cut off and filled again before a flush.
fn change_sizes<F: Format>() {
    let arena = Arena::new(16);
    let mut table = observed::<F>(&arena, G, Level::Page1G);
    let _ = table.edit().unwrap().split(0..G, Level::Page1G).finish();
    assert_eq!(breaks(&arena), [], "it has that size");
    table.edit().unwrap().split(0..M2, Level::Page4K).finish().release(&never_walked()).unwrap();
    look(&arena);
    let block = |len, level| FlushRange { start: 0, len, level, tables: false };
    assert_eq!(breaks(&arena), [block(G, Level::Page1G), block(M2, Level::Page2M)]);
    assert_eq!(publish_count(&arena), 6, "both breaks, the pieces of both, and the steps");
    let back = table.edit().unwrap().collapse(0..M2, Level::Page2M, PhysAddr(G), RWX).unwrap().finish();
    look(&arena);
    back.release(&never_walked()).unwrap();
    table.unmap(5 * M2 + 0x3000..5 * M2 + 0x4000).unwrap().release(&never_walked()).unwrap();
    look(&arena);
    assert_eq!(breaks(&arena).len(), 4);
    let cut = table.zap(5 * M2..6 * M2, Tables::Free);
    for page in 0..512 {
        let address = 5 * M2 + page * 0x1000;
        match table.install(address, PhysAddr(G + address), Level::Page4K, RWX).unwrap() {
            Installed::New(Level::Page4K) => {}
            other => panic!("{other:?}"),
        }
    }
    look(&arena);
    cut.release(&never_walked()).unwrap();
}

#[test]
fn p3_arm_breaks_before_it_makes() {
    change_sizes::<Arm64Stage2<3>>();
    change_sizes::<Arm64Stage2<4>>();
    change_sizes::<Arm64Stage1>();
}

#[test]
#[should_panic(expected = "is cached at Page1G, too")]
fn p3_the_automaton_notices_a_format_that_does_not_break() {
    change_sizes::<Amd64Nested>();
}

#[test]
fn p3_pieces_are_published_before_they_are_made_known() {
    let arena = Arena::new(8);
    let table = observed::<Arm64Stage2<4>>(&arena, G, Level::Page1G);
    table.edit().unwrap().split(0..G, Level::Page2M).finish().release(&never_walked()).unwrap();
    let (root, pdpt) = (
        table.root(),
        <Arm64Stage2<4>>::address(table.entries(table.root())[0].load(Relaxed), Level::Page4K),
    );
    for (at, entries) in super::arena::Arena::used(&arena).filter(|(at, _)| *at != root && *at != pdpt) {
        let held: Vec<_> = entries.iter().map(|entry| entry.load(Relaxed)).collect();
        assert_eq!(arena.observe(|observer| observer.published(at)), Some(Some(held.clone())));
        assert_ne!(held[0], 0);
    }
}

#[test]
fn p3_installing_publishes_tables_and_the_leaf() {
    let arena = Arena::new(8);
    let table = PageTable::<Arm64Stage2<3>, _>::new(&arena).unwrap();
    arena.watch(Observer::new::<Arm64Stage2<3>>(table.root()));
    table.install(0x1000, PhysAddr(0x1000), Level::Page4K, R).unwrap();
    look(&arena);
    assert_eq!(publish_count(&arena), 3, "two tables, one leaf");
    table.install(0x1000, PhysAddr(0x1000), Level::Page4K, RWX).unwrap();
    assert_eq!(publish_count(&arena), 4, "more rights");
}
