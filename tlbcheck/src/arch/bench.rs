//! The cost of flushes: for the processor that makes them, and for each of the others.
//!
//! The others spin and read the counter: the time that a flush takes from them is a gap between two
//! readings, whatever has taken it. Where there are more of them than CPUs to run them they can
//! sleep instead; then the time taken from them is unknown. The first processor measures its own
//! call. Methods alternate, so that they share any disturbance.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrayvec::ArrayVec;
use baremetal::arch::clock;
use baremetal::arch::processors::MAX_PROCESSORS;
use tlbcheck::command_line::Options;
use tlbcheck::report::{Measurement, Stop, Totals, Unit, Verdict};
use tlbcheck::statistics::{Summary, processor_counts};

use super::console;
use super::testbed::{self, PATIENCE_MS};
use super::this::bench as own;

/// The maximum number of samples that can be requested.
const SAMPLES_MAX: usize = 1000;
/// The number of samples that are taken however long it takes.
const SAMPLES_MIN: usize = 11;

/// A gap is a time between two readings of at least this many times the shortest.
const GAP: u64 = 16;
/// Number of readings that determine the shortest time.
const LOOKS: u32 = 2000;

pub(super) trait Method: Copy {
    /// The name of the measurement, and the unit of its results.
    const BENCH: &'static str;
    const UNIT: Unit;
    /// Samples of each measurement, and uncounted ones before them.
    const SAMPLES: usize;
    const WARM_UP: usize;
    /// Time limit of one measurement in milliseconds, except for the minimum number of samples.
    const BUDGET_MS: u64;
    /// Flushes per sample.
    const BATCH: u64;
    /// Numbers of ranges to measure; 0 means a flush of everything.
    const RANGES: &'static [usize];

    fn name(self) -> &'static str;

    /// Whether it can flush so many ranges.
    fn exists(self, ranges: usize) -> bool;

    fn flush(self, others: &[usize], ranges: usize) -> Verdict;

    /// Ticks of the clock in the unit.
    fn amount(ticks: u64) -> u64;

    /// Makes the others, and the calling processor, participate while `work` runs.
    fn among(_others: &[usize], work: impl FnOnce() -> Verdict) -> Verdict {
        work()
    }
}

struct Watched {
    /// Ticks of all gaps; the first processor resets it between two samples.
    lost: AtomicU64,
    /// Number of readings so far; 0 until the shortest time is known. Stored after `lost`, with
    /// release against the first one's acquire.
    looks: AtomicU64,
}

static OTHERS: [Watched; MAX_PROCESSORS] =
    [const { Watched { lost: AtomicU64::new(0), looks: AtomicU64::new(0) } }; MAX_PROCESSORS];
static ENDS: AtomicBool = AtomicBool::new(false);
static SLEEPS: AtomicBool = AtomicBool::new(false);

fn lose_time(number: usize) {
    let Watched { lost, looks } = &OTHERS[number];
    let ends = || ENDS.load(Ordering::Acquire);
    own::begin();
    let (mut last, mut shortest) = (clock::now(), u64::MAX);
    for _ in 0..LOOKS {
        let now = clock::now();
        // The counter may be too slow to change between two readings.
        shortest = shortest.min((now - last).max(1));
        last = now;
    }
    let mut count = 1;
    looks.store(count, Ordering::Release);
    if SLEEPS.load(Ordering::Acquire) {
        own::sleep_until(ends);
    }
    while !ends() {
        let now = clock::now();
        if now - last > GAP * shortest {
            lost.fetch_add(now - last - shortest, Ordering::Relaxed);
        }
        last = now;
        count += 1;
        looks.store(count, Ordering::Release);
        own::relax();
    }
    own::end();
}

/// The samples of one method.
pub(super) struct Column<M> {
    method: M,
    own: ArrayVec<u64, SAMPLES_MAX>,
    others: ArrayVec<u64, SAMPLES_MAX>,
    /// It has failed, or does not exist: it is not used any more.
    is_out: bool,
}

impl<M: Method> Column<M> {
    pub(super) const fn new(method: M) -> Self {
        Self { method, own: ArrayVec::new_const(), others: ArrayVec::new_const(), is_out: false }
    }

