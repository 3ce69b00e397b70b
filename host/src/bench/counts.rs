//! `quell bench exits` and `quell bench flush`: instructions per operation, including exit and
//! entry.
//!
//! A bare guest performs each operation many times on a machine whose clock is the number of
//! executed instructions, and reports one line per case. Flushes of running vCPUs are counted in
//! [`running`].

use super::{arm_exits, running};
use crate::arch::{Arch, Platform};
use crate::cli::{ExitsArgs, FlushArgs};
use crate::machine::devices::Devices;
use crate::machine::process::{End, Flow, Machine};
use crate::machine::signals::Signals;
use crate::machine::spec::Clock;
use crate::results::{self, Samples, Subject, number};
use crate::run::conclude;
use crate::size::MIB;
use crate::table::table;
use crate::vm::{Guest, Hypervisor};
use crate::workspace;
use anyhow::Result;
use hostlink::config::{FlushMode, MAX_VCPUS, ResetPolicy, Switches};
use hostlink::exit::ExitCode;
use std::path::Path;
use std::time::Duration;

/// One operation.
pub(super) struct Case {
    /// Its name in the guest's report.
    pub(super) name: &'static str,
    /// Its label in the table.
    label: &'static str,
    /// The most instructions that it may take.
    budget: u64,
    /// The figure for Linux KVM 6.1, by the same method.
    kvm: &'static str,
}

impl Case {
    /// Its name in results.
    pub(super) fn named(&self, platform: Platform) -> String {
        format!("{}{}", self.name, platform.suffix())
    }
}

pub(super) const fn case(name: &'static str, label: &'static str, budget: u64, kvm: &'static str) -> Case {
    Case { name, label, budget, kvm }
}

const CASES: [Case; 6] = [
    case("cpuid", "CPUID", 400, "3,259"),
    case("hypercall", "hypercall that only returns", 450, "9,757"),
    case("port-out", "port write", 500, "1,760"),
    case("self-ipi", "x2APIC self-IPI with EOI", 1500, "10,513"),
    case("tsc-deadline", "TSC deadline, set and delivered", 1500, "12,101"),
    case("ipi-round-trip", "IPI round trip, 2 vCPUs on 1 CPU", 4000, "41,957"),
];

const FLUSH_CASES: [Case; 5] = [
    space("space-idle-1", "flush all of 1 vCPU that does not run", 1),
    space("space-idle-8", "… of 8", 8),
    space("space-idle-64", "… of 64", 64),
    space("space-idle-128", "… of 128", 128),
    space("space-idle-254", "… of 254", 254),
];

/// A flush of everything on `targets` targets.
const fn space(name: &'static str, label: &'static str, targets: u64) -> Case {
    case(name, label, 700 + 12 * targets, "")
}

/// What a guest counts.
struct Bench {
    /// Its name in the guest and in results.
    name: &'static str,
    vcpus: u32,
}

pub(super) const METRIC: &str = "instructions";

/// `quell bench exits`.
pub(crate) fn exits(args: &ExitsArgs, signals: &Signals) -> Result<u8> {
    let mut samples = Samples::default();
    let (status, table) = count(args.platform.platform()?, args.output.timeout(), signals, &mut samples)?;
    println!("{table}");
    save("exits", args.output.json.as_deref(), &samples)?;
    Ok(status)
}

/// Counts exits on a machine of this platform. Returns the status, which is 0 if each case is
/// within its budget, and the table.
pub(crate) fn count(
    platform: Platform,
    timeout: Duration,
    signals: &Signals,
    samples: &mut Samples,
) -> Result<(u8, String)> {
    let (status, cases) = match platform.arch() {
        Arch::X86_64 => (run(&Bench { name: "exits", vcpus: 2 }, timeout, signals, samples)?, &CASES[..]),
        Arch::Aarch64 => {
            arm_exits::run(platform, timeout, signals, samples)?;
            (0, &arm_exits::CASES[..])
        }
    };
    let (table, within) = judge(cases, platform, samples);
    Ok((status.max(u8::from(!within)), table))
}

/// `quell bench flush`.
pub(crate) fn flush(args: &FlushArgs, signals: &Signals) -> Result<u8> {
    let mut samples = Samples::default();
    let (mut status, table) = count_flushes(args.output.timeout(), signals, &mut samples)?;
    println!("{table}");
    if signals.caught().is_none() {
        status = status.max(running::run(args, signals, &mut samples)?);
    }
    save("flush", args.output.json.as_deref(), &samples)?;
    Ok(status)
}

