//! Stale: looks for reads through translations that were already removed.
//!
//! Remapper threads replace, unmap, protect, copy and discard pages; when the system call has
//! returned they publish a new generation of the page. Reader threads, each on its own CPU, load
//! the published generation and then read the page: it must return that generation or a later one,
//! or nothing. Old frames are poisoned. The order of the reader's two loads is decisive, so there
//! are no false alarms, however long threads are kept from running.
//!
//! It reports JSON lines: `begin`, then `end` with the counts, then `stale` if a read was stale.

mod guarded;
mod reader;
mod region;
mod remapper;

use reader::{Reader, Reads, Sighting};
use region::{PageChange, Region, WINDOW};
use remapper::Remapper;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Map, Value, json};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, mpsc};
use std::time::{Duration, Instant};
use std::{error, io, thread};
use workloads::options::{Program, Report, cpus};

/// One thread out of this many is a remapper.
const THREADS_PER_REMAPPER: u64 = 8;
/// One thread out of this many reads pages even while they are being remapped.
const THREADS_PER_RUDE: usize = 4;

const USAGE: &str = "\
usage: stale [--threads N] [--seconds N] [--pages N] [--pause US]

  --threads N  threads; every eighth remaps, the others read [one per CPU, at least 2]
  --seconds N  duration of the run [5]
  --pages N    pages of each remapper [16]
  --pause US   maximum wait for readers between two remappings [200]

The status is 1 if a read was stale.";

#[derive(Debug, PartialEq, Eq)]
struct Options {
    threads: u64,
    seconds: u64,
    pages: u64,
    pause: Duration,
}

impl Options {
    fn program() -> Program<Self> {
        let pause = Duration::from_micros(200);
        let options = Self { threads: cpus().max(2), seconds: 5, pages: 16, pause };
        Program::new("stale", USAGE, options, |options, given| {
            match given.name {
                "--threads" => options.threads = given.number(2, 1024)?,
                "--seconds" => options.seconds = given.number(1, 1 << 20)?,
                "--pages" => options.pages = given.number(1, 256)?,
                "--pause" => options.pause = Duration::from_micros(given.number(0, 1_000_000)?),
                _ => return Err(given.unknown()),
            }
            Ok(())
        })
    }

    const fn remappers(&self) -> u64 {
        self.threads.div_ceil(THREADS_PER_REMAPPER)
    }
}

struct RunOutcome {
    remaps: [u64; PageChange::ALL.len()],
    reads: Reads,
    duration: Duration,
    stale: Option<Sighting>,
}

/// So often is a CPU looked for that does not go offline before the thread is pinned to it.
const TRIES: u32 = 100;

/// Pins the thread to one of the CPUs that the process may use: the `index`th, modulo their number.
fn pin(index: usize) -> io::Result<()> {
    let pin_once = || {
        let allowed = sched_getaffinity(None)?;
        let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
        let mut only = CpuSet::new();
        only.set(cpus[index % cpus.len()]);
        sched_setaffinity(None, &only)
    };
    let gone = Err(Errno::INVAL);
    let mut tries = (0..TRIES).map(|_| pin_once());
    Ok(tries.find(|pinned| *pinned != gone).unwrap_or(gone)?)
}

/// Lets threads remap and read for a while, or until a read is stale.
fn hunt(options: &Options) -> io::Result<RunOutcome> {
    guarded::install()?;
    let (remappers, pages) = (options.remappers() as u16, options.pages as u16);
    let region = &Region::new(WINDOW, remappers * pages)?;
    let counts = &[const { AtomicU64::new(0) }; PageChange::ALL.len()];
    let stop = &AtomicBool::new(false);
    let start = &Barrier::new(options.threads as usize + 1);
    let begin = Instant::now();
    thread::scope(|scope| {
        // A thread that ends before it is told to reports that.
        let (ended, early) = mpsc::channel();
        let mut threads = Vec::new();
        for index in 0..options.threads as usize {
            let ended = ended.clone();
            let work = move || {
                let pinned = pin(index);
                start.wait();
                let result = pinned.and_then(|()| match u16::try_from(index) {
                    Ok(mine) if mine < remappers => {
                        let remapper = Remapper { region, begin, pause: options.pause };
                        remapper.run(mine * pages..(mine + 1) * pages, stop, counts)?;
                        Ok((Reads::default(), None))
                    }
                    _ => {
                        let is_rude = index % THREADS_PER_RUDE == 1;
                        Ok(Reader { region, begin, is_rude }.run(stop))
                    }
                });
                // The receiver lives until all threads have ended.
                let _ = ended.send(());
                result
            };
            threads.push(thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, work)?);
        }
        start.wait();
        let _ = early.recv_timeout(Duration::from_secs(options.seconds));
        stop.store(true, Ordering::Relaxed);
        let duration = begin.elapsed();

        let (mut reads, mut stale) = (Reads::default(), None);
        for thread in threads {
            let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
            let (more, sighting) = ended?;
            reads.shown += more.shown;
            reads.absent += more.absent;
            reads.changes += more.changes;
            stale = stale.or(sighting);
        }
        let remaps = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        Ok(RunOutcome { remaps, reads, duration, stale })
    })
}

