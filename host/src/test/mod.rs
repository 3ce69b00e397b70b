//! `quell test`: every test there is. Host tests and linters by cargo, then guests under QEMU.

mod arm;
mod attack;
mod audit;
mod cases;
mod checks;
mod guests;
mod host;
mod lines;
mod mutants;
#[cfg(test)]
mod names;
#[cfg(test)]
mod panics;
#[cfg(test)]
mod partners;
mod progress;
mod second;
mod siege;
mod stage2;
mod storm;
mod talk;

use crate::cli::TestArgs;
use crate::machine::signals::Signals;
use anyhow::Result;
use progress::Progress;

/// What `--quick` runs.
const QUICK: [&str; 15] = [
    "format",
    "unit-tests",
    "lint-host",
    "lint-hypervisor",
    "lint-hypervisor-arm",
    "nproc_is_8",
    "probe_all",
    "o1_nothing_stale_with_hypercalls",
    "ctl_memory_comes_and_goes",
    "hostile_guest_is_alive",
    "audit_counts_invalidations",
    "arm_nproc_is_8_on_max",
    "hostile_guest_is_alive_on_arm",
    "p19_memory_that_goes_is_gone_on_max",
    "a3_arrivals_drop",
];

/// How many tests passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    passed: usize,
    failed: usize,
    /// Of those that passed, at the second try.
    second: usize,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.second += other.second;
    }
}

/// Runs the tests; the status is 1 if one failed.
pub(crate) fn test(args: &TestArgs, signals: &Signals) -> Result<u8> {
    let wanted = |name: &str| {
        (!args.quick || QUICK.contains(&name))
            && args.filter.as_ref().is_none_or(|texts| texts.split(',').any(|text| name.contains(text)))
    };
    if args.mutants {
        return mutants::test(args.list, &wanted, signals);
    }
    if args.list {
        let names = host::STEPS.iter().map(|step| (step.name, step.about));
        let names = names.chain(all_cases().map(|case| (case.name, case.about)));
        for (name, about) in names.filter(|(name, _)| wanted(name)) {
            println!("{name:<40} {about}");
        }
        return Ok(0);
    }
    let mut total = Tally::default();
    let mut progress = Progress::new();
    let steps = host::STEPS.iter().filter(|step| wanted(step.name) && (args.long || !step.only_long));
    for step in steps {
        if signals.caught().is_some() {
            break;
        }
        total.add(step.run(&mut progress, signals)?);
    }
    let is_due = |case: &&cases::Case| wanted(case.name) && (args.long || !case.only_long);
    let cases: Vec<_> = all_cases().filter(is_due).collect();
    if !cases.is_empty() && signals.caught().is_none() {
        total.add(guests::run_all(&cases, args.long, &mut progress, signals)?);
    }
    Ok(verdict(total, signals))
}

/// The tests that boot machines.
fn all_cases() -> impl Iterator<Item = &'static cases::Case> {
    cases::CASES
        .iter()
        .chain(&checks::CHECKS)
        .chain(arm::rows())
        .chain(&stage2::ROWS)
        .chain(attack::rows())
        .chain(audit::ROWS)
}

/// Prints the last line, and says what the process's status is.
fn verdict(total: Tally, signals: &Signals) -> u8 {
    if let Some(signal) = signals.caught() {
        eprintln!("quell: stopped by signal {signal}");
        return u8::try_from(128 + signal).unwrap_or(1);
    }
    let second =
        if total.second == 0 { String::new() } else { format!(", {} at the second try", total.second) };
    println!("{} passed, {} failed{second}", total.passed, total.failed);
    u8::from(total.failed > 0 || total.passed == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quick_exists() {
        let names: Vec<_> =
            host::STEPS.iter().map(|step| step.name).chain(all_cases().map(|case| case.name)).collect();
        for quick in QUICK {
            assert!(names.contains(&quick), "{quick}");
        }
    }
}
