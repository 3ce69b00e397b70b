//! The results: samples, the tables, and the targets.

use super::cases::{CASES, Case, NOTHING};
use super::run::Counted;
use crate::bench::limits::Limit;
use crate::results::{Row, Samples, Subject};
use crate::table::table;

const INSTRUCTIONS: &str = "instructions";
const EXITS: &str = "exit.all";
const BARE: &str = "relative to bare";
const KVM: &str = "relative to kvm";

/// The least work per instruction, relative to the bare machine and to KVM.
const BARE_MIN: f64 = 0.9;
const KVM_MIN: f64 = 1.5;
/// The most exits for each transfer.
const EXITS_MAX: f64 = 2.0;

fn worked() -> impl Iterator<Item = &'static Case> {
    CASES.iter().filter(|case| case.name != NOTHING)
}

/// Adds the counts of one machine. Quell's come after the bare machine's, and KVM's after Quell's.
pub(super) fn add(samples: &mut Samples, subject: Subject, counted: &[Counted]) {
    for (case, counted) in worked().zip(counted) {
        samples.add(case.name, subject, INSTRUCTIONS, "instructions", counted.instructions_each());
        if subject == Subject::Quell {
            samples.add(case.name, subject, EXITS, "per transfer", counted.exits_each());
            for (name, count) in &counted.exits {
                samples.add(case.name, subject, name, "per transfer", count / counted.ios);
            }
        }
    }
}

/// Instructions of the bare machine, Quell and KVM, for each transfer.
fn each(samples: &Samples, case: &Case) -> [f64; 3] {
    let subjects = [Subject::Bare, Subject::Quell, Subject::Kvm];
    subjects.map(|subject| samples.median(case.name, subject, INSTRUCTIONS))
}

/// Quell's work per instruction, relative to the bare machine's and to KVM's, by metric.
fn ratios(samples: &Samples, case: &Case) -> [(&'static str, f64); 2] {
    let [bare, quell, kvm] = each(samples, case);
    [(BARE, bare / quell), (KVM, kvm / quell)]
}

pub(super) fn limits(samples: &Samples) -> Vec<Limit> {
    let of_case = |case: &'static Case| {
        let ratios = ratios(samples, case).into_iter().zip([BARE_MIN, KVM_MIN]);
        let ratios =
            ratios.map(|((metric, ratio), least)| Limit::at_least(label(case, metric), ratio, least));
        let exits = samples.of_quell(case.name, EXITS);
        ratios.chain([Limit::at_most(label(case, "exits for each"), exits, EXITS_MAX)])
    };
    worked().flat_map(of_case).collect()
}

fn label(case: &Case, metric: &str) -> String {
    format!("{}: {metric}", case.name)
}

/// Adds the ratios to the samples, and prints the tables.
pub(super) fn print(samples: &mut Samples) {
    let mut rows = Vec::new();
    for case in worked() {
        for (metric, ratio) in ratios(samples, case).into_iter().filter(|(_, ratio)| ratio.is_finite()) {
            samples.add(case.name, Subject::Quell, metric, "ratio", ratio);
        }
        let instructions = each(samples, case).map(|each| text(each, 0));
        rows.push([vec![format!("{} ({})", case.label, case.name)], instructions.to_vec()].concat());
    }
    println!("{}", table(["instructions each", "bare", "Quell", "KVM, vfio"], rows));
    print_exits(samples);
}

/// A number; nothing if it was not measured.
fn text(number: f64, decimals: usize) -> String {
    if number.is_finite() { format!("{number:.decimals$}") } else { String::new() }
}

/// Prints the exits on Quell by their reasons, for those that matter.
fn print_exits(samples: &Samples) {
    const LEAST: f64 = 0.005;
    let rows = samples.rows();
    let matters = |row: &&Row| row.metric.starts_with("exit.") && row.metric != EXITS && row.median >= LEAST;
    let mut names: Vec<_> = rows.iter().filter(matters).map(|row| row.metric.clone()).collect();
    names.sort();
    names.dedup();
    let cells = worked().map(|case| {
        let exits = names.iter().map(|name| text(samples.of_quell(case.name, name), 2));
        std::iter::once(case.label.to_owned()).chain(exits).collect::<Vec<_>>()
    });
    let header =
        std::iter::once("exits on Quell, each").chain(names.iter().map(|name| &name["exit.".len()..]));
    println!("{}", table(header.collect::<Vec<_>>(), cells));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn counted(each: f64, exits: f64) -> Vec<Counted> {
        let exits = BTreeMap::from([("exit.wait", 10.0 * exits)]);
        worked().map(|_| Counted { ios: 10.0, instructions: 10.0 * each, exits: exits.clone() }).collect()
    }

    #[test]
    fn each_target_can_be_missed() {
        for (quell, exits, missed) in [
            (110.0, 1.9, &[][..]),
            (112.0, 2.0, &[BARE]),
            (140.0, 2.1, &[BARE, KVM, "exits for each"]),
            (90.0, 3.0, &["exits for each"]),
        ] {
            let mut samples = Samples::default();
            add(&mut samples, Subject::Bare, &counted(100.0, 0.0));
            add(&mut samples, Subject::Quell, &counted(quell, exits));
            add(&mut samples, Subject::Kvm, &counted(200.0, 0.0));
            let found = limits(&samples).into_iter().filter(|limit| !limit.is_met());
            let found: Vec<_> = found.map(|limit| limit.label).collect();
            let expected = worked().flat_map(|case| missed.iter().map(|metric| label(case, metric)));
            assert_eq!(found, expected.collect::<Vec<_>>());
            print(&mut samples);
            let row = samples.row("stream", Subject::Quell, BARE).expect("is there");
            assert!((row.median - 100.0 / quell).abs() < 1e-9);
        }
    }

    #[test]
    fn what_was_not_measured_misses_its_targets() {
        let limits = limits(&Samples::default());
        assert!(limits.iter().all(|limit| !limit.is_met()), "{limits:?}");
    }
}