/// The line of a stale read, and its description in words.
fn describe(sighting: &Sighting, duration: Duration) -> (Value, String) {
    let Sighting { page, published, seen, origin } = sighting;
    let late_us = origin.map(|(_, late)| late as f64 / 1000.0);
    let way = origin.map(|(way, _)| way.name());
    let line = json!({
        "event": "stale", "workload": "stale", "page": page, "published": published,
        "seen": seen.generation, "seen_page": seen.page, "way": way, "late_us": late_us,
        "after": duration.as_secs_f64(),
    });
    let what = match seen.generation {
        0 => "what had been poisoned".to_owned(),
        old => format!("generation {old}"),
    };
    let when = match origin {
        Some((way, late)) => {
            format!(", {:.1} us after its {} had returned", *late as f64 / 1000.0, way.name())
        }
        None => String::new(),
    };
    (line, format!("stale read: page {page} showed {what} instead of generation {published}{when}"))
}

fn run(options: &Options, report: &mut Report) -> Result<bool, Box<dyn error::Error>> {
    report.settle(&json!({
        "event": "begin", "workload": "stale", "threads": options.threads,
        "remappers": options.remappers(), "seconds": options.seconds, "pages": options.pages,
    }))?;
    let outcome = hunt(options)?;
    let remaps: Map<String, Value> = PageChange::ALL
        .iter()
        .zip(outcome.remaps)
        .map(|(way, count)| (way.name().to_owned(), count.into()))
        .collect();
    report.settle(&json!({
        "event": "end", "workload": "stale", "real": outcome.duration.as_secs_f64(), "remaps": remaps,
        "reads": outcome.reads.shown, "absent": outcome.reads.absent, "changes": outcome.reads.changes,
        "stale": outcome.stale.is_some(),
    }))?;
    if let Some(sighting) = &outcome.stale {
        let (line, text) = describe(sighting, outcome.duration);
        report.line(&line)?;
        eprintln!("stale: {text}");
    }
    Ok(outcome.stale.is_none())
}

fn main() -> ExitCode {
    Options::program().main(run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use region::Canary;

    #[test]
    fn a_sound_kernel_shows_nothing_stale() {
        let options = Options::program().parse(["--threads", "3", "--seconds", "1"]).expect("parses");
        let outcome = hunt(&options).expect("hunts");
        assert_eq!(outcome.stale, None);
        assert!(outcome.remaps.iter().all(|count| *count > 0), "{:?}", outcome.remaps);
        assert!(outcome.reads.changes > 0 && outcome.reads.absent > 0, "{:?}", outcome.reads);
    }

    #[test]
    fn what_is_published_too_early_poisoned_or_in_the_wrong_place_is_found() {
        guarded::install().expect("installs");
        let region = Region::new(WINDOW + (1 << 40), 3).expect("maps");
        let (begin, stop) = (Instant::now(), AtomicBool::new(false));
        let seen = |region| {
            let (_, stale) = Reader { region, begin, is_rude: true }.run(&stop);
            stale.map(|stale| (stale.page, stale.seen))
        };

        region.write(1, 0, Canary { page: 1, generation: 8 });
        region.published(1).publish(9, PageChange::Replace, 0);
        assert_eq!(seen(&region), Some((1, Canary { page: 1, generation: 8 })));
        region.write(1, 0, Canary { page: 1, generation: 9 });
        region.published(2).publish(1, PageChange::Discard, 0);
        region.write(2, 0, Canary::poison(2));
        assert_eq!(seen(&region), Some((2, Canary::poison(2))));
        region.write(2, 0, Canary { page: 0, generation: 9 });
        assert_eq!(seen(&region), Some((2, Canary { page: 0, generation: 9 })));
    }
}
