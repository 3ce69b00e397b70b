//! A guest that works for ever beside others, and reports whether they disturb it.
//!
//! All its processors check memory whose contents they know, and registers with patterns. The first
//! one exchanges a page over and over and flushes it; the second one looks for the former page in
//! between (see `baremetal::watch`). No processor ever waits: where it could, it works. So the
//! guest wants all the time that it can get, and its share of the CPUs is its weight's.
//!
//! After each batch of `count=` flushes the first processor reports on what all have done and found
//! since the beginning, and how long the batch's flushes took.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod patterns;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use core::fmt::{self, Write};
use core::sync::atomic::AtomicBool;

use baremetal::arch::guarded;
use baremetal::arch::serial::REPORTS;
use baremetal::stops::Stops;
use baremetal::watch::Watched;
use hostile::latency::Latencies;

use super::window;
use patterns::Patterns;

use crate::tests::prelude::*;
#[cfg(target_arch = "aarch64")]
use aarch64 as own;
#[cfg(target_arch = "x86_64")]
use x86_64 as own;

/// Flushes of a batch, unless the orders name another number.
const COUNT: u64 = 500;
/// Units of work of the first processor between two flushes.
const UNITS: u64 = 4;
/// A time without a unit of work is a stop if it is longer than this.
const STOP_US: u64 = 20_000;
/// Units of work, of which it takes few, for which the second processor may not look.
const UNITS_MAX: u64 = 1 << 28;
/// Pages of the window: the one that is exchanged, and the one that is flushed to measure that.
const EXCHANGED: u64 = 0;
const MEASURED: u64 = 1;

static WATCHED: Watched = Watched::new();
static IS_WATCHING: AtomicBool = AtomicBool::new(false);
static LATENCIES: Mutex<Latencies> = Mutex::new(Latencies::new());

/// What the processors have done and found. Each only grows, and orders nothing else.
#[derive(Default)]
struct Tally {
    units: AtomicU64,
    words: AtomicU64,
    registers: AtomicU64,
    stops: AtomicU64,
    stopped: AtomicU64,
    longest: AtomicU64,
}

static TALLY: Tally = Tally {
    units: AtomicU64::new(0),
    words: AtomicU64::new(0),
    registers: AtomicU64::new(0),
    stops: AtomicU64::new(0),
    stopped: AtomicU64::new(0),
    longest: AtomicU64::new(0),
};

struct Worker {
    patterns: Patterns,
    registers: own::Registers,
    stops: Stops,
}

/// The first processor's, which works where it would wait.
static FIRST: Mutex<Option<Worker>> = Mutex::new(None);

impl Worker {
    fn new(number: usize) -> Self {
        let patterns = Patterns::new(machine::free_memory(), number, machine::count());
        let stops = Stops::new(clock::now(), clock::ticks(STOP_US));
        Self { patterns, registers: own::Registers::load(number), stops }
    }

    fn work(&mut self) {
        let words = self.patterns.check_one();
        let registers = self.registers.check();
        TALLY.units.fetch_add(1, Ordering::Relaxed);
        if words != 0 {
            TALLY.words.fetch_add(words, Ordering::Relaxed);
        }
        if registers != 0 {
            TALLY.registers.fetch_add(registers, Ordering::Relaxed);
        }
        let before = self.stops;
        self.stops.look(clock::now(), 0);
        if self.stops.count != before.count {
            TALLY.stops.fetch_add(1, Ordering::Relaxed);
            TALLY.stopped.fetch_add(self.stops.total - before.total, Ordering::Relaxed);
            TALLY.longest.fetch_max(self.stops.longest, Ordering::Relaxed);
        }
    }
}

/// Does not return, unless something cannot be done.
pub(super) fn bystander(orders: &Orders<'_>) -> Verdict {
    window::open();
    own::prepare()?;
    *FIRST.lock() = Some(Worker::new(0));
    window::map(MEASURED, WATCHED.page_of(0).address());
    let mut watch = WATCHED.begin(window::address(EXCHANGED), 1, 8, work_until);
    (1..machine::count()).for_each(|number| processors::give(number, follow));
    if !work_until(&|| IS_WATCHING.load(Ordering::Acquire)) {
        return Err(failure(format_args!("the second processor does not begin")));
    }
    let count = orders.count.unwrap_or(COUNT).max(1);
    let mut stale = 0;
    for batch in 1.. {
        for _ in 0..count {
            stale += watch.round(exchange, flush_exchanged)?;
            measure()?;
            (0..UNITS).for_each(|_| work());
        }
        tell(batch, count * batch, stale);
        // The report is work as well, and no stop.
        if let Some(worker) = FIRST.lock().as_mut() {
            worker.stops.skip(clock::now());
        }
    }
    Ok(())
}

fn follow(number: usize) {
    let mut worker = Worker::new(number);
    // Release: pairs with `bystander`.
    IS_WATCHING.store(true, Ordering::Release);
    loop {
        if number == 1 {
            // A page that is not mapped at the moment is not stale.
            WATCHED.look(|address| guarded::load(address).unwrap_or(u64::MAX));
        }
        worker.work();
    }
}

fn work() {
    if let Some(worker) = FIRST.lock().as_mut() {
        worker.work();
    }
}

/// Works until the condition holds; returns whether it does.
fn work_until(condition: &dyn Fn() -> bool) -> bool {
    (0..UNITS_MAX).any(|_| {
        work();
        condition()
    })
}

/// Maps a round's page instead of the former one.
fn exchange(round: u64) {
    let page = WATCHED.write_page(round).address();
    if window::CHANGES_AT_ONCE {
        window::map(EXCHANGED, page);
    } else {
        window::unmap(EXCHANGED);
    }
}

/// The page of the round that is being flushed is mapped afterwards where it could not be before.
fn flush_exchanged() -> Result<(), Failure> {
    own::flush(window::address(EXCHANGED))?;
    if !window::CHANGES_AT_ONCE {
        window::map(EXCHANGED, newer_page());
    }
    Ok(())
}

/// The page with the higher round in it.
fn newer_page() -> u64 {
    let [even, odd] = [0, 1].map(|round| WATCHED.page_of(round));
    let round = |page: &baremetal::pages::Page| page.words()[0].load(Ordering::Relaxed);
    if round(even) > round(odd) { even.address() } else { odd.address() }
}

/// A flush of a page on all processors, whose time is taken.
fn measure() -> Verdict {
    let begin = clock::now();
    own::flush(window::address(MEASURED))?;
    LATENCIES.lock().add(clock::now().saturating_sub(begin));
    Ok(())
}

/// A batch's counts of latencies, as pairs of nanoseconds and counts.
struct Pairs<'a>(&'a Latencies);

impl fmt::Display for Pairs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (ticks, count)) in self.0.counts().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}[{},{count}]", clock::nanoseconds(ticks))?;
        }
        Ok(())
    }
}

fn tell(batch: u64, flushes: u64, stale: u64) {
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let Tally { units, words, registers, stops, stopped, longest } = &TALLY;
    let mut latencies = LATENCIES.lock();
    let _ = write!(
        { REPORTS },
        "\r\n{{\"event\":\"batch\",\"batch\":{batch},\"flushes\":{flushes},\"stale\":{stale},\"units\":{},\
         \"words\":{},\"registers\":{},\"stops\":{},\"stopped_ns\":{},\"longest_ns\":{},\"latency\":[{}]}}\r\n",
        load(units),
        load(words),
        load(registers),
        load(stops),
        clock::nanoseconds(load(stopped)),
        clock::nanoseconds(load(longest)),
        Pairs(&latencies),
    );
    latencies.clear();
}
