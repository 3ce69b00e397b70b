//! Mmtest: threads touch memory page by page, while the main thread turns a PCI device's expansion
//! ROM on and off.
//!
//! In a guest on a hypervisor each toggle adds and removes memory of the guest, which must neither
//! disturb the data of the threads nor cost them more than necessary. Every page has canaries,
//! which are checked before they are rewritten; every byte that is read from the ROM is compared.
//!
//! It reports JSON lines: `begin`, then `progress` periodically, then `end` with the results, then
//! `damage` if there was an error.

mod memory;
mod rom;
mod rounds;

use memory::{Damage, Memory};
use rom::{Rom, Toggle};
use rounds::Rounds;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{error, io, thread};
use workloads::mapping::page_bytes;
use workloads::options::{Program, Report, cpus};
use workloads::times::{Stopwatch, Times};

/// Number of pages that a thread touches between two checks of whether it should end.
const STRIDE: usize = 256;
const PROGRESS_PERIOD: Duration = Duration::from_millis(500);

const USAGE: &str = "\
usage: mmtest [--threads N] [--memory MIB] [--toggles N] [--passes N] [--rounds N] [--rom F]

  --threads N   threads that touch memory [one per CPU]
  --memory MIB  memory of each thread [64]
  --toggles N   number of times the ROM is turned on, read and turned off [100]
  --passes N    minimum passes of each thread over its memory [1]
  --rounds N    the same work each time: N times, all threads make one pass while the ROM is turned on, read from its
                beginning to its end, and turned off; instead of --toggles and --passes
  --rom F       the ROM's file [/sys/bus/pci/devices/0000:00:01.0/rom]

It ends when the toggles and the passes, or the rounds, are done. The status is 1 if a canary or the ROM was wrong.";

#[derive(Debug, PartialEq, Eq)]
struct Options {
    threads: u64,
    memory_mib: u64,
    toggles: u64,
    passes: u64,
    rounds: Option<u64>,
    rom: PathBuf,
}

impl Options {
    fn program() -> Program<Self> {
        let options = Self {
            threads: cpus(),
            memory_mib: 64,
            toggles: 100,
            passes: 1,
            rounds: None,
            rom: PathBuf::from("/sys/bus/pci/devices/0000:00:01.0/rom"),
        };
        Program::new("mmtest", USAGE, options, |options, given| {
            match given.name {
                "--threads" => options.threads = given.number(1, 1024)?,
                "--memory" => options.memory_mib = given.number(1, 1 << 20)?,
                "--toggles" => options.toggles = given.number(1, 10_000_000)?,
                "--passes" => options.passes = given.number(1, 1 << 32)?,
                "--rounds" => options.rounds = Some(given.number(1, 10_000_000)?),
                "--rom" => options.rom = given.path(),
                _ => return Err(given.unknown()),
            }
            Ok(())
        })
    }
}

#[derive(Default)]
struct Toggles {
    /// The time of each toggle, in microseconds.
    times_us: Vec<f64>,
    /// The time of each round, in microseconds, if there are rounds.
    rounds_us: Vec<f64>,
    wrong: u64,
    /// The first error: the toggle's number, and the offset in the ROM.
    first_wrong: Option<(u64, u32)>,
}

#[derive(Default)]
struct Touched {
    touches: u64,
    passes: u64,
    damages: u64,
    first_damage: Option<Damage>,
}

/// Touches memory until `stop` is set and `passes` passes are made, and checks it at the end.
fn toucher(mut memory: Memory, passes: u64, stop: &AtomicBool, done: &AtomicU64) -> Memory {
    let mut is_done = false;
    while !(is_done && stop.load(Ordering::Relaxed)) {
        memory.touch(STRIDE);
        if !is_done && memory.passes() >= passes {
            is_done = true;
            done.fetch_add(1, Ordering::Relaxed);
        }
    }
    memory.check_all();
    memory
}

impl Toggles {
    fn add(&mut self, toggle: Toggle) {
        let number = self.times_us.len() as u64;
        self.times_us.push(microseconds(toggle.duration));
        if let Some(offset) = toggle.wrong {
            self.wrong += 1;
            self.first_wrong.get_or_insert((number, offset));
        }
    }
}

