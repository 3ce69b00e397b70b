//! The slots and the nested page table together.

use std::sync::atomic::Ordering::Relaxed;
use std::vec::Vec;

use paging::{FlushRange, Gpa, Invalidation, Level, PhysAddr, Progress};

use super::arena::*;
use crate::space::{Fault, Found, LogWay, Steps};
use crate::{Retired, SlotError, SlotId};

#[test]
fn a_removed_slot_takes_its_own_translations_and_no_others() {
    let slots = [slot(0, 0, 4 * MIB), slot(1, 4 * MIB, 64 * PAGE), slot(2, 6 * MIB, 2 * MIB)];
    let (space, arena) = space(&slots, Level::Page4K);
    for slot in &slots {
        touch(&space, slot.range());
    }
    let others = leaf_count(&space, 0..4 * MIB) + leaf_count(&space, 6 * MIB..8 * MIB);
    let tables = arena.count();
    let mut job = space.remove(SlotId(1)).unwrap();
    let mut retired = Vec::new();
    loop {
        match job.step(1000, |what| retired.push(what)) {
            Progress::Flush => assert!(job.flushed(&Flushed(space.stamp()))),
            Progress::Done => break,
            _ => {}
        }
        assert!(retired.is_empty() || job.report().flushes == 1, "handed back before the flush");
    }
    let report = job.report();
    assert!((64..=64 + 3).contains(&report.visited), "the slot's entries and the way there: {report:?}");
    assert_eq!((report.flushes, report.tables), (1, 0), "the table covers more than the slot");
    drop(job);
    assert_eq!(retired.len(), 1);
    assert_eq!(leaf_count(&space, slots[1].range()), 0);
    assert_eq!(leaf_count(&space, 0..8 * MIB), others, "no other translation has gone");
    assert_eq!(arena.count(), tables);
    assert_eq!(space.audit().unwrap().wrong_count, 0);
}

#[test]
fn p1_p2_nothing_is_given_back_before_the_flush_that_covers_it() {
    let (space, arena) = space(&[slot(0, 0, 2 * MIB)], Level::Page4K);
    touch(&space, 0..2 * MIB);
    let early = Flushed(space.stamp());
    let tables = arena.count();
    let mut job = space.remove(SlotId(0)).unwrap();
    let mut is_retired = false;
    while job.step(7, |_| is_retired = true) != Progress::Flush {}
    assert!(!job.flushed(&early), "a receipt from before the zap is worth nothing");
    assert_eq!(job.step(7, |_| is_retired = true), Progress::Flush);
    assert!(!is_retired && arena.count() == tables);
    assert!(job.flushed(&Flushed(space.stamp())));
    while job.step(7, |_| is_retired = true) != Progress::Done {}
    assert_eq!(arena.count(), tables - 1);
    assert!(is_retired);
}

#[test]
fn p6_faults_behind_the_zap_find_no_slot_and_bring_nothing_back() {
    let (space, _) = space(&[slot(0, 0, 2 * MIB)], Level::Page4K);
    touch(&space, 0..2 * MIB);
    let mut job = space.remove(SlotId(0)).unwrap();
    loop {
        match job.step(1, |_| ()) {
            Progress::Flush => assert!(job.flushed(&Flushed(space.stamp()))),
            Progress::Done => break,
            _ => {}
        }
        for gpa in (0..2 * MIB).step_by(64 * PAGE as usize) {
            assert!(matches!(space.fault(Gpa(gpa), true), Fault::Mmio { found: Found::Searched, .. }));
        }
    }
    assert!(job.report().visited <= 512 + 3, "{:?}", job.report());
    drop(job);
    assert_eq!(leaf_count(&space, 0..2 * MIB), 0);
}

#[test]
fn p9_p10_marks_hold_for_one_generation_and_are_not_made_during_an_update() {
    let (space, _) = space(&[slot(0, 0, 2 * MIB)], Level::Page4K);
    let device = Gpa(0xf000_0000);
    let found = |space: &TestMemory| match space.fault(device, false) {
        Fault::Mmio { found, generation } => (found, generation.is_in_progress()),
        other => panic!("{other:?}"),
    };
    assert_eq!(found(&space), (Found::Searched, false));
    assert_eq!(found(&space), (Found::Marked, false));
    // SAFETY: as in `space`.
    let mut job = unsafe { space.add(slot(1, 0xf000_0000, PAGE)) }.unwrap();
    assert!(
        matches!(space.fault(device, false), Fault::Installed(_)),
        "the new slot is visible, the mark void"
    );
    assert_eq!(space.fault(Gpa(0xf000_1000), false), space.fault(Gpa(0xf000_1000), false));
    assert!(matches!(space.fault(Gpa(0xf000_1000), false), Fault::Mmio { found: Found::Searched, .. }));
    while job.step(8, |_| ()) != Progress::Done {}
    drop(job);
    run(&space, space.remove(SlotId(1)).unwrap());
    assert_eq!(found(&space), (Found::Searched, false));
    assert_eq!(found(&space), (Found::Marked, false));
}

