//! Loops: one small kernel operation, repeated by threads that share an address space.
//!
//! Each loop is known from micro-benchmarks of scalability. A count of rounds ends it, not a clock.
//! Each checks its own work: stores are read back, and removed pages and rights must be gone.
//!
//! It reports JSON lines: `begin`, then `end` with the results, then `damage` if there was an
//! error.

mod flush;
mod memory;
mod switch;
mod table;
mod team;

#[cfg(test)]
mod tests;

use serde_json::json;
use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use std::{io, thread};
use table::{LOOPS, Loop, Size};
use team::Damage;
use workloads::interrupts::IpiCounts;
use workloads::options::{self, number, unknown};
use workloads::report::Report;
use workloads::times::{Stopwatch, Times};

/// The exit status for wrong data, and for a failed operation.
const WRONG: u8 = 1;
const FAILED: u8 = 3;

fn usage() -> String {
    let width = LOOPS.iter().map(|each| each.name.len()).max().unwrap_or_default();
    let about = |each: &Loop| format!("  {:width$}  {}", each.name, each.about);
    let loops: Vec<_> = LOOPS.iter().map(about).collect();
    format!(
        "\
usage: loops --loop NAME [--threads N] [--rounds N] [--pages N] [--report F] [--settle MS]

  --loop NAME  which of the loops below
  --threads N  threads, all in one address space [one per CPU]; loops in pairs take an even number
  --rounds N   rounds of each thread [10000]
  --pages N    pages of a mapping, for the loops that use several [128]
  --report F   file for the JSON lines [standard output]
  --settle MS  idle time after `begin` and before `end` is reported, for readers of counters [0]

Loops, each with a description of one round:
{}

`end` has nanoseconds of all threads together, from the first round to the last (`ns`), and of one
round (`ns_per_round`: `ns` divided by the rounds of all threads). The status is {WRONG} if data was
wrong, {FAILED} if the kernel refused an operation. For example:

  loops --loop tlb_flush1 --threads 4 --rounds 20000",
        loops.join("\n")
    )
}

#[derive(Debug, PartialEq, Eq)]
struct Options {
    which: &'static Loop,
    size: Size,
    rounds: u64,
    report: Option<PathBuf>,
    settle: Duration,
}

impl Options {
    fn parse(args: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        let (mut which, mut threads) = (None, None);
        let (mut pages, mut rounds, mut report, mut settle) = (128, 10_000, None, Duration::ZERO);
        for pair in options::pairs(args) {
            let (name, value) = pair?;
            match name.as_str() {
                "--loop" => which = Some(Loop::named(&value).ok_or_else(|| no_loop(&value))?),
                "--threads" => threads = Some(number(&name, &value, 1, 1024)?),
                "--rounds" => rounds = number(&name, &value, 1, 1 << 32)?,
                "--pages" => pages = number(&name, &value, 1, 1 << 16)?,
                "--report" => report = Some(PathBuf::from(value)),
                "--settle" => settle = Duration::from_millis(number(&name, &value, 0, 60_000)?),
                _ => return Err(unknown(&name)),
            }
        }
        let which = which.ok_or("--loop: the name of a loop is needed")?;
        let usual = if which.in_pairs { cpus.next_multiple_of(2) } else { cpus };
        let threads = threads.unwrap_or(usual as u64);
        if which.in_pairs && !threads.is_multiple_of(2) {
            return Err(format!(
                "--threads {threads}: {} goes in pairs, so expected an even number",
                which.name
            ));
        }
        let size = Size { threads: threads as usize, pages: pages as usize };
        Ok(Self { which, size, rounds, report, settle })
    }
}

fn no_loop(name: &str) -> String {
    let names = LOOPS.each_ref().map(|each| each.name);
    format!("--loop {name}: expected one of {}", names.join(", "))
}

/// Runs the loop; returns the first damage, if any.
fn run(options: &Options) -> io::Result<Option<Damage>> {
    let Options { which, size, rounds, .. } = options;
    let rounds_total = rounds * size.threads as u64;
    let mut report = Report::open(options.report.as_deref())?;
    // The kernel may merge adjacent mappings of several threads, which could then hold a huge page.
    rustix::thread::disable_transparent_huge_pages(true)?;
    let workers = (which.workers)(*size)?;
    report.line(&json!({
        "event": "begin", "workload": "loops", "loop": which.name, "threads": size.threads,
        "rounds": rounds, "pages": size.pages,
    }))?;
    thread::sleep(options.settle);

    let ipis_before = IpiCounts::now()?;
    let watch = Stopwatch::start()?;
    let damage = team::run(workers, *rounds)?;
    let Times { real, user, sys, faults } = watch.elapsed()?;
    let ipis = IpiCounts::now()?.since(ipis_before);

    report.line(&json!({
        "event": "end", "workload": "loops", "loop": which.name, "rounds_total": rounds_total,
        "ns": u64::try_from(real.as_nanos()).unwrap_or(u64::MAX),
        "ns_per_round": real.as_nanos() as f64 / rounds_total as f64,
        "user": user.as_secs_f64(), "sys": sys.as_secs_f64(), "faults": faults,
        "tlb_ipis": ipis.tlb, "call_ipis": ipis.call, "damaged": damage.is_some(),
    }))?;
    thread::sleep(options.settle);
    if let Some(Damage { thread, round, what }) = &damage {
        report.line(&json!({
            "event": "damage", "workload": "loops", "loop": which.name, "thread": thread, "round": round,
            "what": what,
        }))?;
    }
    Ok(damage)
}

fn main() -> ExitCode {
    let options = match options::of_process("loops", &usage(), Options::parse) {
        Ok(options) => options,
        Err(status) => return status,
    };
    match run(&options) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(Damage { thread, round, what })) => {
            eprintln!("loops: {}: thread {thread}, round {round}: {what}", options.which.name);
            ExitCode::from(WRONG)
        }
        Err(error) => {
            eprintln!("loops: {}: {error}", options.which.name);
            ExitCode::from(FAILED)
        }
    }
}
