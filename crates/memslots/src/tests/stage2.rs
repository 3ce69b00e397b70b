//! Jobs that detach, collapse, and log, mainly with the tables of Arm's stage 2.

use paging::{Arm64Stage2, FlushRange, Gpa, Invalidation, Level, Progress};

use super::arena::{
    Arena, Flushed, MIB, PAGE, fetch, leaf_count, run, run_by, slot, space_of, start_log, touch,
};
use crate::space::{Fault, GuestSpace, Job, LogWay, Steps, ZapWay};
use crate::{Slot, SlotError, SlotId};

const GIB: u64 = 1 << 30;

type Stage2 = Arm64Stage2<3>;
type TestMemory = GuestSpace<Stage2, &'static Arena>;

fn space(slots: &[Slot], largest: Level) -> (TestMemory, &'static Arena) {
    space_of(slots, largest)
}

/// A page in each of the tables of the gigabyte from 1 GiB on.
fn scattered(space: &TestMemory) {
    for at in (GIB..2 * GIB).step_by(2 * MIB as usize) {
        touch(space, at..at + PAGE);
    }
}

/// Steps to the first flush.
fn to_flush(job: &mut Job<'_, Stage2, &'static Arena>, entries_max: u32) -> u32 {
    (1..).find(|_| job.step(entries_max, |_| ()) == Progress::Flush).unwrap()
}

#[test]
fn s3_a_slot_of_whole_tables_is_at_its_flush_after_one_store() {
    let (space, arena) = space(&[slot(0, GIB, GIB)], Level::Page4K);
    scattered(&space);
    assert_eq!(arena.count(), 1 + 513);
    let mut job = space.remove(SlotId(0)).unwrap();
    assert_eq!(to_flush(&mut job, 1), 1, "the first step, of one entry");
    assert_eq!((job.report().visited, job.report().detached), (1, 1));
    let all = FlushRange { start: GIB, len: GIB, level: Level::Page4K, tables: true };
    assert_eq!(job.invalidation(), Invalidation::Ranges(&[all]));
    assert_eq!(arena.count(), 1 + 513, "f62d4c3eb687: nothing is freed before the invalidation");
    assert!(job.generation().is_none());
    assert!(job.flushed(&Flushed(space.stamp())));
    let (mut retired, mut before, mut steps) = (0, arena.count(), 0);
    while job.step(4 * 512, |_| retired += 1) != Progress::Done {
        assert!(before - arena.count() <= 4, "bounded steps");
        assert_eq!((retired, job.generation().is_some()), (1, true), "the slots are settled first");
        (before, steps) = (arena.count(), steps + 1);
    }
    assert!(steps >= 513 / 4);
    assert_eq!((job.report().tables, job.report().flushes, arena.count()), (513, 1, 1));
    assert_eq!(job.report().visited, 1 + 512, "each entry of the table of tables once");
}

#[test]
fn p3_faults_of_a_slot_that_moves_within_its_range_wait_for_the_flush_and_no_longer() {
    let (space, _) = space(&[slot(0, GIB, GIB)], Level::Page4K);
    scattered(&space);
    let mut job = space.move_to(SlotId(0), Gpa(GIB + 2 * MIB)).unwrap();
    to_flush(&mut job, 512);
    let fault = || space.fault(Gpa(GIB + 4 * MIB), true);
    assert_eq!(fault(), Fault::Retry, "a table may not be replaced before the flush");
    assert_eq!(space.fault(Gpa(GIB), true), space.fault(Gpa(3 * GIB), true), "nobody's memory now");
    assert!(job.flushed(&Flushed(space.stamp())));
    assert_ne!(job.step(512, |_| ()), Progress::Done, "tables are left");
    assert_eq!(fault(), Fault::Installed(Level::Page4K));
    while job.step(512, |_| ()) != Progress::Done {}
    drop(job);
    assert_eq!((leaf_count(&space, 0..4 * GIB), space.audit().unwrap().wrong_count), (1, 0));
}