#[test]
fn a_guest_that_touches_addresses_everywhere_gets_no_more_than_a_few_tables() {
    let (space, arena) = space(&[slot(0, 0, 2 * MIB)], Level::Page4K);
    for index in 0..1000u64 {
        space.fault(Gpa((1 << 40) + index * (1 << 30)), false);
    }
    assert!(arena.count() < 70, "{} tables", arena.count());
}

#[test]
fn a_dirty_log_has_each_page_that_was_stored_to_once() {
    for way in [LogWay::DirtyBits, LogWay::WriteFaults, LogWay::Lists] {
        let (space, arena) = space(&[slot(0, 0, 8 * MIB)], Level::Page2M);
        touch(&space, 0..8 * MIB);
        assert_eq!(leaf_count(&space, 0..8 * MIB), 4, "large pages before");
        run(&space, start_log(&space, 2048, way));
        assert_eq!(leaf_count(&space, 0..8 * MIB), 2048, "split");
        assert_eq!(fetch(&space, 0, 32), [0; 32], "{way:?}: clean at first");
        for page in [0, 3, 64, 2047] {
            store(&space, arena, page * PAGE);
            store(&space, arena, page * PAGE);
        }
        let dirty = fetch(&space, 0, 32);
        let expected =
            |word| [(0, 0b1001), (1, 1), (31, 1 << 63)].iter().find(|(at, _)| *at == word).map_or(0, |x| x.1);
        assert!((0..32).all(|word| dirty[word] == expected(word)), "{way:?}: {dirty:x?}");
        assert_eq!(fetch(&space, 0, 32), [0; 32], "{way:?}: fetched once");
        store(&space, arena, 3 * PAGE);
        assert_eq!(fetch(&space, 0, 32)[0], 0b1000, "{way:?}: noticed again");
        let retired = run(&space, space.stop_log(SlotId(0)).unwrap());
        assert!(matches!(retired[..], [Retired::Log { .. }]));
        assert_eq!(leaf_count(&space, 0..8 * MIB), 4, "{way:?}: large again");
        assert_eq!(space.audit().unwrap().wrong_count, 0);
    }
}

#[test]
fn p14_a_slot_with_a_log_moves_by_two_flushes_and_nobody_stores_after_the_first() {
    let (space, arena) = space(&[slot(0, 0, 2 * MIB)], Level::Page4K);
    run(&space, start_log(&space, 512, LogWay::DirtyBits));
    let mut job = space.move_to(SlotId(0), Gpa(16 * MIB)).unwrap();
    // Without leaves, too: a fault that is under way may make one before either.
    for expected in [Progress::Flush, Progress::More, Progress::Flush, Progress::Done] {
        assert_eq!(job.step(512, |_| ()), expected);
        assert!(expected != Progress::Flush || job.flushed(&Flushed(space.stamp())));
    }
    drop(job);
    store(&space, arena, 16 * MIB);
    let mut job = space.move_to(SlotId(0), Gpa(0)).unwrap();
    while job.step(512, |_| ()) != Progress::Flush {}
    assert_eq!(space.tables().query(16 * MIB).unwrap().permissions, paging::Permissions::RX);
    run(&space, job);
    assert_eq!(fetch(&space, 0, 8)[0], 1);
}

#[test]
fn p1_p14_a_job_of_several_changes_frees_tables_before_it_gathers_more() {
    let (space, arena) = space(&[slot(0, 16 * MIB, 2 * MIB), slot(1, 0, 8 * MIB)], Level::Page4K);
    run(&space, start_log(&space, 512, LogWay::DirtyBits));
    touch(&space, 0..8 * MIB);
    store(&space, arena, 16 * MIB + 5 * PAGE);
    let update = |slots: &mut crate::Edit<'_, '_>| {
        slots.remove(SlotId(1))?;
        slots.move_to(SlotId(0), Gpa(32 * MIB))
    };
    let mut job = space.update(update).unwrap();
    let editor = space.tables().edit().unwrap();
    assert_eq!(job.step(8, |_| ()), Progress::Waiting, "somebody else edits");
    drop(editor);
    assert!(matches!(run(&space, job)[..], [Retired::Memory { .. }]));
    assert_eq!((leaf_count(&space, 0..64 * MIB), arena.count()), (0, 3));
    assert_eq!(fetch(&space, 0, 8)[0], 1 << 5);
}

#[test]
fn p14_a_fetch_flushes_what_it_has_protected_and_stays_done() {
    let (space, arena) = space(&[slot(0, 0, 2 * MIB)], Level::Page4K);
    run(&space, start_log(&space, 512, LogWay::WriteFaults));
    store(&space, arena, 3 * PAGE);
    let (early, mut words) = (Flushed(space.stamp()), [0; 8]);
    let mut job = space.fetch_log(SlotId(0), &mut words).unwrap();
    while job.step(512, |_| ()) != Progress::Flush {}
    let page = FlushRange { start: 3 * PAGE, len: PAGE, level: Level::Page4K, tables: false };
    assert_eq!(job.invalidation(), Invalidation::Ranges(&[page]));
    assert!(!job.flushed(&early) && job.flushed(&Flushed(space.stamp())));
    assert_eq!([(); 2].map(|()| job.step(512, |_| ())), [Progress::Done; 2]);
    assert_eq!(job.page_count(), Some(1));
}

