//! Real threads: faults against changes.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};

use super::arena::Arena;
use super::{RWX, never_walked};
use crate::{
    Amd64Nested, Arm64Stage2, Ept, Format, Gather, Level, MapError, PageTable, PhysAddr, Progress, Tables,
};

/// The walks in progress, as a flush engine tracks them: one counter for each thread, odd during a
/// walk.
struct Walks(Vec<AtomicU64>);

impl Walks {
    fn during<R>(&self, thread: usize, walk: impl FnOnce() -> R) -> R {
        self.0[thread].fetch_add(1, SeqCst);
        fence(SeqCst);
        let result = walk();
        self.0[thread].fetch_add(1, SeqCst);
        result
    }

    /// Waits for the walks that have begun.
    fn wait(&self) {
        fence(SeqCst);
        for count in &self.0 {
            let seen = count.load(SeqCst);
            while seen % 2 == 1 && count.load(Acquire) == seen {
                std::thread::yield_now();
            }
        }
    }
}

const FAULTERS: usize = if cfg!(miri) { 2 } else { 8 };
const PAGES: u64 = if cfg!(miri) { 1024 } else { 4096 };

/// The state that the threads share.
struct Chase<'a, F: Format> {
    table: PageTable<F, &'a Arena>,
    walks: Walks,
    stop: AtomicBool,
}

impl<F: Format> Chase<'_, F> {
    /// Faults on random pages until it is told to stop.
    fn fault_in(&self, thread: usize) {
        let mut random = thread as u64 + 1;
        while !self.stop.load(Relaxed) {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let address = ((random >> 33) % PAGES) << 12;
            let install = || self.table.install(address, PhysAddr(address), Level::Page4K, RWX);
            match self.walks.during(thread, install) {
                Ok(_) | Err(MapError::Raced) => {}
                Err(error) => panic!("{error}"),
            }
            // There may be fewer cores than threads; the thread that zaps needs its share.
            if random >> 60 == 0 {
                std::thread::yield_now();
            }
        }
    }

    /// Waits until some of the pages are mapped again.
    fn wait_for_faults(&self) {
        // Counted in the table, since others may have filled it before this thread arrived.
        let mapped = || {
            let mut count = 0;
            self.table.for_each(0..PAGES << 12, |_, _| count += 1);
            count
        };
        while mapped() < PAGES / 4 {
            std::thread::yield_now();
        }
    }
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Zaps everything repeatedly while the pages are faulted back in.
fn chase<F: Format>(tables: Tables, rounds: usize) {
    let arena = Arena::new(PAGES as usize / 512 * 3 + 16 + FAULTERS);
    let chase = Chase {
        table: PageTable::<F, _>::new(&arena).unwrap(),
        walks: Walks((0..FAULTERS).map(|_| AtomicU64::new(0)).collect()),
        stop: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        for thread in 0..FAULTERS {
            let chase = &chase;
            scope.spawn(move || chase.fault_in(thread));
        }
        // At the end and on failure: the scope waits for the threads.
        let _stop = StopOnDrop(&chase.stop);
        for _ in 0..rounds {
            chase.wait_for_faults();
            let gather = zap_by_steps(&chase.table, tables);
            chase.walks.wait();
            gather.release(&never_walked()).unwrap();
        }
    });
    let used_count = arena.used_count();
    let gather = chase.table.dismantle();
    assert_eq!(gather.release(&never_walked()).unwrap().table_count, used_count, "a table was lost");
    assert_eq!(arena.used_count(), 0);
}

fn zap_by_steps<'a, F: Format>(table: &PageTable<F, &'a Arena>, tables: Tables) -> Gather<&'a Arena> {
    let mut change = table.edit().unwrap().zap(0..PAGES << 12, tables);
    assert!(table.edit().is_none(), "one editor at a time");
    // Each step is bounded, and their number is known: no fault can increase it.
    let steps_max = (PAGES + PAGES / 512 + 3).div_ceil(97) + 1;
    for step in 0.. {
        assert!(step <= steps_max, "the faults keep the zap from ending");
        match change.step(97) {
            Progress::Done => break,
            progress => assert_eq!(progress, Progress::More),
        }
        std::thread::yield_now();
    }
    let gather = change.finish();
    assert!(gather.visited_count() * 100 <= PAGES * 101, "{} entries", gather.visited_count());
    gather
}

#[test]
fn p6_p7_a_zap_ends_while_pages_are_faulted_back_in() {
    let rounds = if cfg!(miri) { 1 } else { 8 };
    chase::<Amd64Nested>(Tables::Free, rounds);
    chase::<Amd64Nested>(Tables::Keep, rounds);
    chase::<Ept>(Tables::Free, rounds);
    chase::<Arm64Stage2<3>>(Tables::Free, rounds);
}
