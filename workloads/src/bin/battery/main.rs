//! Battery: what a kernel does with memory, code and processors besides mapping files, each checked
//! by the data that it must leave: mappings, merged pages (KSM), huge pages, user faults, patched
//! code (ftrace), and processors that go and come back. Meanwhile threads on all processors do the
//! first of these.
//!
//! It reports JSON lines: `begin`, `check` for each check, `end` with the counts. It needs root,
//! and tracefs at its usual place.

mod files;
mod huge;
mod ksm;
mod maps;
mod processors;
mod tracing;
mod userfaults;
mod workers;

use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Instant;
use std::{error, io};
use workloads::options::Program;
use workloads::report::Report;

const USAGE: &str = "\
usage: battery [--only NAME] [--rounds N] [--report F] [--settle MS]

  --only NAME  this check only [all of them]
  --rounds N   rounds of each check [4]
  --report F   file for the JSON lines [standard output]
  --settle MS  idle time after `begin` and after `end` [0]

The status is 1 if a check failed.";

/// A failed check: the reason.
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

/// Runs the checks; whether all have passed.
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
}
