//! A Linux guest whose threads use their memory while the ROM comes and goes, by the clock.

use super::{Bench, finished, judge, value};
use crate::machine::counters::Snapshot;
use crate::machine::process::{Flow, Machine};
use crate::results::{Samples, Subject};
use crate::run::CONSOLE;
use crate::size::MIB;
use crate::table::table;
use crate::vm::{Guest, StockGuest};
use anyhow::{Context, Result, ensure};
use hostlink::config::{FlushMode, NestedPage, ResetPolicy, Switches, Zap};
use hostlink::counters::Counter;
use std::time::Duration;

/// Threads, vCPUs, and CPUs that they share.
const THREADS: u32 = 8;
const CPUS: u32 = 2;
/// Times that the ROM is switched on, read, and switched off.
const TOGGLES: u32 = 300;
/// Memory that is left to the guest's kernel.
const KERNEL_MEMORY: u64 = 256 * MIB;
/// Idle time before and after, for the counters.
const SETTLE_MS: u64 = 300;
/// Most time relative to zapping everything: what the authors of Linux' series gained (S3, 89.117 ms to 84.768 ms).
const RATIO_MAX: f64 = 0.951;

const MODES: [(Zap, &str); 2] = [(Zap::Slot, "mmtest-8:2-slot"), (Zap::Everything, "mmtest-8:2-everything")];

/// Runs both modes in turn.
pub(super) fn measure(bench: &Bench<'_>, samples: &mut Samples) -> Result<()> {
    let stock = StockGuest::prepare()?;
    for run in 1..=bench.args.runs {
        for (zap, case) in MODES {
            eprintln!("{case}: run {run} of {} …", bench.args.runs);
            let (real, counters) = load(bench, &stock, zap)?;
            samples.add(case, Subject::Quell, "real", "s", real);
            for (metric, counter) in [
                ("slot changes", Counter::SlotChanges),
                ("pages installed", Counter::NestedInstalled),
                ("entries visited", Counter::ZapVisited),
                ("nested faults", Counter::ExitNpf),
            ] {
                samples.add_count(case, Subject::Quell, metric, counters.get(counter));
            }
        }
    }
    Ok(())
}

/// One run: seconds, and what the hypervisor counted meanwhile.
fn load(bench: &Bench<'_>, stock: &StockGuest, zap: Zap) -> Result<(f64, Snapshot)> {
    let memory = bench.args.memory;
    ensure!(memory > KERNEL_MEMORY, "the guest needs more than 256 MiB");
    let command = format!(
        "mmtest --threads {THREADS} --memory {} --toggles {TOGGLES} --settle {SETTLE_MS} --report /dev/ttyS1",
        ((memory - KERNEL_MEMORY) / MIB / u64::from(THREADS)).max(1)
    );
    let guest = Guest {
        kernel: stock.kernel(),
        initrd: Some(stock.initrd(Some(&command))),
        cmdline: format!("{CONSOLE} quiet panic=-1"),
        vcpus: THREADS,
        memory,
        flush: FlushMode::Hypercall,
        reset: ResetPolicy::Exit,
        switches: Switches { zap, nested_page: NestedPage::Large, ..Switches::default() },
    };
    guest.check()?;
    let directory = tempfile::Builder::new().prefix("quell-bench-").tempdir()?;
    let clock = crate::machine::spec::Clock::Wall;
    let mut spec = guest.on_quell(&bench.hypervisor, CPUS, clock, directory.path())?;
    spec.timeout = Some(Duration::from_secs(bench.args.timeout));
    let (mut begin, mut end) = (None, None);
    let outcome = Machine::start(&spec, bench.signals)?.run(|report, machine| {
        match report["event"].as_str() {
            Some("begin") => begin = machine.counters()?,
            Some("end") => end = report["real"].as_f64().zip(machine.counters()?),
            _ => {}
        }
        Ok(Flow::Continue)
    })?;
    let outcome = finished(outcome)?;
    let exit = outcome.report("exit").and_then(|report| report["status"].as_u64());
    ensure!(exit == Some(0), "mmtest has found damage, or failed:\n{}", crate::run::tail(&outcome.console));
    let (real, now) = end.context("mmtest did not report its end")?;
    Ok((real, now.since(&begin.context("mmtest did not report its begin")?)))
}

/// Prints both sides; says whether the target was met.
pub(super) fn print(samples: &Samples) -> bool {
    let rows = MODES.map(|(_, case)| {
        let of = |metric| value(samples, case, metric);
        vec![
            case.to_owned(),
            format!("{:.2} s", of("real")),
            format!("{:.0}", of("slot changes")),
            format!("{:.0}", of("entries visited")),
            format!("{:.0}", of("pages installed")),
            format!("{:.0}", of("nested faults")),
        ]
    });
    println!("{}", table(["", "real", "slot changes", "visited", "installed", "nested faults"], rows));
    let ratio = value(samples, MODES[0].1, "real") / value(samples, MODES[1].1, "real");
    judge([("time of the load, relative to zapping everything", ratio, RATIO_MAX)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_is_missed_by_what_is_no_faster() {
        let mut samples = Samples::default();
        assert!(!print(&samples), "nothing was measured");
        for (case, real) in [(MODES[0].1, 0.97), (MODES[1].1, 1.0)] {
            samples.add(case, Subject::Quell, "real", "s", real);
        }
        assert!(!print(&samples));
        samples.add(MODES[0].1, Subject::Quell, "real", "s", 0.5);
        assert!(print(&samples), "the median of 0.5 and 0.97");
    }
}
