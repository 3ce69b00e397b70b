//! The demo on Arm: memory is removed from a guest that uses it, with a flush for each page, and
//! with one flush for all.
//!
//! Arm's processors flush each other's TLBs themselves, so guests do not need flush hypercalls
//! there. The cost is in the hypervisor's own flushes of stage 2.

use super::table::{self, Column};
use crate::arch::{Arch, Platform};
use crate::cli::DemoArgs;
use crate::machine::counters::Snapshot;
use crate::machine::process::{End, Flow, Machine};
use crate::machine::signals::Signals;
use crate::machine::spec::Clock;
use crate::results::{self, Samples, Subject};
use crate::run::{conclude, reporting_console};
use crate::size::{MIB, display};
use crate::vm::{Guest, Hypervisor, StockGuest};
use anyhow::Result;
use hostlink::config::{NestedPage, Stage2Unmap, Switches};
use hostlink::exit::ExitCode;
use serde_json::Value;
use std::time::{Duration, Instant};

/// The two sides, in the order of the table's columns.
const SIDES: [Stage2Unmap; 2] = [Stage2Unmap::Page, Stage2Unmap::Range];
/// Default number of times that memory is added and removed.
const ROUNDS: u32 = 3;
/// The memory that is added and removed, and its address.
const AT: u64 = 4 << 30;
const SIZE: u64 = 64 * MIB;

/// Longest time for a deletion: page by page, the hypervisor gives the CPU to the guest after each
/// page.
const DELETION_MAX: Duration = Duration::from_secs(120);

const DELETION: &str = "deletion";
const STALL: &str = "longest stall";
const HEAD: &[(&str, &str)] = &[
    ("memory is taken away", DELETION),
    ("longest stall of a thread", STALL),
    ("first touch of all pages", "touch"),
    ("exits", "exit.all"),
];
const TAIL: &[(&str, &str)] =
    &[("pages installed", "nested.installed"), ("vCPUs preempted", "sched.preempted")];

pub(super) fn demo(args: &DemoArgs, platform: Platform, signals: &Signals) -> Result<u8> {
    let stock = StockGuest::prepare(Arch::Aarch64)?;
    let hypervisor = Hypervisor::build(Arch::Aarch64)?;
    let rounds = args.rounds.unwrap_or(ROUNDS);
    println!(
        "occupy: {} of memory come, are written to page by page, and go, {rounds} times; {} vCPUs on {} CPUs{}; {} runs a side",
        display(SIZE),
        args.size.vcpus,
        args.size.cpus,
        platform.suffix(),
        args.runs
    );
    println!("guest: {}\n", stock.versions().kernel);
    let mut samples = Samples::default();
    for run in 0..args.runs {
        // As with flushes: interleaved, with alternating order.
        let order = if run.is_multiple_of(2) { SIDES } else { [SIDES[1], SIDES[0]] };
        for side in order {
            let title = format!("{:<6} {}/{}", side.name(), run + 1, args.runs);
            let machine = Side { args, platform, side, rounds, stock: &stock, hypervisor: &hypervisor };
            match machine.run(&title, signals)? {
                Ok(seen) => seen.add_to(&mut samples, &case(args, platform, side)),
                Err(status) => return Ok(status),
            }
        }
    }
    let cases = SIDES.map(|side| case(args, platform, side));
    let columns: [Column<'_>; 2] = [(SIDES[0].name(), &cases[0]), (SIDES[1].name(), &cases[1])];
    println!("\n{}\n", table::table(&samples, columns, [HEAD, TAIL]));
    let [page, range] = [0, 1].map(|side| samples.of_quell(&cases[side], DELETION));
    samples.add(&cases[1], Subject::Quell, "deletion relative to page", "ratio", range / page);
    println!("{}", sentence(page, range));
    if let Some(path) = &args.output.json {
        results::write(path, "demo", Some(stock.versions()), &samples)?;
    }
    Ok(0)
}

struct Side<'a> {
    args: &'a DemoArgs,
    platform: Platform,
    side: Stage2Unmap,
    rounds: u32,
    stock: &'a StockGuest,
    hypervisor: &'a Hypervisor,
}

