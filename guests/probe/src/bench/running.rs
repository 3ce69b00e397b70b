//! `bench=list-R-running-N`, `bench=merge-8x7`: flushes of vCPUs in guest mode, each on a CPU.
//!
//! The probe makes the number of calls set on the command line; the hypervisor's counters show the
//! effects on the targets. The host tool runs a case twice, with more calls the second time. The
//! difference is due to the calls alone, because the instruction-counting clock makes the rest of
//! both runs the same.

use core::sync::atomic::{AtomicU32, Ordering};

use tlfs::{CallCode, Control, HvResult, Status};

use crate::hypercall::{self, expect_success};
use crate::paging::{PAGE, Page, WINDOW};
use crate::processors::PROCESSORS;
use crate::report::{self, Failure, ensure, failure, measured};
use crate::{apic, clock, processors};

/// Maximum number of ranges of a list.
const RANGES_MAX: u16 = 64;
/// Number of vCPUs that flush each other; each has all others as targets.
const INITIATORS: usize = 8;
/// Time limit for all targets to reach their loops.
const PATIENCE_MS: u64 = 1000;

const _: () = assert!(INITIATORS <= PROCESSORS);

pub(crate) fn running(name: &str, calls: u32) {
    report::begin("running");
    let ticks = hypercall::enable().and_then(|()| match name.strip_prefix("list-") {
        Some(sizes) => list(sizes, calls),
        None if name == "merge-8x7" => merge(calls),
        None => Err(failure(format_args!("no such benchmark: '{name}'"))),
    });
    match ticks {
        Ok(ticks) => {
            measured(name, ticks);
            report::done();
        }
        Err(why) => report::end(name, &Err(why)),
    }
}

/// Number of processors in [`spin`].
static SPINNING: AtomicU32 = AtomicU32::new(0);

fn spin(_: usize) {
    SPINNING.fetch_add(1, Ordering::AcqRel);
    while !processors::is_over() {
        core::hint::spin_loop();
    }
}

/// Flushes of single pages for running processors, beside one more that runs and is not a target;
/// `sizes` is `R-running-N`. Returns the ticks of all calls.
fn list(sizes: &str, calls: u32) -> Result<u64, Failure> {
    let sizes = sizes.split_once("-running-").and_then(|(ranges, targets)| {
        let ranges = ranges.parse().ok().filter(|ranges| (1..=RANGES_MAX).contains(ranges))?;
        let targets = targets.parse().ok().filter(|targets| (1..=PROCESSORS - 2).contains(targets))?;
        Some((ranges, targets))
    });
    let Some((ranges, targets)) = sizes else { return Err(failure(format_args!("no such sizes"))) };
    let others = targets + 1;
    (1..=others).try_for_each(processors::start)?;
    processors::beside(others, spin, || {
        let spin = clock::wait_until(PATIENCE_MS, || SPINNING.load(Ordering::Acquire) as usize == others);
        ensure!(spin, "not all targets come to their loops");
        call_lists(ranges, targets, calls)
    })
}

/// Makes the calls, for the VPs from 1 to `targets`.
fn call_lists(ranges: u16, targets: usize, calls: u32) -> Result<u64, Failure> {
    let control =
        Control::new().with_call_code(CallCode::FLUSH_VIRTUAL_ADDRESS_LIST.0).with_rep_count(ranges);
    // Address space, flags, processors; then pages that are not adjacent.
    hypercall::input_page().write(&[0, 0, (2 << targets) - 2]);
    for range in 0..ranges {
        let page = WINDOW + u64::from(range) * 2 * PAGE;
        hypercall::input_page().write_at(3 + usize::from(range), &[page]);
    }
    let input = hypercall::input_address();
    let wanted = Ok(HvResult::of(Status::SUCCESS, ranges));
    let start = clock::now();
    for _ in 0..calls {
        let result = hypercall::call(control, input, 0);
        if result != wanted {
            expect_success("list", result, ranges)?;
        }
    }
    Ok(clock::now() - start)
}

/// Rounds of [`flush_others`], arrivals at the beginning of a round, and calls that failed.
static ROUNDS: AtomicU32 = AtomicU32::new(0);
static ARRIVALS: AtomicU32 = AtomicU32::new(0);
static FAILURES: AtomicU32 = AtomicU32::new(0);
static INPUTS: [Page; INITIATORS] = [const { Page::new() }; INITIATORS];

/// All initiators flush each other at once, `rounds` times. Returns the ticks of all rounds.
fn merge(rounds: u32) -> Result<u64, Failure> {
    (1..INITIATORS).try_for_each(processors::start)?;
    ROUNDS.store(rounds, Ordering::Release);
    (1..INITIATORS).for_each(|id| processors::give(id, flush_others));
    let start = clock::now();
    flush_others(0);
    let ticks = clock::now() - start;
    (1..INITIATORS).try_for_each(processors::join)?;
    let failures = FAILURES.load(Ordering::Acquire);
    ensure!(failures == 0, "{failures} calls fail");
    Ok(ticks)
}

/// Each initiator's job: in every round it waits for the others, then flushes them.
fn flush_others(_: usize) {
    let me = apic::id();
    let input = &INPUTS[me];
    input.write(&[0, 0, ((1 << INITIATORS) - 1) & !(1 << me)]);
    let control = Control::new().with_call_code(CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE.0);
    for round in 1..=ROUNDS.load(Ordering::Acquire) {
        ARRIVALS.fetch_add(1, Ordering::AcqRel);
        while ARRIVALS.load(Ordering::Acquire) < round * INITIATORS as u32 {
            core::hint::spin_loop();
        }
        if hypercall::call(control, input.address(), 0) != Ok(HvResult::of(Status::SUCCESS, 0)) {
            FAILURES.fetch_add(1, Ordering::AcqRel);
        }
    }
}