#[test]
fn a_slot_page_by_page_takes_a_flush_for_each() {
    let (space, arena) = space(&[slot(0, GIB, 4 * MIB)], Level::Page4K);
    let space = space.zapping(ZapWay::PageByPage);
    touch(&space, GIB + PAGE..GIB + 2 * MIB + PAGE);
    let mut job = space.remove(SlotId(0)).unwrap();
    for page in 1..=512 {
        let steps = to_flush(&mut job, 0);
        assert!(page > 1 || steps == 4, "one entry in each");
        let one = FlushRange { start: GIB + page * PAGE, len: PAGE, level: Level::Page4K, tables: false };
        assert_eq!(job.invalidation(), Invalidation::Ranges(&[one]));
        assert!(job.flushed(&Flushed(space.stamp())));
    }
    to_flush(&mut job, 100);
    let tables = FlushRange { start: GIB, len: 4 * MIB, level: Level::Page4K, tables: true };
    assert_eq!(job.invalidation(), Invalidation::Ranges(&[tables]));
    assert!(job.flushed(&Flushed(space.stamp())));
    while job.step(512, |_| ()) != Progress::Done {}
    assert_eq!((job.report().flushes, job.report().tables, arena.count()), (513, 2, 2));
}

#[test]
fn p14_a_log_that_is_cancelled_leaves_a_gigabyte_in_one_page() {
    let (space, arena) = space(&[slot(0, GIB, GIB)], Level::Page1G);
    assert_eq!(space.fault(Gpa(GIB), true), Fault::Installed(Level::Page1G));
    run_by(&space, start_log(&space, 1 << 18, LogWay::DirtyBits), 1 << 16);
    assert_eq!((leaf_count(&space, 0..4 * GIB), arena.count()), (1 << 18, 1 + 513));
    let mut job = space.stop_log(SlotId(0)).unwrap();
    assert_eq!(to_flush(&mut job, 512), 2, "one for each size");
    let all = FlushRange { start: GIB, len: GIB, level: Level::Page4K, tables: true };
    assert_eq!(job.invalidation(), Invalidation::Ranges(&[all]));
    assert!(job.flushed(&Flushed(space.stamp())));
    while job.step(4096, |_| ()) != Progress::Done {}
    drop(job);
    let leaf = space.tables().query(GIB).unwrap();
    assert_eq!((leaf.level, leaf.is_dirty, arena.count()), (Level::Page1G, true, 1));
}

#[test]
fn a_collapse_is_a_job_of_its_own_and_not_for_slots_with_a_log() {
    let (space, arena) = space(&[slot(0, 2 * GIB, 4 * MIB)], Level::Page2M);
    // A page of 4 KiB before there may be large ones.
    space
        .tables()
        .install(2 * GIB, slot(0, 2 * GIB, PAGE).host, Level::Page4K, paging::Permissions::RWX)
        .unwrap();
    assert_eq!(leaf_count(&space, 0..4 * GIB), 1);
    let generation = space.slots().generation();
    let mut job = space.collapse(SlotId(0)).unwrap();
    to_flush(&mut job, 512);
    assert_eq!(space.collapse(SlotId(0)).err(), Some(SlotError::Busy));
    assert!(job.flushed(&Flushed(space.stamp())));
    while job.step(512, |_| panic!("nothing is retired")) != Progress::Done {}
    assert_eq!(job.generation(), Some(generation), "the slots are as they were");
    assert_eq!((job.report().tables, job.report().flushes), (1, 1));
    drop(job);
    assert_eq!(space.tables().query(2 * GIB).unwrap().level, Level::Page2M);
    assert_eq!(space.audit().unwrap().wrong_count, 0);
    assert_eq!(arena.count(), 2);
    run(&space, start_log(&space, 1024, LogWay::WriteFaults));
    assert_eq!(space.collapse(SlotId(0)).err(), Some(SlotError::HasLog));
    assert_eq!(space.collapse(SlotId(9)).err(), Some(SlotError::UnknownId));
}

#[test]
fn p14_leaves_of_a_log_by_faults_need_no_dirty_bits_of_the_processor() {
    let (space, _) = space(&[slot(0, GIB, 2 * MIB)], Level::Page4K);
    run(&space, start_log(&space, 512, LogWay::WriteFaults));
    assert!(!space.has_lists());
    assert_eq!(space.fault(Gpa(GIB), false), Fault::Installed(Level::Page4K));
    assert_eq!(fetch(&space, 0, 8)[0], 0, "a load is no store");
    for (gpa, fault) in [(GIB, Fault::Upgraded), (GIB + PAGE, Fault::Installed(Level::Page4K))] {
        assert_eq!(space.fault(Gpa(gpa), true), fault);
        let leaf = space.tables().query(gpa).unwrap();
        assert!(
            leaf.permissions.contains(paging::Permissions::WRITE) && leaf.is_dirty,
            "the store goes through"
        );
    }
    assert_eq!(fetch(&space, 0, 8)[0], 0b11);
    assert_eq!(space.fault(Gpa(GIB), true), Fault::Upgraded, "protected again");
    assert_eq!(fetch(&space, 0, 8)[0], 0b01);
}