#[test]
fn splitting_without_tables_left_zaps_instead() {
    let (space, arena) = space(&[slot(0, 0, 8 * MIB)], Level::Page2M);
    touch(&space, 0..8 * MIB);
    arena.limit.store(1, Relaxed);
    run(&space, start_log(&space, 2048, LogWay::DirtyBits));
    assert_eq!(leaf_count(&space, 0..8 * MIB), 0);
    arena.limit.store(u64::MAX, Relaxed);
    store(&space, arena, 7 * PAGE);
    assert_eq!(fetch(&space, 0, 32)[0], 1 << 7);
}

#[test]
fn read_only_memory_refuses_stores_and_may_become_writable() {
    let (space, _) = space(&[slot(0, 0, 2 * MIB)], Level::Page4K);
    touch(&space, 0..PAGE);
    run(&space, space.set_read_only(SlotId(0), true).unwrap());
    assert_eq!(space.fault(Gpa(0), true), Fault::ReadOnly);
    assert_eq!(space.audit().unwrap().wrong_count, 0);
    run(&space, space.set_read_only(SlotId(0), false).unwrap());
    assert_eq!(space.fault(Gpa(0), true), Fault::Upgraded);
}

#[test]
fn one_job_at_a_time_and_refusals_change_nothing() {
    let (space, _) = space(&[slot(0, 0, 2 * MIB)], Level::Page4K);
    let generation = space.slots().generation();
    // SAFETY: refused.
    let overlapping = unsafe { space.add(slot(1, MIB, 2 * MIB)) };
    assert_eq!(overlapping.err(), Some(SlotError::Overlap(SlotId(0))));
    assert_eq!(space.remove(SlotId(9)).err(), Some(SlotError::UnknownId));
    assert_eq!(space.stop_log(SlotId(0)).err(), Some(SlotError::NoLog));
    assert_eq!(space.fetch_log(SlotId(0), &mut [0; 8]).err(), Some(SlotError::NoLog));
    assert_eq!(space.slots().generation(), generation);
    let job = space.remove(SlotId(0)).unwrap();
    assert_eq!(space.remove(SlotId(0)).err(), Some(SlotError::Busy));
    assert_eq!(space.audit().err(), Some(SlotError::Busy));
    run(&space, job);
    assert!(space.slots().memory().get(SlotId(0)).is_none());
}

#[test]
fn an_audit_finds_a_translation_that_outlived_its_slot() {
    let (space, _) = space(&[slot(0, 0, 2 * MIB)], Level::Page4K);
    touch(&space, 0..4 * PAGE);
    run(&space, space.remove(SlotId(0)).unwrap());
    assert_eq!(space.audit().unwrap().leaf_count, 0);
    // The state that a zap would leave if it missed the translation.
    space.tables().install(0, PhysAddr(0x10_0000_0000), Level::Page4K, paging::Permissions::RWX).unwrap();
    let audit = space.audit().unwrap();
    assert_eq!((audit.leaf_count, audit.wrong_count), (1, 1));
}

#[test]
fn zapping_everything_takes_the_translations_of_other_slots_too() {
    let (space, _) = space(&[slot(0, 0, 2 * MIB), slot(1, 4 * MIB, PAGE)], Level::Page4K);
    let space = space.zapping_everything(true);
    touch(&space, 0..2 * MIB);
    run(&space, space.remove(SlotId(1)).unwrap());
    assert_eq!(leaf_count(&space, 0..8 * MIB), 0);
}

#[test]
fn a17_pieces_are_announced_before_there_are_any() {
    let (space, _) = space(&[slot(0, 0, 4 * MIB), slot(1, 4 * MIB, PAGE)], Level::Page2M);
    touch(&space, 0..4 * MIB);
    assert!(!space.has_pieces(), "large pages only");
    space.fault(Gpa(4 * MIB), true);
    assert!(space.has_pieces(), "a slot of one page");

    let (space, _) = self::space(&[slot(0, 0, 2 * MIB)], Level::Page2M);
    space.fault(Gpa(4 * MIB), false);
    // SAFETY: as in `space`.
    run(&space, unsafe { space.add(slot(1, 4 * MIB, 2 * MIB)) }.unwrap());
    assert!(!space.has_pieces(), "a mark is no page");
    space.fault(Gpa(4 * MIB), false);
    assert!(space.has_pieces(), "but its table makes small ones");

    let (space, _) = self::space(&[slot(0, 0, 2 * MIB)], Level::Page2M);
    let job = start_log(&space, 512, LogWay::DirtyBits);
    assert!(space.has_pieces(), "before the first page is split");
    run(&space, job);
}
