//! `quell bench exits` and `quell bench flush`: instructions per operation, including exit and
//! entry.
//!
//! A bare guest performs each operation many times. On AMD64 its machine's clock is the number of
//! executed instructions, and it reports one line per case. On Arm the counter that the guest sees
//! is too coarse, and goes on while the machine waits: there each operation is a phase of its own,
//! and QEMU's plugin counts the instructions of all CPUs in it. Flushes of running vCPUs are
//! counted in [`super::running`].

use super::lab;
use crate::prelude::*;
use crate::results::number;

struct Case {
    name: &'static str,
    label: &'static str,
    budget: f64,
    /// The figure for Linux KVM 6.1, by the same method.
    kvm: &'static str,
}

const fn case(name: &'static str, label: &'static str, budget: f64, kvm: &'static str) -> Case {
    Case { name, label, budget, kvm }
}

const CASES: [Case; 6] = [
    case("cpuid", "CPUID", 400.0, "3,259"),
    case("hypercall", "hypercall that only returns", 450.0, "9,757"),
    case("port-out", "port write", 500.0, "1,760"),
    case("self-ipi", "x2APIC self-IPI with EOI", 1500.0, "10,513"),
    case("tsc-deadline", "TSC deadline, set and delivered", 1500.0, "12,101"),
    case("ipi-round-trip", "IPI round trip, 2 vCPUs on 1 CPU", 4000.0, "41,957"),
];

/// The cases in the order of their phases in the guest, which begin with 1. The guest's own
/// instructions count, those of its interrupt handler included.
const ARM_CASES: [Case; 7] = [
    case("hvc", "HVC without effect", 265.0, ""),
    case("register-read", "read of a register that traps", 305.0, ""),
    case("mmio-read", "read of the distributor", 435.0, ""),
    case("self-sgi", "SGI to itself, with its end", 1350.0, ""),
    case("timer", "timer, set and delivered", 985.0, ""),
    case("wfi", "WFI, ended by the timer", 3050.0, ""),
    case("sgi-round-trip", "SGI round trip, 2 vCPUs on 2 CPUs", 6450.0, ""),
];
const REPETITIONS: u32 = 1000;

const FLUSH_CASES: [Case; 5] = [
    space("space-idle-1", "flush all of 1 vCPU that does not run", 1),
    space("space-idle-8", "… of 8", 8),
    space("space-idle-64", "… of 64", 64),
    space("space-idle-128", "… of 128", 128),
    space("space-idle-254", "… of 254", 254),
];

/// A flush of everything on `targets` targets.
const fn space(name: &'static str, label: &'static str, targets: u32) -> Case {
    case(name, label, (700 + 12 * targets) as f64, "")
}

const METRIC: &str = "instructions";

pub(crate) fn count_exits(lab: &Lab<'_>, platform: Platform, samples: &mut Samples) -> Result<Vec<Limit>> {
    let cases = match platform.arch() {
        Arch::X86_64 => {
            count_reported(lab, "exits", 2, samples)?;
            &CASES[..]
        }
        Arch::Aarch64 => {
            count_phases(lab, platform, samples)?;
            &ARM_CASES[..]
        }
    };
    Ok(limits(cases, platform, samples))
}

/// Counts flushes of vCPUs that do not run.
pub(crate) fn count_flushes(lab: &Lab<'_>, samples: &mut Samples) -> Result<Vec<Limit>> {
    count_reported(lab, "flush", MAX_VCPUS, samples)?;
    Ok(limits(&FLUSH_CASES, Platform::X86_64, samples))
}

fn count_reported(lab: &Lab<'_>, name: &str, vcpus: u32, samples: &mut Samples) -> Result<()> {
    let guest = lab::bare(Platform::X86_64, workspace::PROBE, format!("bench={name}"), vcpus)?;
    let outcome = lab.run_alone(lab.on_quell(&guest, 1, Clock::Instructions)?)?;
    for report in outcome.reports.iter().filter(|report| report["metric"] == METRIC) {
        if let (Some(case), Some(value)) = (report["case"].as_str(), number(&report["value"])) {
            samples.add(case, Subject::Quell, METRIC, METRIC, value);
        }
    }
    Ok(())
}

fn count_phases(lab: &Lab<'_>, platform: Platform, samples: &mut Samples) -> Result<()> {
    let cmdline = format!("test=exits count={REPETITIONS}");
    let guest = lab::bare(platform, workspace::HOSTILE, cmdline, 2)?;
    let spec = lab.on_quell(&guest, 2, Clock::Instructions)?;
    let (_, phases) = lab.count(spec, |_, _| Ok(Flow::Continue))?;
    for (index, case) in ARM_CASES.iter().enumerate() {
        let each = float(phases.numbered(index + 1)?.instructions) / f64::from(REPETITIONS);
        samples.add(&platform.named(case.name), Subject::Quell, METRIC, METRIC, each);
    }
    Ok(())
}

/// The budgets of these cases, whose worst run counts; and what the guest has measured besides.
fn limits(cases: &[Case], platform: Platform, samples: &Samples) -> Vec<Limit> {
    let rows = samples.rows();
    let worst = |name: &str| {
        let name = platform.named(name);
        rows.iter().find(|row| row.case == name).map_or(f64::NAN, |row| row.spread.max)
    };
    let others = rows.iter().filter(|row| cases.iter().all(|case| platform.named(case.name) != row.case));
    let others = others.map(|row| Limit::shown(row.case.as_str(), row.spread.max));
    budgets(cases, worst).chain(others).collect()
}

fn budgets(cases: &[Case], worst: impl Fn(&str) -> f64) -> impl Iterator<Item = Limit> {
    cases.iter().map(move |case| Limit::at_most(case.label, worst(case.name), case.budget).beside(case.kvm))
}

/// The same of a case of `bench all`, whose metrics are the operations.
pub(super) fn budgets_of(case: &str, worst: impl Fn(&str) -> f64) -> Vec<Limit> {
    let cases = match case {
        "exits" => &CASES[..],
        "flush" => &FLUSH_CASES[..3],
        "flush-254" => &FLUSH_CASES[..],
        _ => &[],
    };
    budgets(cases, worst).collect()
}

#[cfg(test)]
mod tests {
    use super::super::limits::all_met;
    use super::*;

    #[test]
    fn a_case_that_is_missing_or_over_its_budget_fails() {
        let mut samples = Samples::default();
        let is_within = |samples: &Samples| all_met(&limits(&CASES, Platform::X86_64, samples));
        assert!(!is_within(&samples), "nothing was reported");
        for case in &CASES {
            samples.add(case.name, Subject::Quell, METRIC, METRIC, 399.0);
        }
        assert!(is_within(&samples));
        samples.add("cpuid", Subject::Quell, METRIC, METRIC, 401.0);
        assert!(!is_within(&samples), "the worst run counts");
    }

    #[test]
    fn values_that_are_no_counts_are_not_taken() {
        for value in [serde_json::json!("12"), serde_json::json!(-3), serde_json::json!(null)] {
            assert_eq!(number(&value), None, "{value}");
        }
    }
}