impl Side<'_> {
    /// Boots the guest and runs occupy in it. The inner error is the exit status, after the reason
    /// has been printed.
    fn run(&self, title: &str, signals: &Signals) -> Result<Result<Seen, u8>> {
        let command = format!("occupy --at {AT} --mib {} --report /dev/report", SIZE / MIB);
        let cmdline = format!("{} quiet panic=-1", reporting_console(self.platform.arch()));
        let initrd = self.stock.initrd(Some(&command));
        let guest = Guest {
            vcpus: self.args.size.vcpus,
            memory: self.args.size.memory,
            switches: Switches {
                stage2_unmap: self.side,
                nested_page: NestedPage::Small,
                ..Switches::default()
            },
            ..Guest::new(self.platform, self.stock.kernel(), Some(initrd), cmdline)
        };
        guest.check()?;
        let directory = tempfile::Builder::new().prefix("quell-demo-").tempdir()?;
        let mut spec = guest.on_quell(self.hypervisor, self.args.size.cpus, Clock::Wall, directory.path())?;
        spec.memory += SIZE;
        spec.timeout = Some(self.args.output.timeout());
        let mut seen = Seen { left: self.rounds, ..Seen::default() };
        let outcome = Machine::start(&spec, signals)?.run(|report, machine| seen.observe(report, machine))?;
        if outcome.end == End::Hypervisor(ExitCode::GuestPowerOff) && seen.counters.is_some() {
            println!("{title}  {:8.1} ms", worst(&seen.deletions));
            return Ok(Ok(seen));
        }
        eprintln!("quell: {title} failed; the guest's console ends with:");
        eprintln!("{}", crate::run::tail(&outcome.console));
        let status = conclude(&outcome, false);
        Ok(Err(if status == 0 { 1 } else { status }))
    }
}

#[derive(Default)]
struct Seen {
    /// Remaining rounds.
    left: u32,
    slot: u16,
    /// Milliseconds of each round.
    deletions: Vec<f64>,
    stalls: Vec<f64>,
    touches: Vec<f64>,
    begin: Option<Snapshot>,
    /// The counters from the first round's begin to the last one's end.
    counters: Option<Snapshot>,
}

impl Seen {
    /// Processes one line of occupy's reports, and performs the step that it waits for.
    fn observe(&mut self, report: &Value, machine: &mut Machine) -> Result<Flow> {
        let ms = |key: &str| report[key].as_f64().map(|us| us / 1e3);
        match report["event"].as_str() {
            Some("waiting") if self.left == 0 => {
                let now = machine.counters()?;
                self.counters = now.zip(self.begin.as_ref()).map(|(now, begin)| now.since(begin));
                machine.type_text("end\n")?;
            }
            Some("waiting") => {
                self.left -= 1;
                if self.begin.is_none() {
                    self.begin = machine.counters()?;
                }
                self.slot = machine.control()?.add(AT, SIZE)?;
                machine.type_text("\n")?;
            }
            Some("touched") => {
                self.touches.extend(ms("us"));
                let mut control = machine.control()?.with_patience(DELETION_MAX);
                let begun = Instant::now();
                control.delete(self.slot)?;
                self.deletions.push(begun.elapsed().as_secs_f64() * 1e3);
                machine.type_text("\n")?;
            }
            Some("round") => self.stalls.extend(ms("stall_us")),
            _ => {}
        }
        Ok(Flow::Continue)
    }

    /// Adds the worst round of the run, and the counters, to the samples of `case`.
    fn add_to(&self, samples: &mut Samples, case: &str) {
        for (metric, rounds) in [(DELETION, &self.deletions), (STALL, &self.stalls), ("touch", &self.touches)]
        {
            samples.add(case, Subject::Quell, metric, "ms", worst(rounds));
        }
        if let Some(counters) = &self.counters {
            samples.add_count(case, Subject::Quell, "exit.all", counters.exits());
            for (name, value) in counters.iter() {
                samples.add_count(case, Subject::Quell, name, value);
            }
        }
    }
}

/// The largest of some values; 0 if there are none.
fn worst(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

fn case(args: &DemoArgs, platform: Platform, side: Stage2Unmap) -> String {
    format!("unmap-{}:{}-{}{}", args.size.vcpus, args.size.cpus, side.name(), platform.suffix())
}

/// One sentence with the result, from the milliseconds of both sides.
fn sentence(page: f64, range: f64) -> String {
    let size = display(SIZE);
    if !(page > 0.0 && range > 0.0) {
        return "Nothing was measured.".to_owned();
    }
    if range < page {
        format!(
            "With one flush for all pages, taking {size} away takes {range:.1} ms instead of {page:.1} ms: it is {:.0} \
             times as fast.",
            page / range
        )
    } else {
        format!(
            "With one flush for all pages, taking {size} away is not faster here: {range:.1} ms, and {page:.1} ms page by page."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_round_counts() {
        let mut samples = Samples::default();
        let seen = Seen { deletions: vec![1.0, 5.0, 2.0], ..Seen::default() };
        seen.add_to(&mut samples, "c");
        assert!((samples.of_quell("c", DELETION) - 5.0).abs() < 1e-9);
        assert!(samples.of_quell("c", STALL).abs() < 1e-9);
    }

    #[test]
    fn the_sentence_says_which_is_faster() {
        assert!(sentence(500.0, 16.0).contains("31 times as fast"));
        assert!(sentence(1.0, 2.0).contains("not faster"));
        assert!(sentence(f64::NAN, 2.0).contains("Nothing"));
    }
}
