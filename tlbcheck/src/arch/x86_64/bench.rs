//! The cost of a shootdown: for the initiating CPU, and for each target.
//!
//! The targets spin and read the TSC: the time that a flush takes from them is a gap between two
//! readings, whether an interrupt handler or the hypervisor has taken it. Where there are more of
//! them than CPUs to run them they can sleep instead; then the time taken from them is unknown. The
//! initiator measures its own call. Back ends alternate, so that they share any disturbance.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrayvec::ArrayVec;
use baremetal::pages::PAGE;
use baremetal::x86_64::interrupts::VECTOR_WAKE;
use baremetal::x86_64::processors::{self, MAX_PROCESSORS};
use baremetal::x86_64::{apic, clock};
use spin::Mutex;
use tlbcheck::command_line::Options;
use tlbcheck::report::{Measurement, Stop, Totals, Unit, Verdict};
use tlbcheck::statistics::{Summary, processor_counts};
use x86_64::instructions::interrupts;

use super::back_end::{self, BackEnd, RANGES_MAX, Scope, others};
use super::machine::{self, PATIENCE_MS};
use super::window::WINDOW;
use crate::arch::console;

/// Samples of each measurement, uncounted ones before them, and the maximum number that can be
/// requested.
const SAMPLES: usize = 101;
const WARM_UP: usize = 5;
const SAMPLES_MAX: usize = 1000;
/// Time limit of one measurement in milliseconds: with more processors than CPUs a sample takes
/// long.
const BUDGET_MS: u64 = 4000;
const SAMPLES_MIN: usize = 11;

/// Lengths of lists; 0 means a flush of everything.
const RANGES: [usize; 11] = [0, 1, 2, 4, 8, 16, 33, 64, 128, 256, RANGES_MAX];

/// A gap is a time between two readings of at least this many times the shortest.
const GAP: u64 = 16;
/// Number of readings that determine the shortest time.
const LOOKS: u32 = 2000;

/// The data that a target reports.
struct Watched {
    /// Cycles of all gaps; the initiator resets it between two flushes.
    lost: AtomicU64,
    /// Number of readings so far; 0 until the shortest time is known. Stored after `lost`, with
    /// release against the initiator's acquire.
    looks: AtomicU64,
}

static TARGETS: [Watched; MAX_PROCESSORS] =
    [const { Watched { lost: AtomicU64::new(0), looks: AtomicU64::new(0) } }; MAX_PROCESSORS];
static ENDS: AtomicBool = AtomicBool::new(false);
/// Whether targets sleep.
static HALTS: AtomicBool = AtomicBool::new(false);

/// The job of a target.
fn lose_time(number: usize) {
    let Watched { lost, looks } = &TARGETS[number];
    interrupts::enable();
    let (mut last, mut shortest) = (clock::now(), u64::MAX);
    for _ in 0..LOOKS {
        let now = clock::now();
        shortest = shortest.min(now - last);
        last = now;
    }
    if HALTS.load(Ordering::Acquire) {
        looks.store(1, Ordering::Release);
        interrupts::disable();
        while !ENDS.load(Ordering::Acquire) {
            // An interrupt that arrives before HLT ends it.
            interrupts::enable_and_hlt();
            interrupts::disable();
        }
        return;
    }
    let mut count = 0;
    while !ENDS.load(Ordering::Acquire) {
        let now = clock::now();
        if now - last > GAP * shortest {
            lost.fetch_add(now - last - shortest, Ordering::Relaxed);
        }
        last = now;
        count += 1;
        looks.store(count, Ordering::Release);
    }
    interrupts::disable();
}

type Samples = ArrayVec<u64, SAMPLES_MAX>;

/// The samples of one back end's flushes.
struct Column {
    back_end: BackEnd,
    initiator: Samples,
    target: Samples,
    /// It has failed, or does not exist: it is not used any more.
    is_out: bool,
}

impl Column {
    const fn new(back_end: BackEnd) -> Self {
        Self { back_end, initiator: Samples::new_const(), target: Samples::new_const(), is_out: false }
    }

