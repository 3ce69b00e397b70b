//! Translations of a guest's guest.

use std::collections::BTreeMap;

use paging::guest::Translation;
use paging::{Gpa, Level, Permissions};
use proptest::prelude::*;

use super::arena::*;
use crate::SlotId;
use crate::space::{Filled, LogWay, Shadow};

type TestShadow = Shadow<paging::Amd64Nested, &'static Arena>;

const MUCH: u32 = 1000;

/// What the guest's tables say: all rights.
fn theirs(gpa: u64, page_size: u64) -> Translation {
    let [is_writable, is_executable, is_dirty] = [true; 3];
    Translation { gpa: Gpa(gpa), page_size, is_writable, is_executable, is_dirty }
}

/// By address: where each leaf leads, and what it allows besides loads.
fn leaves(shadow: &TestShadow) -> BTreeMap<u64, (u64, bool, bool)> {
    let mut found = BTreeMap::new();
    shadow.for_each(|at, pa, rights| {
        let has = |right| rights.contains(right);
        found.insert(at, (pa.0, has(Permissions::WRITE), has(Permissions::EXECUTE)));
    });
    found
}

fn empty(shadow: &mut TestShadow) {
    // SAFETY: no processor has the tables of these tests.
    unsafe { shadow.empty() };
}

/// Where the memory of these slots is.
const HOST: u64 = 0x10_0000_0000;

#[test]
fn a_leaf_has_the_rights_and_the_size_that_both_levels_give() {
    let read_only = crate::Slot { flags: crate::SlotFlags::READ_ONLY, ..slot(1, 8 * MIB, 2 * MIB) };
    let (space, _) = space(&[slot(0, 0, 8 * MIB), read_only], Level::Page2M);
    let mut shadow = Shadow::new(&space).unwrap();
    let large = 2 * MIB;
    let mut leaf = |at: u64, said: Translation, is_store: bool| {
        empty(&mut shadow);
        match shadow.fill(&space, at, &said, is_store, MUCH) {
            Filled::Leaf => Ok(leaves(&shadow).first_key_value().map(|(at, leaf)| (*at, *leaf)).unwrap()),
            refused => Err(refused),
        }
    };
    let at = 0x4000_0000;
    assert_eq!(leaf(at + 5, theirs(large + 5, large), false), Ok((at, (HOST + large, true, true))));
    assert_eq!(
        leaf(at + PAGE, theirs(large + PAGE, PAGE), false),
        Ok((at + PAGE, (HOST + large + PAGE, true, true)))
    );
    assert_eq!(leaf(at, theirs(large, 1 << 30), false), Ok((at, (HOST + large, true, true))), "cut to ours");
    let clean = Translation { is_dirty: false, ..theirs(large, large) };
    assert_eq!(leaf(at, clean, false), Ok((at, (HOST + large, false, true))), "N17: its D bit is to be set");
    assert_eq!(leaf(at, clean, true), Ok((at, (HOST + large, true, true))));
    let plain = Translation { is_writable: false, is_executable: false, ..theirs(0, large) };
    assert_eq!(leaf(at, plain, false), Ok((at, (HOST, false, false))));
    assert_eq!(leaf(at, theirs(8 * MIB, large), false), Ok((at, (HOST + 8 * MIB, false, true))));
    assert_eq!(leaf(at, theirs(8 * MIB, large), true), Err(Filled::ReadOnly));
    assert_eq!(leaf(at, theirs(10 * MIB, large), false), Err(Filled::NoMemory));
}

/// What the guest changes without a flush is no reason to fault for ever.
#[test]
fn n15_what_contradicts_a_leaf_is_told_and_nothing_is_in_both_sizes() {
    let (space, arena) = space(&[slot(0, 0, 8 * MIB)], Level::Page2M);
    let mut shadow = Shadow::new(&space).unwrap();
    let tables = arena.count();
    let fill = |shadow: &mut TestShadow, said| shadow.fill(&space, said, &theirs(said, 2 * MIB), true, MUCH);
    assert_eq!(fill(&mut shadow, 0), Filled::Leaf);
    assert_eq!(
        shadow.fill(&space, PAGE, &theirs(PAGE, PAGE), true, MUCH),
        Filled::Leaf,
        "it is in the large one"
    );
    assert_eq!(leaves(&shadow).len(), 1);
    assert_eq!(shadow.fill(&space, PAGE, &theirs(3 * PAGE, PAGE), true, MUCH), Filled::Full, "another place");
    empty(&mut shadow);
    assert_eq!((leaves(&shadow).len(), arena.count(), shadow.table_count()), (0, tables, 1));
    assert_eq!(shadow.fill(&space, PAGE, &theirs(3 * PAGE, PAGE), true, MUCH), Filled::Leaf);
    assert_eq!(fill(&mut shadow, 0), Filled::Leaf, "a piece beside it");
    assert_eq!(fill(&mut shadow, PAGE), Filled::Full);
}

