//! The cost of TLBIs: for the CPU that issues them, and for each of the others.
//!
//! The others spin and read the counter: the time that a broadcast takes from them is a gap between
//! two readings. Where there are more of them than CPUs to run them they can sleep instead; then
//! the time taken from them is unknown. The named pages are not mapped: only the instruction and
//! its propagation are measured, not the walks that follow. A sample covers many flushes, because
//! the counter is slow; forms alternate, so that they share any disturbance.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrayvec::ArrayVec;
use baremetal::aarch64::processors::MAX_PROCESSORS;
use baremetal::aarch64::{clock, interrupts, processors};
use baremetal::pages::PAGE;
use spin::Mutex;
use tlbcheck::arm64::Range;
use tlbcheck::command_line::Options;
use tlbcheck::report::{Measurement, Totals, Unit, Verdict};
use tlbcheck::statistics::{Summary, processor_counts};

use super::machine::{self, PATIENCE_MS};
use super::tlbi::{self, Form, Kind, Scope, TlbiOperand};
use super::window::WINDOW;
use crate::arch::console;

/// Samples of each measurement, uncounted ones before them, and the maximum number that can be
/// requested.
const SAMPLES: usize = 51;
const WARM_UP: usize = 3;
const SAMPLES_MAX: usize = 1000;
/// Flushes per sample.
const BATCH: u64 = 16;
/// Time limit of one measurement in milliseconds, except for a minimum number of samples.
const BUDGET_MS: u64 = 2000;
const SAMPLES_MIN: usize = 11;

/// Pages of a flush; 0 means everything.
const RANGES: [usize; 6] = [0, 1, 2, 8, 64, 512];

/// A gap is a time between two readings of at least this many times the shortest.
const GAP: u64 = 16;
/// Number of readings that determine the shortest time.
const LOOKS: u32 = 2000;

/// The method that is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FlushMethod {
    /// Only the barriers.
    Barriers,
    /// A TLBI for each page, of the processor's own TLB.
    Local,
    /// A TLBI for each page, of all TLBs.
    Inner,
    /// One TLBI for all pages, of all TLBs.
    Range,
}

const WAYS: [FlushMethod; 4] =
    [FlushMethod::Barriers, FlushMethod::Local, FlushMethod::Inner, FlushMethod::Range];

impl FlushMethod {
    const fn name(self) -> &'static str {
        match self {
            Self::Barriers => "dsb-ish",
            Self::Local => "tlbi-local",
            Self::Inner => "tlbi-is",
            Self::Range => "tlbi-range-is",
        }
    }

    /// The range of this many pages, in the smallest possible unit.
    fn range(pages: usize) -> Option<Range> {
        let all = (0..4).flat_map(|scale| (0..32).filter_map(move |num| Range::new(num, scale)));
        all.into_iter().find(|range| range.pages() == pages as u64)
    }

    fn exists(self, pages: usize) -> bool {
        match self {
            Self::Barriers => pages == 0,
            Self::Range => machine::get().platform.has_ranges && Self::range(pages).is_some(),
            Self::Local | Self::Inner => true,
        }
    }

    /// One flush, with its barriers.
    fn flush(self, pages: usize) {
        let scope = if self == Self::Local { Scope::Local } else { Scope::Inner };
        let kind = if pages == 0 { Kind::All } else { Kind::VaLast };
        tlbi::order(scope);
        match self {
            Self::Barriers => {}
            Self::Range => {
                let target = TlbiOperand { range: Self::range(pages), ..TlbiOperand::page(WINDOW, 0) };
                tlbi::issue(Form(scope, kind), target);
            }
            Self::Local | Self::Inner => {
                for page in 0..pages.max(1) as u64 {
                    tlbi::issue(Form(scope, kind), TlbiOperand::page(WINDOW + page * PAGE, 0));
                }
            }
        }
        tlbi::complete(scope);
    }
}

/// The data that a target reports.
struct Other {
    /// Ticks of all gaps; the first processor resets it between two samples.
    lost: AtomicU64,
    /// Number of readings so far; 0 until the shortest time is known. Stored after `lost`, with
    /// release against the first one's acquire.
    looks: AtomicU64,
}

static OTHERS: [Other; MAX_PROCESSORS] =
    [const { Other { lost: AtomicU64::new(0), looks: AtomicU64::new(0) } }; MAX_PROCESSORS];
static ENDS: AtomicBool = AtomicBool::new(false);
/// Whether the others sleep.
static SLEEPS: AtomicBool = AtomicBool::new(false);

/// The job of each of the others.
fn lose_time(number: usize) {
    let Other { lost, looks } = &OTHERS[number];
    let (mut last, mut shortest) = (clock::now(), u64::MAX);
    for _ in 0..LOOKS {
        let now = clock::now();
        // The counter may be too slow to change between two readings.
        shortest = shortest.min((now - last).max(1));
        last = now;
    }
    let mut count = 1;
    looks.store(count, Ordering::Release);
    while !ENDS.load(Ordering::Acquire) {
        if SLEEPS.load(Ordering::Relaxed) {
            interrupts::wait();
            continue;
        }
        let now = clock::now();
        if now - last > GAP * shortest {
            lost.fetch_add(now - last - shortest, Ordering::Relaxed);
        }
        last = now;
        count += 1;
        looks.store(count, Ordering::Release);
        clock::relax();
    }
}

