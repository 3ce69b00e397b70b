//! Battery: what a kernel does with memory, code and processors besides mapping files, each checked
//! by the data that it must leave: mappings, merged pages (KSM), huge pages, user faults, patched
//! code (ftrace), and processors that go and come back. Meanwhile threads on all processors do the
//! first of these.
//!
//! It reports JSON lines: `begin`, `check` for each check, `end` with the counts. It needs root,
//! and tracefs at its usual place.

use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use std::{error, fs, io, thread};
use workloads::options::{Program, Report, cpus};

mod huge;
mod ksm;
mod maps;
mod processors;
mod tracing;
mod userfaults;

const USAGE: &str = "\
usage: battery [--only NAME] [--rounds N]

  --only NAME  this check only [all of them]
  --rounds N   rounds of each check [4]

The status is 1 if a check failed.";

type Failure = Box<dyn error::Error + Send + Sync>;
/// What a check has found, as fields of its report.
type Found = Result<Value, Failure>;

struct Check {
    name: &'static str,
    run: fn(rounds: u64) -> Found,
}

/// All checks. The host tool knows their names (`host/src/test/kernels.rs`).
const CHECKS: [Check; 7] = [
    Check { name: "mmap", run: maps::mappings },
    Check { name: "fork", run: maps::forks },
    Check { name: "ksm", run: ksm::merges },
    Check { name: "huge", run: huge::splits_and_collapses },
    Check { name: "userfaultfd", run: userfaults::serves },
    Check { name: "ftrace", run: tracing::counts },
    Check { name: "hotplug", run: processors::go_and_come_back },
];

#[derive(Debug, PartialEq, Eq)]
struct Options {
    only: Option<String>,
    rounds: u64,
}

impl Options {
    fn program() -> Program<Self> {
        let options = Self { only: None, rounds: 4 };
        Program::new("battery", USAGE, options, |options, given| {
            match given.name {
                "--only" if CHECKS.iter().any(|check| check.name == given.value) => {
                    options.only = Some(given.value.to_owned());
                }
                "--only" => return Err(format!("--only {}: there is no such check", given.value)),
                "--rounds" => options.rounds = given.number(1, 1 << 20)?,
                _ => return Err(given.unknown()),
            }
            Ok(())
        })
    }
}

fn run(options: &Options, report: &mut Report) -> io::Result<bool> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    report.settle(&json!({
        "event": "begin", "workload": "battery", "kernel": release,
        "page_bytes": rustix::param::page_size(), "rounds": options.rounds,
    }))?;
    let (mut passed, mut failed) = (0, 0);
    for check in &CHECKS {
        if options.only.as_ref().is_some_and(|only| only != check.name) {
            continue;
        }
        let mut line = json!({"event": "check", "check": check.name});
        let begin = Instant::now();
        let result = (check.run)(options.rounds);
        line["seconds"] = begin.elapsed().as_secs_f64().into();
        match result {
            Ok(found) => {
                passed += 1;
                (line["ok"], line["found"]) = (true.into(), found);
            }
            Err(why) => {
                failed += 1;
                (line["ok"], line["why"]) = (false.into(), why.to_string().into());
            }
        }
        report.line(&line)?;
    }
    report.settle(&json!({"event": "end", "workload": "battery", "passed": passed, "failed": failed}))?;
    Ok(failed == 0)
}

fn main() -> ExitCode {
    Options::program().main(run)
}

fn read(path: &str) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| named(path, &error))
}

fn number(path: &str) -> Result<u64, Failure> {
    let text = read(path)?;
    text.trim().parse().map_err(|_| format!("{path}: '{}' is no number", text.trim()).into())
}

fn write(path: &str, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| named(path, &error))
}

fn named(path: &str, error: &io::Error) -> Failure {
    format!("{path}: {error}").into()
}

/// The numbers of a list such as `0-2,5`.
fn list(text: &str) -> Result<Vec<usize>, Failure> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(first.parse::<usize>()?..=last.parse()?);
    }
    Ok(numbers)
}

/// Runs a thread for each processor; the sum of what they return.
fn all_threads(work: impl Fn(u32) -> Result<u64, Failure> + Sync) -> Result<u64, Failure> {
    let count = cpus() as u32;
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count).map(|index| scope.spawn(move || work(index))).collect();
        let ends = threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked")?);
        ends.sum()
    })
}

/// Runs `act` while threads on all processors use mappings; what it returns, and their rounds.
fn during<T>(act: impl FnOnce() -> Result<T, Failure>) -> Result<(T, u64), Failure> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let works = scope.spawn(|| {
            all_threads(|index| {
                let mut rounds = 0;
                // Relaxed: nothing else is told by it.
                while rounds == 0 || !is_over.load(Ordering::Relaxed) {
                    maps::round(u64::from(index) << 32 | rounds)?;
                    rounds += 1;
                }
                Ok(rounds)
            })
        });
        let acted = act();
        is_over.store(true, Ordering::Relaxed);
        let rounds = works.join().map_err(|_| "a thread panicked")??;
        Ok((acted?, rounds))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_that_need_no_rights_pass() {
        for check in CHECKS.iter().filter(|check| ["mmap", "fork"].contains(&check.name)) {
            let found = (check.run)(2).unwrap_or_else(|why| panic!("{}: {why}", check.name));
            assert!(
                found.as_object().is_some_and(|found| found.values().all(|count| *count != 0)),
                "{found}"
            );
        }
    }

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(list("0-2,5\n").expect("is a list"), [0, 1, 2, 5]);
        assert!(list("\n").expect("is empty").is_empty());
        assert!(list("0-x").is_err());
    }

    #[test]
    fn errors_name_the_file() {
        for error in [read("/no/file").map(drop), number("/proc/version").map(drop), write("/no/file", "")] {
            let why = error.expect_err("fails").to_string();
            assert!(why.starts_with("/no/file: ") || why.starts_with("/proc/version: "), "{why}");
        }
    }
}
