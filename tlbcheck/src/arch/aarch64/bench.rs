//! What TLBIs cost: the CPU that issues them, and each of the others.
//!
//! The others spin and look at the counter: what a broadcast takes of them is a gap between two
//! looks. Where they are more than there are CPUs to run them they can sleep instead; then what it
//! takes of them is not known. The pages that are named are mapped nowhere: what is measured is the
//! instruction and its way, not the walks that come afterwards. A sample is of many flushes, since
//! the counter is slow; forms take turns, so that they share whatever else goes on.

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

/// Samples of each measurement, those before that do not count, and most that can be asked for.
const SAMPLES: usize = 51;
const WARM_UP: usize = 3;
const SAMPLES_MAX: usize = 1000;
/// Flushes of a sample.
const BATCH: u64 = 16;
/// How long one measurement goes on at most, in milliseconds, but for so many samples.
const BUDGET_MS: u64 = 2000;
const SAMPLES_MIN: usize = 11;

/// Pages of a flush; 0 stands for everything.
const RANGES: [usize; 6] = [0, 1, 2, 8, 64, 512];

/// A gap is a time between two looks that is so many times the shortest.
const GAP: u64 = 16;
/// Looks by which the shortest is found.
const LOOKS: u32 = 2000;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The barriers alone.
    Barriers,
    /// A TLBI for each page, of the processor's own TLB.
    Local,
    /// A TLBI for each page, of all TLBs.
    Inner,
    /// One TLBI for all pages, of all TLBs.
    Range,
}

const WAYS: [Way; 4] = [Way::Barriers, Way::Local, Way::Inner, Way::Range];

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::Barriers => "dsb-ish",
            Self::Local => "tlbi-local",
            Self::Inner => "tlbi-is",
            Self::Range => "tlbi-range-is",
        }
    }

    /// The range of so many pages, by the smallest unit that has it.
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

/// What a target tells.
struct Other {
    /// Ticks of all gaps; the first processor sets it back between two samples.
    lost: AtomicU64,
    /// Looks so far; 0 until the shortest time is known. Stored after `lost`, with release against
    /// the first one's acquire.
    looks: AtomicU64,
}

static OTHERS: [Other; MAX_PROCESSORS] =
    [const { Other { lost: AtomicU64::new(0), looks: AtomicU64::new(0) } }; MAX_PROCESSORS];
static ENDS: AtomicBool = AtomicBool::new(false);
/// The others sleep.
static SLEEPS: AtomicBool = AtomicBool::new(false);

/// What one of the others does.
fn lose_time(number: usize) {
    let Other { lost, looks } = &OTHERS[number];
    let (mut last, mut shortest) = (clock::now(), u64::MAX);
    for _ in 0..LOOKS {
        let now = clock::now();
        // The counter may be too slow to move between two looks.
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

/// What one way's samples came to, in nanoseconds a flush.
struct Column {
    way: Way,
    own: ArrayVec<u64, SAMPLES_MAX>,
    others: ArrayVec<u64, SAMPLES_MAX>,
}

impl Column {
    const fn new(way: Way) -> Self {
        Self { way, own: ArrayVec::new_const(), others: ArrayVec::new_const() }
    }

    fn sample(&mut self, others: core::ops::Range<usize>, pages: usize, counts: bool) {
        let all = || others.clone().map(|number| &OTHERS[number]);
        all().for_each(|other| other.lost.store(0, Ordering::Relaxed));
        let begin = clock::now();
        (0..BATCH).for_each(|_| self.way.flush(pages));
        let spent = clock::now() - begin;
        // Two more looks of each: then the gaps have been counted.
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

    /// Reports the samples and forgets them.
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

/// Measures every way with every number of processors and of pages.
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

/// Has the others lose time while `work` runs.
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

/// Takes samples of all ways in turn.
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