/// The samples of one method, in nanoseconds per flush.
struct Column {
    way: FlushMethod,
    own: ArrayVec<u64, SAMPLES_MAX>,
    others: ArrayVec<u64, SAMPLES_MAX>,
}

impl Column {
    const fn new(way: FlushMethod) -> Self {
        Self { way, own: ArrayVec::new_const(), others: ArrayVec::new_const() }
    }

    fn sample(&mut self, others: core::ops::Range<usize>, pages: usize, counts: bool) {
        let all = || others.clone().map(|number| &OTHERS[number]);
        all().for_each(|other| other.lost.store(0, Ordering::Relaxed));
        let begin = clock::now();
        (0..BATCH).for_each(|_| self.way.flush(pages));
        let spent = clock::now() - begin;
        // Waits for two more readings of each: then the gaps have been counted.
        for other in all().filter(|_| !SLEEPS.load(Ordering::Relaxed)) {
            let before = other.looks.load(Ordering::Acquire);
            clock::wait_until(PATIENCE_MS, || other.looks.load(Ordering::Acquire) >= before + 2);
        }
        if counts {
            let lost: u64 = all().map(|other| other.lost.load(Ordering::Relaxed)).sum();
            let _ = self.own.try_push(clock::nanoseconds(spent) / BATCH);
            let _ = self.others.try_push(clock::nanoseconds(lost) / BATCH / others.len().max(1) as u64);
        }
    }

    /// Reports the samples and clears them.
    fn report(&mut self, processors: usize, pages: usize) {
        if self.own.is_empty() {
            return;
        }
        let is_known = processors > 1 && !SLEEPS.load(Ordering::Relaxed);
        let measured = Measurement {
            bench: "tlbi",
            unit: Unit::Nanoseconds,
            back_end: self.way.name(),
            processors,
            ranges: pages,
            initiator: Summary::of(&mut self.own),
            target: is_known.then(|| Summary::of(&mut self.others)),
        };
        console::report(|report| report.measurement(&measured));
        self.own.clear();
        self.others.clear();
    }
}

/// Too large for a stack.
static COLUMNS: Mutex<[Column; WAYS.len()]> =
    Mutex::new([Column::new(WAYS[0]), Column::new(WAYS[1]), Column::new(WAYS[2]), Column::new(WAYS[3])]);

/// Measures every method with every number of processors and of pages.
pub(in crate::arch) fn run(options: &Options<'_>) -> Totals {
    let samples = options.rounds.map_or(SAMPLES, |rounds| (rounds as usize).min(SAMPLES_MAX));
    SLEEPS.store(options.targets_halt, Ordering::Release);
    let mut columns = COLUMNS.lock();
    let mut totals = Totals::default();
    for processors in processor_counts(machine::get().processors) {
        let verdict = with_others(1..processors, |others| {
            for pages in RANGES {
                measure(&mut columns[..], others.clone(), pages, samples);
                columns.iter_mut().for_each(|column| column.report(processors, pages));
            }
        });
        if let Err(stop) = &verdict {
            console::note(format_args!("with {processors} processors: {stop:?}"));
        }
        totals.count(&verdict);
    }
    totals
}

/// Runs `work` while the others measure their lost time.
fn with_others(others: core::ops::Range<usize>, work: impl FnOnce(core::ops::Range<usize>)) -> Verdict {
    ENDS.store(false, Ordering::Release);
    for number in others.clone() {
        OTHERS[number].looks.store(0, Ordering::Relaxed);
        machine::give(number, lose_time)?;
    }
    let ready = |number: usize| OTHERS[number].looks.load(Ordering::Acquire) != 0;
    let all_ready = clock::wait_until(PATIENCE_MS, || others.clone().all(ready));
    if all_ready {
        work(others.clone());
    }
    ENDS.store(true, Ordering::Release);
    for number in others.clone() {
        processors::wake(number);
        machine::join(number)?;
    }
    tlbcheck::ensure!(all_ready, "not all of {} processors begin", others.len());
    Ok(())
}

/// Takes samples of all methods in turn.
fn measure(columns: &mut [Column], others: core::ops::Range<usize>, pages: usize, samples: usize) {
    let end = clock::now() + clock::ticks(BUDGET_MS * 1000);
    for number in 0..WARM_UP + samples {
        if number >= WARM_UP + SAMPLES_MIN && clock::now() > end {
            break;
        }
        for column in columns.iter_mut().filter(|column| column.way.exists(pages)) {
            column.sample(others.clone(), pages, number >= WARM_UP);
        }
    }
}
