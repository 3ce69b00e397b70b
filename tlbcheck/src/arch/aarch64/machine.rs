//! Processors and platform, determined once at the beginning.

use arm_sysregs::el1::accessors as registers;
use baremetal::HardwareId;
use baremetal::aarch64::info::BootInfo;
use baremetal::aarch64::processors::{self, MAX_PROCESSORS};
use baremetal::aarch64::{clock, gic, interrupts, power};
use spin::Once;
use tlbcheck::arm64::{Identity, TlbFeatures};
use tlbcheck::command_line::Options;
use tlbcheck::report::{Clock, Head, Verdict};
use tlbcheck::{ensure, needs};

use crate::arch::console;

pub(in crate::arch) struct Testbed {
    /// Number of running processors; they are numbered from 0.
    pub(in crate::arch) processors: usize,
    pub(super) platform: TlbFeatures,
    /// `rounds=` of the command line.
    rounds: Option<u32>,
}

static TESTBED: Once<Testbed> = Once::new();

/// Time limit for any action of a processor, in milliseconds.
pub(in crate::arch) const PATIENCE_MS: u64 = 20_000;

/// Minimum number of rounds regardless of time, and the time limit for further ones, in
/// microseconds: where processors take turns on a CPU a round takes a thousand times as long.
const ROUNDS_MIN: u32 = 10;
const BUDGET_US: u64 = 300_000;

pub(in crate::arch) fn get() -> &'static Testbed {
    TESTBED.get().unwrap_or_else(|| console::bail(format_args!("the machine has not been looked at")))
}

/// Detects the machine, starts the processors, begins the report.
pub(in crate::arch) fn find(info: &BootInfo, options: &Options<'_>) {
    if let Err(why) = gic::enable_distributor().and_then(|()| gic::enable()) {
        console::bail(format_args!("{why}"));
    }
    let identity = Identity {
        midr: registers::read_midr_el1().bits(),
        isar0: registers::read_id_aa64isar0_el1().bits(),
        mmfr0: registers::read_id_aa64mmfr0_el1().bits(),
        mmfr1: registers::read_id_aa64mmfr1_el1().bits(),
        mmfr2: registers::read_id_aa64mmfr2_el1().bits(),
    };
    let platform = TlbFeatures::new(identity, power::call(TlbFeatures::UID_CALL, [0; 3]));
    let limit = options.cpus.map_or(MAX_PROCESSORS, |limit| limit as usize);
    let processors = start(&info.processors, limit);
    TESTBED.call_once(|| Testbed { processors, platform, rounds: options.rounds });
    let clock = Clock::VirtualCounter(clock::hz());
    let (name, protocol) = (platform.name(), "arm64 image");
    console::report(|report| report.head(&Head { name, platform: &platform, processors, clock, protocol }));
}

/// Starts the processors with these affinities, at most `limit`; returns their number.
fn start(affinities: &[HardwareId], limit: usize) -> usize {
    let own = gic::affinity();
    processors::set_affinity(0, own);
    let mut number = 1;
    for affinity in affinities.iter().filter(|affinity| **affinity != own) {
        if number >= limit.min(MAX_PROCESSORS) {
            break;
        }
        processors::set_affinity(number, *affinity);
        match processors::start(number) {
            true => number += 1,
            false => console::note(format_args!("the processor with affinity {affinity:#x} does not start")),
        }
    }
    number
}

/// The rounds of one row: the number on the command line, or up to `default` while there is time.
pub(super) fn rounds(default: u32) -> impl Iterator<Item = u32> {
    let asked = get().rounds;
    let end = clock::now() + clock::ticks(BUDGET_US);
    let goes_on = move |round: &u32| asked.is_some() || *round < ROUNDS_MIN || clock::now() < end;
    (0..asked.unwrap_or(default)).take_while(goes_on)
}

/// Processors other than the first; skips if there is none.
pub(super) fn others() -> Result<core::ops::Range<usize>, tlbcheck::report::Stop> {
    let processors = get().processors;
    needs!(processors > 1, "there is one processor");
    Ok(1..processors)
}

/// Microseconds for which an idle processor sleeps, and the checks that it makes before.
const SLEEP_US: u64 = 50;
const LOOKS: u64 = 64;

/// Sleeps for a moment: a virtual processor yields. Interrupts are masked: one that arrives before
/// the processor sleeps ends its sleep as well, so no wake-up is lost.
pub(super) fn sleep() {
    clock::set_timer(SLEEP_US);
    interrupts::wait();
    clock::stop_timer();
}

/// Waits until the condition holds, for at most [`PATIENCE_MS`]; returns whether it does. It sleeps
/// in between: the processors that it waits for may share its CPU, and a hypervisor below cannot
/// tell that it waits, because the clock that it reads always changes.
pub(super) fn wait_until(mut condition: impl FnMut() -> bool) -> bool {
    let end = clock::now() + clock::ticks(PATIENCE_MS * 1000);
    loop {
        for _ in 0..LOOKS {
            if condition() {
                return true;
            }
            clock::relax();
        }
        if clock::now() > end {
            return condition();
        }
        sleep();
    }
}

pub(in crate::arch) fn give(number: usize, job: processors::Job) -> Verdict {
    ensure!(!processors::is_busy(number), "processor {number} has not come back from an earlier row");
    processors::give(number, job);
    Ok(())
}

/// Waits until it has finished the job.
pub(in crate::arch) fn join(number: usize) -> Verdict {
    ensure!(wait_until(|| !processors::is_busy(number)), "processor {number} does not come to its end");
    Ok(())
}

/// Runs `job` on all processors, including the calling one, which is the first.
pub(super) fn on_all(job: processors::Job) -> Verdict {
    let all = 1..get().processors;
    all.clone().try_for_each(|number| give(number, job))?;
    job(0);
    all.map(join).fold(Ok(()), Verdict::and)
}