#[test]
fn a_shadow_takes_no_more_tables_than_it_may() {
    let (space, arena) = space(&[slot(0, 0, 8 * MIB)], Level::Page4K);
    let mut shadow = Shadow::new(&space).unwrap();
    let before = arena.count();
    let fill = |shadow: &mut TestShadow, at, max| shadow.fill(&space, at, &theirs(0, PAGE), false, max);
    assert_eq!(fill(&mut shadow, 0, 2), Filled::Full, "three are needed");
    assert_eq!(fill(&mut shadow, 0, 3), Filled::Leaf);
    assert_eq!((shadow.table_count(), arena.count()), (4, before + 3));
    assert_eq!(fill(&mut shadow, 511 * PAGE, 0), Filled::Leaf, "there is room in them");
    assert_eq!(fill(&mut shadow, 2 * MIB, 0), Filled::Full);
    assert_eq!(fill(&mut shadow, 1 << 47, 3), Filled::Leaf);
    assert_eq!(shadow.table_count(), 7);
    arena.limit.store(1, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(fill(&mut shadow, 1 << 40, MUCH), Filled::Full, "the pool has no more");
    empty(&mut shadow);
    assert_eq!((shadow.table_count(), arena.count()), (1, before));
}

/// N17, in each way that stores are logged.
#[test]
fn n17_each_store_of_a_guests_guest_is_in_a_log() {
    for way in [LogWay::DirtyBits, LogWay::WriteFaults, LogWay::Lists] {
        let (space, _) = space(&[slot(0, 0, 8 * MIB)], Level::Page2M);
        let mut shadow = Shadow::new(&space).unwrap();
        run(&space, start_log(&space, 2048, way));
        fetch(&space, 0, 32);
        let at = 1 << 30;
        let fill = |shadow: &mut TestShadow, page: u64, is_store| {
            shadow.fill(&space, at + page * PAGE, &theirs(page * PAGE, 2 * MIB), is_store, MUCH)
        };
        let writable = |shadow: &TestShadow| leaves(shadow).values().filter(|leaf| leaf.1).count();
        (0..8).for_each(|page| assert_eq!(fill(&mut shadow, page, false), Filled::Leaf));
        assert_eq!((leaves(&shadow).len(), writable(&shadow)), (8, 0), "{way:?}: pieces that refuse stores");
        assert_eq!(fill(&mut shadow, 3, true), Filled::Leaf);
        assert_eq!((leaves(&shadow).len(), writable(&shadow)), (8, 1), "{way:?}: the page alone");
        assert_eq!(fetch(&space, 0, 32)[0], 0b1000, "{way:?}");
        // The fetch has flushed, so the shadow was emptied.
        empty(&mut shadow);
        assert_eq!(fetch(&space, 0, 32)[0], 0);
        assert_eq!(fill(&mut shadow, 3, true), Filled::Leaf);
        assert_eq!(fetch(&space, 0, 32)[0], 0b1000, "{way:?}: noticed again");
        run(&space, space.stop_log(SlotId(0)).unwrap());
        empty(&mut shadow);
        assert_eq!(fill(&mut shadow, 0, false), Filled::Leaf);
        assert_eq!(leaves(&shadow).len(), 1, "{way:?}: large again");
    }
}

proptest! {
    /// N13, N14: a shadow has what both levels have had since it was emptied, and nothing else.
    #[test]
    fn n13_n14_a_shadow_has_what_both_levels_have_had_since_it_was_emptied(
        steps in prop::collection::vec((0u8..8, 0u64..16, 0u64..24, any::<[bool; 4]>()), 1..120),
    ) {
        let (space, arena) = space(&[slot(0, 0, 16 * PAGE)], Level::Page4K);
        let mut shadow = Shadow::new(&space).unwrap();
        let before = arena.count();
        // By page of the guest's guest: what was filled in there since it was emptied.
        let mut should = BTreeMap::<u64, Vec<(u64, bool, bool)>>::new();
        let mut has_second = false;
        for (step, at, page, [is_writable, is_executable, is_dirty, is_store]) in steps {
            match step {
                0 => {
                    // Slot 1 comes or goes, and nested translations are flushed.
                    if has_second {
                        run(&space, space.remove(SlotId(1)).unwrap());
                    } else {
                        // SAFETY: nothing accesses the memory.
                        run(&space, unsafe { space.add(slot(1, 16 * PAGE, 4 * PAGE)) }.unwrap());
                    }
                    has_second = !has_second;
                    empty(&mut shadow);
                    should.clear();
                }
                1 => {
                    empty(&mut shadow);
                    should.clear();
                }
                _ => {
                    let is_store = is_store && is_writable;
                    let said = Translation { is_writable, is_executable, is_dirty: is_dirty || is_store,
                        ..theirs(page * PAGE, PAGE) };
                    let filled = shadow.fill(&space, at * PAGE, &said, is_store, MUCH);
                    let is_there = page < 16 + if has_second { 4 } else { 0 };
                    prop_assert_eq!(filled == Filled::NoMemory, !is_there);
                    if filled == Filled::Leaf {
                        let leaf = (HOST + page * PAGE, is_writable && said.is_dirty, is_executable);
                        should.entry(at * PAGE).or_default().push(leaf);
                    }
                }
            }
            let found = leaves(&shadow);
            prop_assert_eq!(found.keys().collect::<Vec<_>>(), should.keys().collect::<Vec<_>>());
            for (at, (pa, writes, executes)) in found {
                let had = &should[&at];
                prop_assert!(had.iter().all(|leaf| leaf.0 == pa), "one place");
                prop_assert_eq!(writes, had.iter().any(|leaf| leaf.1), "rights only grow");
                prop_assert_eq!(executes, had.iter().any(|leaf| leaf.2));
            }
        }
        empty(&mut shadow);
        prop_assert_eq!(arena.count(), before);
    }
}
