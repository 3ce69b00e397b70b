//! `quell bench memslot`: the cost of removing guest memory.

mod load;

use crate::arch::{Arch, Platform};
use crate::cli::MemslotArgs;
use crate::machine::devices::Devices;
use crate::machine::outcome::Outcome;
use crate::machine::process::{End, Flow, Machine};
use crate::machine::signals::Signals;
use crate::machine::spec::Clock;
use crate::results::{self, Samples, Subject};
use crate::size::MIB;
use crate::table::{judge, table};
use crate::vm::{Guest, Hypervisor};
use crate::workspace;
use anyhow::{Context, Result, bail, ensure};
use hostlink::config::{FlushMode, NestedPage, ResetPolicy, Switches, Zap};
use hostlink::counters::Counter;
use hostlink::ctl::record::Deleted;
use hostlink::exit::ExitCode;
use serde_json::Value;

const INSTRUCTIONS: &str = "instructions";
/// Pages of the ROM, and the entries on the way to them.
const ROM_PAGES: f64 = 64.0;
const WAY_MAX: f64 = 3.0;
/// MiB in use elsewhere.
const SIZES: [(u64, &str); 3] = [(256, "rom-delete-256M"), (1024, "rom-delete-1G"), (2048, "rom-delete-2G")];
const ROUNDS: u32 = 50;
/// All memory is faulted back page by page, so a round takes long.
const ROUNDS_EVERYTHING: u32 = 3;
/// The most that a deletion may cost more with more memory elsewhere.
const SPREAD_MAX: f64 = 1.05;
/// The highest time of a round relative to zapping everything: the gain that S3's authors report.
const RATIO_MAX: f64 = 0.951;
/// The added GiB, in pages, and its address.
const ZAP_CASE: &str = "zap-1G-4K";
const ZAP_AT: u64 = 1 << 30;
const ZAP_SIZE: u64 = 1 << 30;
const ZAP_PAGES: f64 = (ZAP_SIZE >> 12) as f64;
const VISITED_PER_PAGE_MAX: f64 = 1.01;
/// Longest step: 50 µs at an instruction per nanosecond.
const STEP_MAX: f64 = 50_000.0;

/// Measures, prints, and evaluates.
pub(crate) fn memslot(args: &MemslotArgs, signals: &Signals) -> Result<u8> {
    let bench = Bench { hypervisor: Hypervisor::build(Arch::X86_64)?, args, signals };
    let mut samples = Samples::default();
    let mut good = true;
    for (mib, case) in SIZES {
        bench.rom(mib, case, Zap::Slot, ROUNDS, &mut samples)?;
    }
    let (mib, case) = SIZES[0];
    let everything = format!("{case}-everything");
    bench.rom(mib, &everything, Zap::Everything, ROUNDS_EVERYTHING, &mut samples)?;
    good &= print_deletions(&samples, &everything);
    bench.zap(&mut samples)?;
    good &= print_zap(&samples);
    load::measure(&bench, &mut samples)?;
    good &= load::print(&samples);
    if let Some(path) = &args.output.json {
        results::write(path, "memslot", None, &samples)?;
    }
    Ok(u8::from(!good))
}

struct Bench<'a> {
    hypervisor: Hypervisor,
    args: &'a MemslotArgs,
    signals: &'a Signals,
}

impl Bench<'_> {
    /// A machine with the bare guest, of one CPU that counts instructions. Only small pages: then
    /// memory elsewhere has the most entries.
    fn start(
        &self,
        cmdline: String,
        memory: u64,
        spare: u64,
        zap: Zap,
    ) -> Result<(Machine, tempfile::TempDir)> {
        let guest = Guest {
            kernel: workspace::build(workspace::PROBE, Arch::X86_64)?,
            initrd: None,
            cmdline,
            vcpus: 1,
            memory,
            flush: FlushMode::Hypercall,
            platform: Platform::X86_64,
            reset: ResetPolicy::Exit,
            switches: Switches { zap, nested_page: NestedPage::Small, ..Switches::default() },
            devices: Devices::default(),
        };
        guest.check()?;
        let directory = tempfile::Builder::new().prefix("quell-bench-").tempdir()?;
        let mut spec = guest.on_quell(&self.hypervisor, 1, Clock::Instructions, directory.path())?;
        spec.memory += spare;
        spec.timeout = Some(self.args.output.timeout());
        Ok((Machine::start(&spec, self.signals)?, directory))
    }

    /// Adds and removes the ROM repeatedly with `mib` MiB in use elsewhere.
    fn rom(&self, mib: u64, case: &str, zap: Zap, rounds: u32, samples: &mut Samples) -> Result<()> {
        eprintln!("{case}: {rounds} deletions with {mib} MiB elsewhere …");
        let cmdline = format!("bench=memslot-{rounds} count={mib}");
        let (machine, _directory) = self.start(cmdline, (mib + 64) * MIB, 0, zap)?;
        let outcome = finished(machine.run(|_, _| Ok(Flow::Continue))?)?;
        for (reported, metric) in [("deletion", "deletion"), ("cycle", "cycle with refaults")] {
            samples.add(case, Subject::Quell, metric, INSTRUCTIONS, reported_value(&outcome, reported)?);
        }
        let counters = outcome.counters.context("the hypervisor left no counters")?;
        #[expect(clippy::cast_precision_loss, reason = "small counts")]
        let per_round = |count: u64| count as f64 / f64::from(rounds);
        let visited = per_round(counters.get(Counter::ZapVisited));
        samples.add(case, Subject::Quell, "entries visited", "per deletion", visited);
        // The first touches are not refaults.
        let first = (mib * MIB) >> 12;
        let faults = per_round(counters.get(Counter::NestedInstalled).saturating_sub(first));
        samples.add(case, Subject::Quell, "pages installed", "per deletion", faults);
        samples.add(
            case,
            Subject::Quell,
            "flushes",
            "per deletion",
            per_round(counters.get(Counter::ZapFlushes)),
        );
        Ok(())
    }

    /// Adds a GiB, uses it in pages of 4 KiB, and removes it.
    fn zap(&self, samples: &mut Samples) -> Result<()> {
        eprintln!("{ZAP_CASE}: a GiB in pages of 4 KiB …");
        let (machine, _directory) = self.start("bench=zap".into(), 64 * MIB, ZAP_SIZE, Zap::Slot)?;
        let (mut slot, mut deleted) = (None, None);
        let outcome = machine.run(|report, machine| {
            match report["event"].as_str() {
                Some("waiting") => {
                    slot = Some(machine.control()?.add(ZAP_AT, ZAP_SIZE)?);
                }
                Some("touched") => {
                    let slot = slot.context("memory is touched that was not added")?;
                    deleted = Some(machine.control()?.delete(slot)?);
                }
                _ => {}
            }
            Ok(Flow::Continue)
        })?;
        finished(outcome)?;
        let Deleted { visited, tables, flushes, steps, ticks, longest } =
            deleted.context("the guest has not touched the memory")?;
        for (value, metric, unit) in [
            (visited, "entries visited", "count"),
            (flushes, "flushes", "count"),
            (tables, "tables freed", "count"),
            (steps.into(), "steps", "count"),
            (ticks, "deletion", INSTRUCTIONS),
            (longest, "longest step", INSTRUCTIONS),
        ] {
            #[expect(clippy::cast_precision_loss, reason = "counts of a benchmark")]
            samples.add(ZAP_CASE, Subject::Quell, metric, unit, value as f64);
        }
        Ok(())
    }
}

