//! Loops: one small kernel operation, repeated by threads that share an address space.
//!
//! Each loop is known from micro-benchmarks of scalability. A count of rounds ends it, not a clock.
//! Each checks its own work: stores are read back, and removed pages and rights must be gone.
//!
//! It reports JSON lines: `begin`, then `end` with the results, then `damage` if there was an
//! error.

use serde_json::json;
use std::io;
use std::process::ExitCode;
use team::{Damage, Worker};
use workloads::options::{FAILED, Given, Program, Report, WRONG, cpus};
use workloads::times::{IpiCounts, Stopwatch, Times};

mod memory;
mod switch;
mod team;

#[cfg(test)]
mod tests;

fn usage() -> String {
    let width = LOOPS.iter().map(|each| each.name.len()).max().unwrap_or_default();
    let about = |each: &Loop| format!("  {:width$}  {}", each.name, each.about);
    let loops: Vec<_> = LOOPS.iter().map(about).collect();
    format!(
        "\
usage: loops --loop NAME [--threads N] [--rounds N] [--pages N]

  --loop NAME  which of the loops below
  --threads N  threads, all in one address space [one per CPU]; loops in pairs take an even number
  --rounds N   rounds of each thread [10000]
  --pages N    pages of a mapping, for the loops that use several [128]

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
    /// A loop is needed.
    which: Option<&'static Loop>,
    /// With 0 threads, as many as there are CPUs.
    size: Size,
    rounds: u64,
}

impl Options {
    fn program() -> Program<Self> {
        let size = Size { threads: 0, pages: 128 };
        let options = Self { which: None, size, rounds: 10_000 };
        Program::new("loops", usage(), options, |options, given| {
            match given.name {
                "--loop" => options.which = Some(Loop::named(given.value).ok_or_else(|| no_loop(given))?),
                "--threads" => options.size.threads = given.number(1, 1024)? as usize,
                "--rounds" => options.rounds = given.number(1, 1 << 32)?,
                "--pages" => options.size.pages = given.number(1, 1 << 16)? as usize,
                _ => return Err(given.unknown()),
            }
            Ok(())
        })
        .checked(Self::check)
    }

    fn check(&mut self) -> Result<(), String> {
        let which = self.which.ok_or("--loop: the name of a loop is needed")?;
        let threads = &mut self.size.threads;
        if *threads == 0 {
            let cpus = cpus() as usize;
            *threads = if which.in_pairs { cpus.next_multiple_of(2) } else { cpus };
        }
        if which.in_pairs && !threads.is_multiple_of(2) {
            let name = which.name;
            return Err(format!("--threads {threads}: {name} goes in pairs, so expected an even number"));
        }
        Ok(())
    }
}

fn no_loop(given: &Given<'_>) -> String {
    given.expected(&format!("one of {}", LOOPS.each_ref().map(|each| each.name).join(", ")))
}

/// Runs the loop; returns the first damage, if any.
fn run(options: &Options, which: &Loop, report: &mut Report) -> io::Result<Option<Damage>> {
    let Options { size, rounds, .. } = options;
    let rounds_total = rounds * size.threads as u64;
    // The kernel may merge adjacent mappings of several threads, which could then hold a huge page.
    rustix::thread::disable_transparent_huge_pages(true)?;
    let workers = (which.workers)(*size)?;
    report.settle(&json!({
        "event": "begin", "workload": "loops", "loop": which.name, "threads": size.threads,
        "rounds": rounds, "pages": size.pages,
    }))?;

    let ipis_before = IpiCounts::now()?;
    let watch = Stopwatch::start()?;
    let damage = team::run(workers, *rounds)?;
    let Times { real, user, sys, faults } = watch.elapsed()?;
    let ipis = IpiCounts::now()?.since(ipis_before);

    report.settle(&json!({
        "event": "end", "workload": "loops", "loop": which.name, "rounds_total": rounds_total,
        "ns": u64::try_from(real.as_nanos()).unwrap_or(u64::MAX),
        "ns_per_round": real.as_nanos() as f64 / rounds_total as f64,
        "user": user.as_secs_f64(), "sys": sys.as_secs_f64(), "faults": faults,
        "tlb_ipis": ipis.tlb, "call_ipis": ipis.call, "damaged": damage.is_some(),
    }))?;
    if let Some(Damage { thread, round, what }) = &damage {
        report.line(&json!({
            "event": "damage", "workload": "loops", "loop": which.name, "thread": thread, "round": round,
            "what": what,
        }))?;
    }
    Ok(damage)
}

fn main() -> ExitCode {
    Options::program().main(|options, report| {
        let which = options.which.ok_or("there is no loop")?;
        let damage = run(options, which, report).map_err(|error| format!("{}: {error}", which.name))?;
        if let Some(Damage { thread, round, what }) = &damage {
            eprintln!("loops: {}: thread {thread}, round {round}: {what}", which.name);
        }
        Ok::<_, String>(damage.is_none())
    })
}

/// The size of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    /// Number of threads.
    threads: usize,
    /// Pages of a mapping, for loops that use several.
    pages: usize,
}

/// One loop.
#[derive(Debug)]
struct Loop {
    name: &'static str,
    /// Description of one round.
    about: &'static str,
    /// Whether each thread has a partner that it waits for in each round.
    in_pairs: bool,
    /// Makes the workers of its threads, one each.
    workers: fn(Size) -> io::Result<Vec<Worker>>,
}

impl Loop {
    /// The loop with this name.
    fn named(name: &str) -> Option<&'static Self> {
        LOOPS.iter().find(|each| each.name == name)
    }
}

impl PartialEq for Loop {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Loop {}

const fn alone(
    name: &'static str,
    workers: fn(Size) -> io::Result<Vec<Worker>>,
    about: &'static str,
) -> Loop {
    Loop { name, about, in_pairs: false, workers }
}

const fn in_pairs(
    name: &'static str,
    workers: fn(Size) -> io::Result<Vec<Worker>>,
    about: &'static str,
) -> Loop {
    Loop { name, about, in_pairs: true, workers }
}

static LOOPS: [Loop; 9] = [
    alone("page_fault", memory::page_fault, "map memory, store to each page, read it back, unmap"),
    alone("mmap", memory::map, "map memory and unmap it, untouched"),
    alone("mprotect", memory::protect, "make a touched page read-only, and writable again"),
    in_pairs("context_switch", switch::pipes, "send a byte to the partner by pipe, and receive one"),
    in_pairs("futex", switch::wake_ups, "wake the partner by futex, and wait for it"),
    alone("futex_lock", switch::lock, "take a lock that all threads share, by futex, and release it"),
    alone("tlb_flush1", memory::discard, "store to a page of its own, and discard it (madvise)"),
    alone("tlb_flush2", memory::protect_one, "store to a page of its own, and protect it (mprotect)"),
    alone("tlb_flush3", memory::unmap_file, "map a page of a shared file, read it, and unmap it (munmap)"),
];