    fn sample(&mut self, others: &[usize], ranges: usize, counts: bool) -> Verdict {
        let all = || others.iter().map(|number| &OTHERS[*number]);
        all().for_each(|other| other.lost.store(0, Ordering::Relaxed));
        let begin = clock::now();
        for _ in 0..M::BATCH {
            self.method.flush(others, ranges)?;
        }
        let spent = clock::now() - begin;
        // Waits for two more readings of each: then the gaps have been counted.
        for other in all().filter(|_| !SLEEPS.load(Ordering::Relaxed)) {
            let before = other.looks.load(Ordering::Acquire);
            clock::wait_until(PATIENCE_MS, || other.looks.load(Ordering::Acquire) >= before + 2);
        }
        if counts {
            let lost: u64 = all().map(|other| other.lost.load(Ordering::Relaxed)).sum();
            let _ = self.own.try_push(M::amount(spent) / M::BATCH);
            let _ = self.others.try_push(M::amount(lost) / M::BATCH / others.len().max(1) as u64);
        }
        Ok(())
    }

    fn report(&mut self, processors: usize, ranges: usize) {
        if self.is_out || self.own.is_empty() {
            return;
        }
        let is_known = processors > 1 && !SLEEPS.load(Ordering::Relaxed);
        let measured = Measurement {
            bench: M::BENCH,
            unit: M::UNIT,
            back_end: self.method.name(),
            processors,
            ranges,
            initiator: Summary::of(&mut self.own),
            target: is_known.then(|| Summary::of(&mut self.others)),
        };
        console::report(|report| report.measurement(&measured));
        self.own.clear();
        self.others.clear();
    }
}

/// Measures every method with every number of processors and of ranges.
pub(super) fn run<M: Method>(columns: &mut [Column<M>], options: &Options<'_>) -> Totals {
    let samples = options.rounds.map_or(M::SAMPLES, |rounds| (rounds as usize).min(SAMPLES_MAX));
    SLEEPS.store(options.targets_halt, Ordering::Release);
    let mut totals = Totals::default();
    for processors in processor_counts(testbed::get().processors) {
        let others: ArrayVec<usize, MAX_PROCESSORS> = (1..processors).collect();
        let work = || {
            for ranges in M::RANGES {
                measure(columns, &others, *ranges, samples, &mut totals);
                columns.iter_mut().for_each(|column| column.report(processors, *ranges));
            }
        };
        let verdict = M::among(&others, || with_others(&others, work));
        if verdict.is_ok() {
            totals.count(&verdict);
        }
        conclude("others", verdict, &mut totals);
    }
    totals
}

/// Runs `work` while the others measure their lost time.
fn with_others(others: &[usize], work: impl FnOnce()) -> Verdict {
    ENDS.store(false, Ordering::Release);
    for number in others {
        OTHERS[*number].looks.store(0, Ordering::Relaxed);
        testbed::give(*number, lose_time)?;
    }
    let ready = |number: &usize| OTHERS[*number].looks.load(Ordering::Acquire) != 0;
    let all_ready = clock::wait_until(PATIENCE_MS, || others.iter().all(ready));
    if all_ready {
        work();
    }
    ENDS.store(true, Ordering::Release);
    for number in others {
        own::wake(*number);
        testbed::join(*number)?;
    }
    tlbcheck::ensure!(all_ready, "not all of {} processors begin", others.len());
    Ok(())
}

/// Notes and counts the error of `who`, if there was one.
fn conclude(who: &str, verdict: Verdict, totals: &mut Totals) {
    if let Err(Stop::Fail(why) | Stop::Skip(why)) = &verdict {
        console::note(format_args!("{who}: {why}"));
        totals.count(&verdict);
    }
}

fn measure<M: Method>(
    columns: &mut [Column<M>],
    others: &[usize],
    ranges: usize,
    samples: usize,
    totals: &mut Totals,
) {
    let end = clock::now() + clock::ticks(M::BUDGET_MS * 1000);
    for number in 0..M::WARM_UP + samples {
        if number >= M::WARM_UP + SAMPLES_MIN && clock::now() > end {
            break;
        }
        let used = |column: &&mut Column<M>| !column.is_out && column.method.exists(ranges);
        for column in columns.iter_mut().filter(used) {
            let verdict = column.sample(others, ranges, number >= M::WARM_UP);
            column.is_out = verdict.is_err();
            conclude(column.method.name(), verdict, totals);
        }
    }
}