/// The outcome, if the guest finished.
fn finished(outcome: Outcome) -> Result<Outcome> {
    let failure = outcome.reports.iter().find(|report| report["result"] == "fail");
    if let Some(why) = failure.and_then(|report| report["why"].as_str()) {
        bail!("the guest says: {why}");
    }
    ensure!(
        outcome.end == End::Hypervisor(ExitCode::GuestPowerOff),
        "the machine ended with {:?}; the hypervisor's log:\n{}",
        outcome.end,
        outcome.log
    );
    Ok(outcome)
}

fn reported_value(outcome: &Outcome, case: &str) -> Result<f64> {
    let report = outcome.reports.iter().find(|report| report["case"] == case);
    report
        .and_then(|report| Value::as_f64(&report["value"]))
        .with_context(|| format!("the guest did not report '{case}'"))
}

/// Prints the cost of deletions of the ROM; returns whether they met their targets.
fn print_deletions(samples: &Samples, everything: &str) -> bool {
    let metrics = ["deletion", "cycle with refaults", "entries visited", "pages installed", "flushes"];
    let mut rows = Vec::new();
    for case in SIZES.iter().map(|(_, case)| *case).chain([everything]) {
        let cells = metrics.map(|metric| format!("{:.0}", samples.of_quell(case, metric)));
        rows.push([vec![case.to_owned()], cells.to_vec()].concat());
    }
    let header = ["per deletion", "instructions", "with refaults", "visited", "installed", "flushes"];
    println!("{}", table(header, rows));
    let costs = SIZES.map(|(_, case)| samples.of_quell(case, "deletion"));
    let spread =
        costs.iter().copied().fold(f64::MIN, f64::max) / costs.iter().copied().fold(f64::MAX, f64::min);
    let visited = SIZES.map(|(_, case)| samples.of_quell(case, "entries visited"));
    let most = visited.iter().copied().fold(f64::MIN, f64::max);
    let ratio = samples.of_quell(SIZES[0].1, "cycle with refaults")
        / samples.of_quell(everything, "cycle with refaults");
    let refaults = SIZES.map(|(_, case)| samples.of_quell(case, "pages installed"));
    let refaulted = refaults.iter().copied().fold(f64::MIN, f64::max);
    judge([
        ("deletion with most memory elsewhere, relative to least", spread, SPREAD_MAX),
        ("entries visited, beyond the ROM's", most - ROM_PAGES, WAY_MAX),
        ("pages that come back after a deletion, beyond the ROM's", refaulted - ROM_PAGES, 4.0),
        ("round with refaults, relative to zapping everything", ratio, RATIO_MAX),
    ])
}

/// Prints the cost of the GiB; returns whether it met its targets.
fn print_zap(samples: &Samples) -> bool {
    let of = |metric| samples.of_quell(ZAP_CASE, metric);
    judge([
        ("zap of 1 GiB: entries visited per page", of("entries visited") / ZAP_PAGES, VISITED_PER_PAGE_MAX),
        ("flushes", of("flushes"), 1.0),
        ("instructions per page", of("deletion") / ZAP_PAGES, f64::INFINITY),
        ("instructions of the longest step", of("longest step"), STEP_MAX),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_not_within_its_limit() {
        assert!(!print_zap(&Samples::default()) && !print_deletions(&Samples::default(), "x"));
    }
}
