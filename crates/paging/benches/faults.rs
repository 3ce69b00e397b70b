//! Threads that fault pages of 4 KiB into one table, each its own GiB.
//!
//! Faults per second of wall-clock time are meaningful only for up to as many threads as there are
//! cores. So the benchmark also takes the time that each thread spends on a core, from its kernel
//! clock: the rate "with a core for each" is the sum of the threads' faults over their own time.
//! That rate does not show how more cores would slow each other down. For that, the benchmark
//! counts shared accesses: exchanges that fail, and exchanges in tables that several threads use.
//! All others are in a table that one thread has to itself.

use std::ptr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use quell_paging::{Amd64Nested, Entries, Installed, Level, PageTable, Permissions, PhysAddr, TableMemory};

const PAGES: u64 = (1 << 30) / 4096;
/// For four threads, with some spare.
const TABLES: usize = 4 * (PAGES as usize / 512) + 64;
const ROUNDS: usize = 25;

/// Tables from one piece, in order, zeroed by the thread that takes them, as kernels do; the
/// counter has a cache line of its own.
struct Pool {
    tables: Vec<Entries>,
    used: Line,
    freed: Line,
}

#[repr(align(128))]
struct Line(AtomicU64);

impl Pool {
    fn new() -> Self {
        let tables = (0..TABLES).map(|_| [const { AtomicU64::new(0) }; 512]).collect();
        Self { tables, used: Line(AtomicU64::new(0)), freed: Line(AtomicU64::new(0)) }
    }
}

// SAFETY: each table is allocated once, zeroed.
unsafe impl TableMemory for &Pool {
    fn allocate(&self) -> Option<PhysAddr> {
        let index = self.used.0.fetch_add(1, Relaxed);
        let table = self.tables.get(index as usize)?;
        table.iter().for_each(|entry| entry.store(0, Relaxed));
        Some(PhysAddr((index + 1) << 12))
    }
    unsafe fn free(&self, _: PhysAddr) {
        self.freed.0.fetch_add(1, Relaxed);
    }
    unsafe fn entries(&self, table: PhysAddr) -> &Entries {
        &self.tables[(table.0 >> 12) as usize - 1]
    }
}

/// Time that the calling thread has spent on a core.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of ours.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, ptr::from_mut(&mut time)) };
    assert_eq!(result, 0, "Linux has this clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The results of a round.
struct Round {
    wall: Duration,
    /// Of all threads.
    on_core: Duration,
    /// Faults that did not install their page.
    lost: u64,
    tables: u64,
    /// Tables that another thread was faster to create.
    spare: u64,
}

fn round(thread_count: u64) -> Round {
    let pool = Pool::new();
    let table = PageTable::<Amd64Nested, _>::new(&pool).unwrap();
    let barrier = Barrier::new(thread_count as usize + 1);
    let fault_in = |thread: u64| {
        barrier.wait();
        let (begin, start, mut lost) = (Instant::now(), thread_time(), 0);
        for page in thread * PAGES..(thread + 1) * PAGES {
            let address = page << 12;
            let result = table.install(address, PhysAddr(address), Level::Page4K, Permissions::RWX);
            lost += u64::from(result != Ok(Installed::New(Level::Page4K)));
        }
        let on_core = thread_time() - start;
        (begin, Instant::now(), on_core, lost)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..thread_count)
            .map(|thread| {
                scope.spawn({
                    let fault_in = &fault_in;
                    move || fault_in(thread)
                })
            })
            .collect();
        barrier.wait();
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let begin = results.iter().map(|result| result.0).min().unwrap();
        let end = results.iter().map(|result| result.1).max().unwrap();
        Round {
            wall: end - begin,
            on_core: results.iter().map(|result| result.2).sum(),
            lost: results.iter().map(|result| result.3).sum(),
            tables: pool.used.0.load(Relaxed),
            spare: pool.freed.0.load(Relaxed),
        }
    })
}

fn main() {
    println!(
        "{:>7} {:>14} {:>14} {:>9} {:>11} {:>14}",
        "threads", "Mfaults/s wall", "core for each", "scaling", "failed CAS", "shared entries"
    );
    const COUNTS: [u64; 3] = [1, 2, 4];
    // In turns, so that other activity of the machine affects all of them; the best of each counts.
    let mut rounds = COUNTS.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (rounds, threads) in rounds.iter_mut().zip(COUNTS) {
            rounds.push(round(threads));
        }
    }
    let mut single = None;
    for (rounds, threads) in rounds.iter().zip(COUNTS) {
        let faults = (threads * PAGES) as f64;
        let best = |time: fn(&Round) -> Duration| rounds.iter().map(time).min().unwrap().as_secs_f64();
        let wall = faults / best(|round| round.wall) / 1e6;
        let each = faults * threads as f64 / best(|round| round.on_core) / 1e6;
        let scaling = each / *single.get_or_insert(each);
        let failed = rounds.iter().map(|round| round.lost + round.spare).max().unwrap();
        // The root and the tables above the last level; each new table is one exchange in one of
        // them.
        let shared = rounds[0].tables as f64 / faults;
        println!("{threads:>7} {wall:>14.1} {each:>14.1} {scaling:>8.2}x {failed:>11} {shared:>8.5}/fault");
    }
}
