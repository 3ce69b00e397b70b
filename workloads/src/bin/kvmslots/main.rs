//! Kvmslots: what Linux KVM pays to remove guest memory, and to log stores to it.
//!
//! A small virtual machine monitor, for a Linux that has `/dev/kvm`. It makes a machine with one
//! vCPU and a memory slot of small pages, each of which the guest stores to. The slot is deleted
//! while the guest waits. Then it is added again, with its stores logged; all pages are stored to
//! once more, and the log is fetched. More memory may be in use elsewhere; then it also measures
//! what the guest pays to use that memory again after the deletion.
//!
//! It reports JSON lines: `begin`, then `round` with the nanoseconds of each step, then `end`.

mod guest;
mod machine;
mod round;

#[cfg(test)]
mod tests;

use machine::{LogWay, Machine};
use round::Part;
use serde_json::json;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;
use workloads::options::{self, number, unknown};
use workloads::report::Report;

/// The exit status for a wrong result, and for a failed operation.
const WRONG: u8 = 1;
const FAILED: u8 = 3;

const PAGES_PER_MIB: u64 = 256;
/// The guest's room for slots.
const PAGES_MAX: u64 = guest::MIB_MAX * PAGES_PER_MIB;

const USAGE: &str = "\
usage: kvmslots [--mib N | --pages N] [--elsewhere N] [--rounds N] [--part P] [--log WAY] [--report F]
                [--settle MS]

  --mib N      size of the slot [1024]
  --pages N    the same in pages of 4 KiB
  --elsewhere N
               MiB of memory in another slot, which stays [0]
  --rounds N   number of times that each part is run [3]
  --part P     `delete`, `log`, or `both` [both]
  --log WAY    `simple`: fetching the log also protects the pages again; `manual`: a separate call
               does (KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2) [simple]
  --report F   file for the JSON lines [standard output]
  --settle MS  idle time after `begin` and before `end` is reported, for readers of counters [0]

It needs /dev/kvm, and memory for the slot. Steps of a round, each in nanoseconds (ns):

  delete.add, log.add                  the slot is made
  delete.fault_in, log.fault_in        the guest stores to each page for the first time
  delete.remove                        the slot is deleted
  delete.until_on                      the same, until the guest has continued: its next store exits
                                       as an access to a device
  delete.again                         after that the guest stores to each page elsewhere, as it has
                                       done once before the first round; only with --elsewhere
  log.enable                           stores begin to be logged
  log.write                            the guest stores to each page again
  log.fetch, log.clear                 the log is fetched, and pages are protected again (`manual`)

It checks each store, that the log has all pages, that the next log has only pages stored to since,
and the address of the guest's access to the deleted slot. The status is 1 if a check failed, 3 if an
operation failed. For example:

  kvmslots --mib 1024 --rounds 1 --log manual";

#[derive(Debug, PartialEq, Eq)]
struct Options {
    pages: usize,
    /// Pages that stay.
    elsewhere: usize,
    rounds: u64,
    parts: Vec<Part>,
    log: LogWay,
    report: Option<PathBuf>,
    settle: Duration,
}

impl Options {
    fn parse(args: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            pages: (1024 * PAGES_PER_MIB) as usize,
            elsewhere: 0,
            rounds: 3,
            parts: vec![Part::Delete, Part::Log],
            log: LogWay::Simple,
            report: None,
            settle: Duration::ZERO,
        };
        for pair in options::pairs(args) {
            let (name, value) = pair?;
            match name.as_str() {
                "--mib" => options.pages = pages_of_mib(number(&name, &value, 1, guest::MIB_MAX)?),
                "--pages" => options.pages = number(&name, &value, 1, PAGES_MAX)? as usize,
                "--elsewhere" => {
                    options.elsewhere = pages_of_mib(number(&name, &value, 0, guest::MIB_MAX)?);
                }
                "--rounds" => options.rounds = number(&name, &value, 1, 10_000)?,
                "--part" => options.parts = parts(&value)?,
                "--log" => options.log = log_way(&value)?,
                "--report" => options.report = Some(PathBuf::from(value)),
                "--settle" => options.settle = Duration::from_millis(number(&name, &value, 0, 60_000)?),
                _ => return Err(unknown(&name)),
            }
        }
        let all = (options.pages + options.elsewhere) as u64;
        if all > PAGES_MAX {
            return Err(format!(
                "--elsewhere: with the slot these are {} MiB, and there is room for {}",
                all.div_ceil(PAGES_PER_MIB),
                guest::MIB_MAX
            ));
        }
        Ok(options)
    }
}

fn pages_of_mib(mib: u64) -> usize {
    (mib * PAGES_PER_MIB) as usize
}

fn parts(value: &str) -> Result<Vec<Part>, String> {
    match value {
        "delete" => Ok(vec![Part::Delete]),
        "log" => Ok(vec![Part::Log]),
        "both" => Ok(vec![Part::Delete, Part::Log]),
        _ => Err(format!("--part {value}: expected delete, log, or both")),
    }
}

fn log_way(value: &str) -> Result<LogWay, String> {
    match value {
        "simple" => Ok(LogWay::Simple),
        "manual" => Ok(LogWay::Manual),
        _ => Err(format!("--log {value}: expected simple or manual")),
    }
}

fn run(options: &Options) -> io::Result<()> {
    let mut report = Report::open(options.report.as_deref())?;
    let mut machine = Machine::start(options.pages, options.elsewhere, options.log)?;
    if options.elsewhere != 0 {
        round::store_elsewhere(&mut machine)?;
    }
    report.line(&json!({
        "event": "begin", "workload": "kvmslots", "pages": options.pages, "rounds": options.rounds,
        "elsewhere": options.elsewhere,
        "parts": options.parts.iter().map(|part| part.name()).collect::<Vec<_>>(),
        "log": options.log.name(),
    }))?;
    thread::sleep(options.settle);
    for number in 0..options.rounds {
        let mut line = json!({"event": "round", "workload": "kvmslots", "round": number});
        for part in &options.parts {
            for (step, ns) in part.run(&mut machine)? {
                line[format!("{}.{step}", part.name())] = ns.into();
            }
        }
        report.line(&line)?;
    }
    report.line(&json!({
        "event": "end", "workload": "kvmslots", "pages": options.pages, "rounds": options.rounds,
    }))?;
    thread::sleep(options.settle);
    Ok(())
}

fn main() -> ExitCode {
    let options = match options::of_process("kvmslots", USAGE, Options::parse) {
        Ok(options) => options,
        Err(status) => return status,
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kvmslots: {error}");
            ExitCode::from(if error.kind() == io::ErrorKind::InvalidData { WRONG } else { FAILED })
        }
    }
}