/// The same as [`count`] for flushes of vCPUs that do not run.
pub(crate) fn count_flushes(
    timeout: Duration,
    signals: &Signals,
    samples: &mut Samples,
) -> Result<(u8, String)> {
    let status = run(&Bench { name: "flush", vcpus: MAX_VCPUS }, timeout, signals, samples)?;
    let (table, within) = judge(&FLUSH_CASES, Platform::X86_64, samples);
    Ok((status.max(u8::from(!within)), table))
}

/// Writes the results to the file in the arguments, if there is one.
fn save(name: &'static str, path: Option<&Path>, samples: &Samples) -> Result<()> {
    path.map_or(Ok(()), |path| results::write(path, name, None, samples))
}

/// Runs the guest; the status is not 0 if it fails.
fn run(bench: &Bench, timeout: Duration, signals: &Signals, samples: &mut Samples) -> Result<u8> {
    let guest = Guest {
        kernel: workspace::build(workspace::PROBE, Arch::X86_64)?,
        initrd: None,
        cmdline: format!("bench={}", bench.name),
        vcpus: bench.vcpus,
        memory: 64 * MIB,
        flush: FlushMode::Hypercall,
        platform: Platform::X86_64,
        reset: ResetPolicy::Exit,
        switches: Switches::default(),
        devices: Devices::default(),
    };
    guest.check()?;
    let directory = tempfile::Builder::new().prefix("quell-bench-").tempdir()?;
    let mut spec =
        guest.on_quell(&Hypervisor::build(Arch::X86_64)?, 1, Clock::Instructions, directory.path())?;
    spec.timeout = Some(timeout);
    let outcome = Machine::start(&spec, signals)?.run(|_, _| Ok(Flow::Continue))?;

    for report in outcome.reports.iter().filter(|report| report["result"] == "fail") {
        eprintln!("quell: the guest says: {}", report["why"].as_str().unwrap_or("that it failed"));
    }
    for report in outcome.reports.iter().filter(|report| report["metric"] == METRIC) {
        if let (Some(case), Some(value)) = (report["case"].as_str(), number(&report["value"])) {
            samples.add(case, Subject::Quell, METRIC, METRIC, value);
        }
    }
    match outcome.end {
        End::Hypervisor(ExitCode::GuestPowerOff) => Ok(0),
        _ => Ok(conclude(&outcome, false).max(1)),
    }
}

/// The table, and whether each case is present and within its budget.
fn judge(cases: &[Case], platform: Platform, samples: &Samples) -> (String, bool) {
    let mut rows = Vec::new();
    let mut within = true;
    for case in cases {
        let row = samples.row(&case.named(platform), Subject::Quell, METRIC);
        #[expect(clippy::cast_precision_loss, reason = "budgets are small")]
        let good = row.as_ref().is_some_and(|row| row.max <= case.budget as f64);
        within &= good;
        let value = row.map_or_else(|| "not reported".to_owned(), |row| format!("{:.0}", row.median));
        let verdict = if good { "" } else { "over" };
        let budget = case.budget.to_string();
        rows.push([case.label, &value, &budget, case.kvm, verdict].map(str::to_owned));
    }
    // Cases that the guest measured in addition to the list.
    for row in samples.rows().iter().filter(|row| cases.iter().all(|case| case.named(platform) != row.case)) {
        rows.push([row.case.as_str(), &format!("{:.0}", row.median), "", "", ""].map(str::to_owned));
    }
    let header = ["instructions per operation", "Quell", "at most", "KVM 6.1", ""];
    (table(header, rows).to_string(), within)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_that_is_missing_or_over_its_budget_fails() {
        let mut samples = Samples::default();
        assert!(!judge(&CASES, Platform::X86_64, &samples).1, "nothing was reported");
        for case in &CASES {
            samples.add(case.name, Subject::Quell, METRIC, METRIC, 399.0);
        }
        assert!(judge(&CASES, Platform::X86_64, &samples).1);
        samples.add("cpuid", Subject::Quell, METRIC, METRIC, 401.0);
        assert!(!judge(&CASES, Platform::X86_64, &samples).1, "the worst run counts");
    }

    #[test]
    fn values_that_are_no_counts_are_not_taken() {
        for value in [serde_json::json!("12"), serde_json::json!(-3), serde_json::json!(null)] {
            assert_eq!(number(&value), None, "{value}");
        }
    }
}