/// Toggles the ROM as often as requested: freely, or once in each round.
fn toggle(options: &Options, rom: &Rom, rounds: &Rounds, report: &mut Report) -> io::Result<Toggles> {
    let mut toggles = Toggles::default();
    let mut reported = Instant::now();
    let total = options.rounds.unwrap_or(options.toggles);
    for number in 0..total {
        if options.rounds.is_none() {
            toggles.add(rom.toggle(number)?);
        } else {
            let begin = Instant::now();
            rounds.begin();
            toggles.add(rom.read_whole()?);
            rounds.wait_for_all(options.threads);
            toggles.rounds_us.push(microseconds(begin.elapsed()));
        }
        if reported.elapsed() >= PROGRESS_PERIOD {
            reported = Instant::now();
            report.line(&json!({"event": "progress", "done": number + 1, "total": total}))?;
        }
    }
    Ok(toggles)
}

fn microseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn run_threads(options: &Options, rom: &Rom, report: &mut Report) -> io::Result<(Toggles, Touched)> {
    let (stop, done, rounds) = (&AtomicBool::new(false), &AtomicU64::new(0), &Rounds::default());
    let pages = (options.memory_mib as usize) * ((1 << 20) / page_bytes());
    thread::scope(|scope| {
        let mut threads = Vec::new();
        // The threads end even if an error occurs.
        let toggled = (|| {
            for index in 0..options.threads as u16 {
                let mut memory = Memory::new(index, pages)?;
                let work = move || {
                    if options.rounds.is_none() {
                        return toucher(memory, options.passes, stop, done);
                    }
                    rounds.take_part(|| memory.touch(pages));
                    memory.check_all();
                    memory
                };
                threads.push(thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, work)?);
            }
            if options.rounds.is_some() {
                // Memory is mapped when it is first touched, which is not part of any round.
                rounds.begin();
                rounds.wait_for_all(options.threads);
            }
            toggle(options, rom, rounds, report)
        })();
        stop.store(true, Ordering::Relaxed);
        rounds.close();
        let mut touched = Touched::default();
        for thread in threads {
            let memory = thread.join().map_err(|_| io::Error::other("a thread panicked"))?;
            let (damages, first) = memory.damages();
            touched.touches += memory.touches();
            touched.passes += memory.passes();
            touched.damages += damages;
            touched.first_damage = touched.first_damage.or(first);
        }
        Ok((toggled?, touched))
    })
}

/// Minimum, median, mean, 99th percentile and maximum of at least one number.
fn summary(numbers: &[f64]) -> Value {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share).round() as usize];
    json!({
        "min": at(0.0), "median": at(0.5), "mean": sorted.iter().sum::<f64>() / sorted.len() as f64,
        "p99": at(0.99), "max": at(1.0),
    })
}

fn run(options: &Options, rom: &Rom, report: &mut Report) -> Result<bool, Box<dyn error::Error>> {
    report.settle(&json!({
        "event": "begin", "workload": "mmtest", "threads": options.threads, "memory_mib": options.memory_mib,
        "toggles": options.toggles, "passes": options.passes, "rounds": options.rounds, "rom_bytes": rom.len(),
    }))?;
    let watch = Stopwatch::start()?;
    let (toggles, touched) = run_threads(options, rom, report)?;
    let Times { real, user, sys, faults } = watch.elapsed()?;
    let mut end = json!({
        "event": "end", "workload": "mmtest", "toggles": toggles.times_us.len(),
        "real": real.as_secs_f64(), "user": user.as_secs_f64(), "sys": sys.as_secs_f64(),
        "toggle_us": summary(&toggles.times_us), "touches": touched.touches, "passes": touched.passes,
        "faults": faults, "rom_errors": toggles.wrong, "canary_errors": touched.damages,
    });
    if options.rounds.is_some() {
        end["round_us"] = summary(&toggles.rounds_us);
    }
    report.settle(&end)?;
    for line in damage_lines(&toggles, &touched) {
        eprintln!("mmtest: {line}");
        report.line(&line)?;
    }
    Ok(toggles.wrong == 0 && touched.damages == 0)
}

fn damage_lines(toggles: &Toggles, touched: &Touched) -> Vec<Value> {
    let rom = toggles.first_wrong.map(|(number, offset)| {
        json!({"event": "damage", "workload": "mmtest", "what": "rom", "toggle": number, "offset": offset})
    });
    let canary = touched.first_damage.map(|damage| {
        json!({
            "event": "damage", "workload": "mmtest", "what": "canary", "thread": damage.thread,
            "page": damage.page, "expected": damage.expected, "found": damage.found,
        })
    });
    rom.into_iter().chain(canary).collect()
}

fn main() -> ExitCode {
    Options::program().main(|options, report| {
        let rom = Rom::open(&options.rom).map_err(|error| format!("{}: {error}", options.rom.display()))?;
        run(options, &rom, report).map_err(|error| error.to_string())
    })
}

#[cfg(test)]
mod tests;
