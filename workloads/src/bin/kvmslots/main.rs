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
use std::process::ExitCode;
use workloads::options::{Program, Report};

const PAGES_PER_MIB: u64 = 256;
/// The guest's room for slots.
const PAGES_MAX: u64 = guest::MIB_MAX * PAGES_PER_MIB;

const USAGE: &str = "\
usage: kvmslots [--mib N | --pages N] [--elsewhere N] [--rounds N] [--part P] [--log WAY]

  --mib N      size of the slot [1024]
  --pages N    the same in pages of 4 KiB
  --elsewhere N
               MiB of memory in another slot, which stays [0]
  --rounds N   number of times that each part is run [3]
  --part P     `delete`, `log`, or `both` [both]
  --log WAY    `simple`: fetching the log also protects the pages again; `manual`: a separate call
               does (KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2) [simple]

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
    elsewhere: usize,
    rounds: u64,
    parts: Vec<Part>,
    log: LogWay,
}

impl Options {
    fn program() -> Program<Self> {
        let options = Self {
            pages: pages_of_mib(1024),
            elsewhere: 0,
            rounds: 3,
            parts: vec![Part::Delete, Part::Log],
            log: LogWay::Simple,
        };
        Program::new("kvmslots", USAGE, options, |options, given| {
            match given.name {
                "--mib" => options.pages = pages_of_mib(given.number(1, guest::MIB_MAX)?),
                "--pages" => options.pages = given.number(1, PAGES_MAX)? as usize,
                "--elsewhere" => options.elsewhere = pages_of_mib(given.number(0, guest::MIB_MAX)?),
                "--rounds" => options.rounds = given.number(1, 10_000)?,
                "--part" => {
                    options.parts = match given.value {
                        "delete" => vec![Part::Delete],
                        "log" => vec![Part::Log],
                        "both" => vec![Part::Delete, Part::Log],
                        _ => return Err(given.expected("delete, log, or both")),
                    }
                }
                "--log" => {
                    options.log = match given.value {
                        "simple" => LogWay::Simple,
                        "manual" => LogWay::Manual,
                        _ => return Err(given.expected("simple or manual")),
                    }
                }
                _ => return Err(given.unknown()),
            }
            Ok(())
        })
        .checked(Self::check)
    }

    fn check(&mut self) -> Result<(), String> {
        let all = (self.pages + self.elsewhere) as u64;
        if all > PAGES_MAX {
            return Err(format!(
                "--elsewhere: with the slot these are {} MiB, and there is room for {}",
                all.div_ceil(PAGES_PER_MIB),
                guest::MIB_MAX
            ));
        }
        Ok(())
    }
}

fn pages_of_mib(mib: u64) -> usize {
    (mib * PAGES_PER_MIB) as usize
}

fn run(options: &Options, report: &mut Report) -> io::Result<()> {
    let mut machine = Machine::start(options.pages, options.elsewhere, options.log)?;
    if options.elsewhere != 0 {
        round::store_elsewhere(&mut machine)?;
    }
    report.settle(&json!({
        "event": "begin", "workload": "kvmslots", "pages": options.pages, "rounds": options.rounds,
        "elsewhere": options.elsewhere,
        "parts": options.parts.iter().map(|part| part.name()).collect::<Vec<_>>(),
        "log": options.log.name(),
    }))?;
    for number in 0..options.rounds {
        let mut line = json!({"event": "round", "workload": "kvmslots", "round": number});
        for part in &options.parts {
            for (step, ns) in part.run(&mut machine)? {
                line[format!("{}.{step}", part.name())] = ns.into();
            }
        }
        report.line(&line)?;
    }
    report.settle(&json!({
        "event": "end", "workload": "kvmslots", "pages": options.pages, "rounds": options.rounds,
    }))
}

fn main() -> ExitCode {
    Options::program().main(|options, report| match run(options, report) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            eprintln!("kvmslots: {error}");
            Ok(false)
        }
        done => done.map(|()| true),
    })
}