    /// One flush.
    fn sample(&mut self, others: &[usize], scope: Scope<'_>, counts: bool) -> Verdict {
        let targets = || others.iter().map(|number| &TARGETS[*number]);
        targets().for_each(|target| target.lost.store(0, Ordering::Relaxed));
        let begin = clock::now();
        self.back_end.flush(others, scope)?;
        let spent = clock::now() - begin;
        // Waits for two more readings of each: then the gap of this flush has been counted.
        for target in targets().filter(|_| !HALTS.load(Ordering::Relaxed)) {
            let before = target.looks.load(Ordering::Acquire);
            clock::wait_until(PATIENCE_MS, || target.looks.load(Ordering::Acquire) >= before + 2);
        }
        if counts {
            let lost: u64 = targets().map(|target| target.lost.load(Ordering::Relaxed)).sum();
            let _ = self.initiator.try_push(spent);
            let _ = self.target.try_push(lost / others.len().max(1) as u64);
        }
        Ok(())
    }

    /// Reports the samples and clears them.
    fn report(&mut self, processors: usize, ranges: usize) {
        if self.is_out {
            return;
        }
        let measured = Measurement {
            bench: "shootdown",
            unit: Unit::Cycles,
            back_end: self.back_end.name(),
            processors,
            ranges,
            initiator: Summary::of(&mut self.initiator),
            target: (!HALTS.load(Ordering::Relaxed)).then(|| Summary::of(&mut self.target)),
        };
        console::report(|report| report.measurement(&measured));
        self.initiator.clear();
        self.target.clear();
    }
}

/// Too large for a stack.
static COLUMNS: Mutex<[Column; BackEnd::ALL.len()]> = Mutex::new({
    let mut columns = [const { Column::new(BackEnd::Serial) }; BackEnd::ALL.len()];
    let mut index = 0;
    while index < columns.len() {
        columns[index].back_end = BackEnd::ALL[index];
        index += 1;
    }
    columns
});

/// Measures every back end with every number of processors and every scope.
pub(in crate::arch) fn run(options: &Options<'_>) -> Totals {
    let pages: ArrayVec<u64, RANGES_MAX> =
        (0..RANGES_MAX as u64).map(|index| WINDOW + index * 2 * PAGE).collect();
    let samples = options.rounds.map_or(SAMPLES, |rounds| (rounds as usize).min(SAMPLES_MAX));
    HALTS.store(options.targets_halt, Ordering::Release);
    let mut columns = COLUMNS.lock();
    let mut totals = Totals::default();
    for processors in processor_counts(machine::get().processors) {
        let others = others(processors - 1);
        let work = || {
            for ranges in RANGES {
                let scope = if ranges == 0 { Scope::Everything } else { Scope::Pages(&pages[..ranges]) };
                measure(&mut columns[..], &others, scope, samples, &mut totals);
                columns.iter_mut().for_each(|column| column.report(processors, ranges));
            }
        };
        let verdict = back_end::among(&others, || with_targets(&others, work));
        if verdict.is_ok() {
            totals.count(&verdict);
        }
        conclude("targets", verdict, &mut totals);
    }
    totals
}

/// Runs `work` while the targets measure their lost time.
fn with_targets(others: &[usize], work: impl FnOnce()) -> Verdict {
    ENDS.store(false, Ordering::Release);
    for number in others {
        TARGETS[*number].looks.store(0, Ordering::Relaxed);
        machine::give(*number, lose_time)?;
    }
    let ready = |number: &usize| TARGETS[*number].looks.load(Ordering::Acquire) != 0;
    let all_ready = clock::wait_until(PATIENCE_MS, || others.iter().all(ready));
    if all_ready {
        work();
    }
    ENDS.store(true, Ordering::Release);
    for number in others {
        apic::send_fixed(processors::apic_id(*number), VECTOR_WAKE);
        machine::join(*number)?;
    }
    tlbcheck::ensure!(all_ready, "not all of {} targets begin", others.len());
    Ok(())
}

/// Notes and counts the error of `who`, if there was one.
fn conclude(who: &str, verdict: Verdict, totals: &mut Totals) {
    if let Err(Stop::Fail(why) | Stop::Skip(why)) = &verdict {
        console::note(format_args!("{who}: {why}"));
        totals.count(&verdict);
    }
}

/// Takes samples of all columns in turn.
fn measure(columns: &mut [Column], others: &[usize], scope: Scope<'_>, samples: usize, totals: &mut Totals) {
    let end = clock::now() + clock::ticks(BUDGET_MS * 1000);
    for number in 0..WARM_UP + samples {
        if number >= WARM_UP + SAMPLES_MIN && clock::now() > end {
            break;
        }
        for column in columns.iter_mut().filter(|column| !column.is_out) {
            let verdict = column.sample(others, scope, number >= WARM_UP);
            column.is_out = verdict.is_err();
            conclude(column.back_end.name(), verdict, totals);
        }
    }
}
