//! Frames that are held back until nothing reaches them.

use super::arena::Arena;
use super::{G, IssuedAt, RWX, never_walked};
use crate::{
    Amd64Nested, FRAME_RUNS_MAX, FrameRun, FrameRuns, Gather, Level, Look, PageTable, PhysAddr, Progress,
    Tables,
};

fn nested(arena: &Arena) -> PageTable<Amd64Nested, &Arena> {
    PageTable::new(arena).unwrap()
}

/// Zaps a range in steps of one entry, and takes the gather only when it must.
fn zap<'a>(table: &PageTable<Amd64Nested, &'a Arena>, tables: Tables) -> Vec<Gather<&'a Arena, FrameRuns>> {
    let mut change = table.edit().unwrap().zap(0..G, tables).with_frames();
    let mut gathers = Vec::new();
    loop {
        match change.step(1) {
            Progress::More => {}
            Progress::Flush => gathers.push(change.take_gather()),
            Progress::Done => {
                gathers.push(change.take_gather());
                return gathers;
            }
            Progress::OutOfTables | Progress::Waiting => panic!("nothing is split, nobody is waited for"),
        }
    }
}

#[test]
fn p2_frames_are_told_only_for_a_receipt_that_is_new_enough() {
    let arena = Arena::new(8);
    let table = nested(&arena);
    table.install(0x1000, PhysAddr(0x7000), Level::Page4K, RWX).unwrap();
    let before = IssuedAt(table.stamp());
    let gather = zap(&table, Tables::Keep).pop().unwrap();
    let gather = gather.release(&before).expect_err("the flush was issued before the zap");
    let released = gather.release(&IssuedAt(table.stamp())).unwrap();
    assert_eq!(released.frames(), [FrameRun { pa: PhysAddr(0x7000), len: 0x1000 }]);
}

#[test]
fn p2_no_frame_gets_lost_when_the_gather_is_full() {
    for tables in [Tables::Free, Tables::Keep] {
        let arena = Arena::new(8);
        let table = nested(&arena);
        // Every frame is a run of its own; a large page is among them.
        let count = 3 * FRAME_RUNS_MAX as u64 + 5;
        let mut expected = Vec::new();
        for page in 0..count {
            let pa = PhysAddr((2 * page + 1) << 12);
            table.install(page << 12, pa, Level::Page4K, RWX).unwrap();
            expected.push(FrameRun { pa, len: 0x1000 });
        }
        table.mark(count << 12, 1).unwrap();
        table.install(0x20_0000, PhysAddr(G), Level::Page2M, RWX).unwrap();
        expected.push(FrameRun { pa: PhysAddr(G), len: 0x20_0000 });

        let gathers = zap(&table, tables);
        assert_eq!(gathers.len(), 4);
        let mut found = Vec::new();
        for gather in gathers {
            found.extend_from_slice(gather.release(&never_walked()).unwrap().frames());
        }
        assert_eq!(found, expected, "{tables:?}");
        assert_eq!([count << 12, 0x20_0000].map(|address| table.look(address)), [Look::Absent; 2]);
    }
}

#[test]
fn neighbouring_frames_are_one_run() {
    let arena = Arena::new(8);
    let mut table = nested(&arena);
    table.map(0x1f_f000..0x60_1000, PhysAddr(G + 0x1f_f000), RWX, Level::Page2M).unwrap();
    let gathers = zap(&table, Tables::Free);
    assert_eq!(gathers.len(), 1);
    let released = gathers.into_iter().next().unwrap().release(&never_walked()).unwrap();
    assert_eq!(released.frames(), [FrameRun { pa: PhysAddr(G + 0x1f_f000), len: 0x40_2000 }]);
}
