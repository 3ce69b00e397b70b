//! The results: samples, the tables, and the targets.

use super::cases::{CASES, Case, NOTHING};
use super::run::Counted;
use crate::results::{Samples, Subject};
use crate::table::table;

/// Metrics.
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

/// The numbers of one case.
struct Numbers {
    /// Instructions of the bare machine, Quell and KVM, for each transfer.
    each: [f64; 3],
    exits: f64,
}

impl Numbers {
    fn of(samples: &Samples, case: &Case) -> Self {
        let each = [Subject::Bare, Subject::Quell, Subject::Kvm];
        Self {
            each: each.map(|subject| samples.median(case.name, subject, INSTRUCTIONS)),
            exits: samples.of_quell(case.name, EXITS),
        }
    }

    /// Quell's work per instruction, relative to the bare machine's and to KVM's.
    fn ratios(&self) -> [f64; 2] {
        let [bare, quell, kvm] = self.each;
        [bare / quell, kvm / quell]
    }

    /// The targets that are missed; what was not measured misses its own.
    fn missed(&self) -> String {
        let [bare, kvm] = self.ratios();
        let missed =
            [("bare", bare >= BARE_MIN), ("kvm", kvm >= KVM_MIN), ("exits", self.exits <= EXITS_MAX)];
        missed.into_iter().filter(|(_, is_met)| !is_met).map(|(name, _)| name).collect::<Vec<_>>().join(", ")
    }
}

/// Prints the tables and adds the ratios to the samples; returns whether all targets are met.
pub(super) fn print(samples: &mut Samples) -> bool {
    let mut rows = Vec::new();
    let mut is_good = true;
    for case in worked() {
        let numbers = Numbers::of(samples, case);
        let [bare, kvm] = numbers.ratios();
        for (metric, ratio) in [(BARE, bare), (KVM, kvm)].into_iter().filter(|(_, ratio)| ratio.is_finite()) {
            samples.add(case.name, Subject::Quell, metric, "ratio", ratio);
        }
        let missed = numbers.missed();
        is_good &= missed.is_empty();
        let [on_bare, on_quell, on_kvm] = numbers.each.map(|each| text(each, 0));
        let [bare, kvm, exits] = [bare, kvm, numbers.exits].map(|number| text(number, 2));
        rows.push([case.label.to_owned(), on_bare, on_quell, on_kvm, bare, kvm, exits, missed]);
    }
    let limits = [BARE_MIN, KVM_MIN].map(|least| format!("≥ {least}"));
    let [bare_min, kvm_min] = limits;
    rows.push(["", "", "", "", &bare_min, &kvm_min, &format!("≤ {EXITS_MAX}"), ""].map(str::to_owned));
    let header =
        ["instructions each", "bare", "Quell", "KVM, vfio", "of bare", "times KVM", "exits each", "missed"];
    println!("{}", table(header, rows));
    print_exits(samples);
    is_good
}

/// A number; nothing if it was not measured.
fn text(number: f64, decimals: usize) -> String {
    if number.is_finite() { format!("{number:.decimals$}") } else { String::new() }
}

/// Prints the exits on Quell by their reasons, for those that matter.
fn print_exits(samples: &Samples) {
    const LEAST: f64 = 0.005;
    let rows = samples.rows();
    let matters = |row: &&crate::results::Row| {
        row.metric.starts_with("exit.") && row.metric != EXITS && row.median >= LEAST
    };
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
        for (quell, exits, missed) in
            [(110.0, 1.9, ""), (112.0, 2.0, "bare"), (140.0, 2.1, "bare, kvm, exits"), (90.0, 3.0, "exits")]
        {
            let mut samples = Samples::default();
            add(&mut samples, Subject::Bare, &counted(100.0, 0.0));
            add(&mut samples, Subject::Quell, &counted(quell, exits));
            add(&mut samples, Subject::Kvm, &counted(200.0, 0.0));
            for case in worked() {
                assert_eq!(Numbers::of(&samples, case).missed(), missed, "{}", case.name);
            }
            assert_eq!(print(&mut samples), missed.is_empty());
            let row = samples.row("stream", Subject::Quell, BARE).expect("is there");
            assert!((row.median - 100.0 / quell).abs() < 1e-9);
        }
    }

    #[test]
    fn what_was_not_measured_misses_its_targets() {
        assert!(!print(&mut Samples::default()));
    }
}
