//! The processors of the machine: started at the beginning, given jobs, and waited for.

use baremetal::HardwareId;
use baremetal::arch::clock;
use baremetal::arch::processors::{self, MAX_PROCESSORS};
use spin::Once;
use tlbcheck::command_line::Options;
use tlbcheck::ensure;
use tlbcheck::report::{Clock, Head, Verdict};

use super::console;
use super::this::machine::{Platform, wait_until};

pub(super) struct Testbed {
    /// Number of running processors; they are numbered from 0.
    pub(super) processors: usize,
    /// What the machine shows of itself.
    pub(super) platform: Platform,
    /// `rounds=` of the command line.
    pub(super) rounds: Option<u32>,
}

static TESTBED: Once<Testbed> = Once::new();

/// Time limit for any action of a processor, in milliseconds.
pub(super) const PATIENCE_MS: u64 = 20_000;

/// Minimum number of rounds regardless of time, and the time limit for further ones, in
/// microseconds: where processors take turns on a CPU a round takes a thousand times as long.
const ROUNDS_MIN: u32 = 10;
const BUDGET_US: u64 = 300_000;

pub(super) fn get() -> &'static Testbed {
    TESTBED.get().unwrap_or_else(|| console::bail(format_args!("the machine has not been looked at")))
}

/// Starts the processors with these ids, at most as many as `options` say, and begins the report.
/// The calling processor has the id `own`.
pub(super) fn begin(
    own: HardwareId,
    ids: impl Iterator<Item = HardwareId>,
    platform: Platform,
    options: &Options<'_>,
    (clock, protocol): (Clock, &'static str),
) {
    let limit = options.cpus.map_or(MAX_PROCESSORS, |limit| MAX_PROCESSORS.min(limit as usize));
    processors::set_id(0, own);
    let mut number = 1;
    for id in ids.filter(|id| *id != own) {
        if number >= limit {
            break;
        }
        processors::set_id(number, id);
        match processors::start(number) {
            true => number += 1,
            false => console::note(format_args!("the processor with id {id:#x} does not start")),
        }
    }
    let testbed = TESTBED.call_once(|| Testbed { processors: number, platform, rounds: options.rounds });
    let platform = &testbed.platform;
    let head = Head { name: platform.name(), platform, processors: number, clock, protocol };
    console::report(|report| report.head(&head));
}

/// The rounds of one row: the number on the command line, or up to `default` while there is time.
pub(super) fn rounds(default: u32) -> impl Iterator<Item = u32> {
    let asked = get().rounds;
    let end = clock::now() + clock::ticks(BUDGET_US);
    let goes_on = move |round: &u32| asked.is_some() || *round < ROUNDS_MIN || clock::now() < end;
    (0..asked.unwrap_or(default)).take_while(goes_on)
}

pub(super) fn give(number: usize, job: processors::Job) -> Verdict {
    ensure!(!processors::is_busy(number), "processor {number} has not come back from an earlier row");
    processors::give(number, job);
    Ok(())
}

/// Waits until it has finished the job.
pub(super) fn join(number: usize) -> Verdict {
    ensure!(wait_until(|| !processors::is_busy(number)), "processor {number} does not come to its end");
    Ok(())
}
