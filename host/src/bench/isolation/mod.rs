//! `quell bench isolation`: what a guest loses while another one does all that may disturb it.
//!
//! Two guests share the CPUs. One attacks, in each case in another way; the other one checks its
//! memory, its registers and its flushes, and takes the time of these. The first case is the quiet
//! machine, with which the others are compared.

mod figures;
pub(crate) mod pair;

use crate::arch::Platform;
use crate::cli::IsolationArgs;
use crate::machine::signals::Signals;
use crate::results::{self, Samples, Subject};
use crate::table::table;
use crate::vm::Hypervisor;
use anyhow::{Context, Result};
use figures::float;
use hostile::attacks::Attack;
use indicatif::{ProgressBar, ProgressStyle};
use pair::{Figures, Plan};
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Duration;

/// The part of its share that the bystander has at least, and if the attacker wants just as much,
/// at most.
const SHARE_MIN: f64 = 0.95;
const SHARE_MAX: f64 = 1.05;
/// Its flushes take at most so many times as long as on the quiet machine, p99, and a slice.
const P99_RATIO_MAX: f64 = 2.0;
const SLICE_MS: f64 = 5.0;
/// Flushes of a batch.
const FLUSHES: u64 = 100;
/// Weights of attacker and bystander, whether the attacker is pinned, and the attacks that are run
/// so: all of them the first way, whose case has no name of its own.
const WAYS: [([u32; 2], bool, &[Attack]); 4] = [
    ([100, 100], false, &Attack::ALL),
    ([100, 300], false, &[Attack::Compute, Attack::Mixture]),
    ([100, 100], true, &[Attack::Compute, Attack::Disk, Attack::Mixture]),
    ([1, 1000], true, &[Attack::Compute]),
];

/// A measured case.
struct Case {
    plan: Plan,
    /// At least one, in the order of the p99 of their flushes.
    runs: Vec<Figures>,
}

impl Case {
    /// The run whose p99 is the median.
    fn median(&self) -> &Figures {
        &self.runs[(self.runs.len() - 1) / 2]
    }

    /// The targets that it misses. Nothing may change in any run, and the share has to be right in
    /// all; of the times that flushes take, the median counts.
    fn missed(&self, quiet: f64) -> Vec<String> {
        let each = self.runs.iter().flat_map(|run| missed(&self.plan, run, None));
        each.chain(late(self.median(), quiet)).collect()
    }
}

/// Measures, prints, and evaluates; the status is 1 if a target is missed.
pub(crate) fn isolation(args: &IsolationArgs, signals: &Signals) -> Result<u8> {
    let platform = args.platform.platform()?;
    let hypervisor = Hypervisor::build(platform.arch())?;
    let directory = tempfile::Builder::new().prefix("quell-bench-").tempdir()?;
    let bench = Bench { hypervisor, platform, args, directory: directory.path(), signals };
    let (mut cases, mut failures) = (Vec::new(), Vec::new());
    for plan in plans(&args.attack, args) {
        match bench.case(&plan) {
            Ok(case) => cases.push(case),
            Err(_) if signals.caught().is_some() => break,
            // The quiet machine is what the others are compared with.
            Err(error) if plan.attack == Attack::Halt => return Err(error),
            Err(error) => {
                eprintln!("quell: {error:#}");
                failures.push(format!("{}: there are no figures", name(&plan, platform)));
            }
        }
    }
    if let Some(signal) = signals.caught() {
        return Ok(u8::try_from(128 + signal).unwrap_or(128));
    }
    let quiet = cases.first().context("the quiet machine was not measured")?.median().latencies.p99();
    println!("{}", show(&cases, quiet, platform));
    failures.extend(cases.iter().flat_map(|case| {
        let name = name(&case.plan, platform);
        case.missed(quiet).into_iter().map(move |why| format!("{name}: {why}"))
    }));
    failures.iter().for_each(|failure| println!("missed: {failure}"));
    if let Some(path) = &args.output.json {
        results::write(path, "isolation", None, &samples(&cases, quiet, platform))?;
    }
    Ok(u8::from(!failures.is_empty()))
}

/// What all cases have in common.
struct Bench<'a> {
    hypervisor: Hypervisor,
    platform: Platform,
    args: &'a IsolationArgs,
    directory: &'a Path,
    signals: &'a Signals,
}

impl Bench<'_> {
    /// All runs of a case.
    fn case(&self, plan: &Plan) -> Result<Case> {
        let name = name(plan, self.platform);
        let bar = bar(&name, plan.batches * u64::from(self.args.runs));
        let mut runs = Vec::new();
        for run in 0..u64::from(self.args.runs) {
            let (shown, before) = (bar.clone(), run * plan.batches);
            let progress = move |batches| shown.set_position(before + batches);
            let (timeout, directory) = (self.args.output.timeout(), self.directory);
            let figures =
                pair::run(&self.hypervisor, self.platform, plan, timeout, directory, self.signals, progress);
            runs.push(figures.with_context(|| name.clone())?);
        }
        bar.finish_and_clear();
        runs.sort_by(|one, other| one.latencies.p99().total_cmp(&other.latencies.p99()));
        Ok(Case { plan: *plan, runs })
    }
}

/// What is run: the quiet machine first.
fn plans(attacks: &[Attack], args: &IsolationArgs) -> Vec<Plan> {
    let is_wanted = |attack: &Attack| attacks.is_empty() || attacks.contains(attack) || attack.is_idle();
    let ways = WAYS.into_iter().flat_map(|(weights, is_pinned, attacks)| {
        let wanted = attacks.iter().copied().filter(is_wanted);
        wanted.map(move |attack| Plan {
            attack,
            weights,
            is_pinned,
            seed: args.seed,
            flushes: FLUSHES,
            batches: u64::from(args.batches),
        })
    });
    ways.collect()
}

/// A case's name in results.
fn name(plan: &Plan, platform: Platform) -> String {
    let pinned = if plan.is_pinned { "-pinned" } else { "" };
    let weights = match plan.weights {
        [attacker, bystander] if attacker == bystander => String::new(),
        [attacker, bystander] => format!("-1:{}", bystander / attacker),
    };
    format!("{}{pinned}{weights}{}", plan.attack.name(), platform.suffix())
}

/// A bar on a terminal, nothing elsewhere.
fn bar(name: &str, batches: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        eprintln!("{name}");
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{prefix:18} {bar:40} {pos:>3} of {len} batches  {elapsed}");
    let bar = ProgressBar::new(batches).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(name.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// The targets that a run misses: `quiet` is the p99 of the quiet machine's flushes in ms, if times
/// are to be compared.
pub(crate) fn missed(plan: &Plan, figures: &Figures, quiet: Option<f64>) -> Vec<String> {
    let (expected, mut missed) = (plan.share(), Vec::new());
    let relative = figures.share / expected;
    let is_enough = relative >= SHARE_MIN;
    // One that wants less than its share leaves it to the bystander. Of the time that both have
    // had: a long turn from before the measured phase is counted in it.
    let of_both = figures.share / (figures.share + figures.attackers_share) / expected;
    let is_fair = plan.attack != Attack::Compute || of_both <= SHARE_MAX;
    if !(is_enough && is_fair) {
        missed.push(format!(
            "the bystander has {:.1} % of the CPUs, and the attacker {:.1} %; its share is {:.0} %",
            100.0 * figures.share,
            100.0 * figures.attackers_share,
            100.0 * expected
        ));
    }
    missed.extend(quiet.and_then(|quiet| late(figures, quiet)));
    missed.extend(figures.wrong());
    missed
}

/// Whether the bystander's flushes take too long beside those of the quiet machine, in words.
fn late(figures: &Figures, quiet: f64) -> Option<String> {
    let (p99, limit) = (figures.latencies.p99(), p99_limit(quiet));
    let is_late = !matches!(p99.partial_cmp(&limit), Some(order) if order.is_le());
    is_late.then(|| format!("1 % of its flushes take more than {p99:.2} ms; the limit is {limit:.2} ms"))
}

/// The most that flushes may take, p99, in ms.
fn p99_limit(quiet: f64) -> f64 {
    P99_RATIO_MAX * quiet + SLICE_MS
}

/// The table.
fn show(cases: &[Case], quiet: f64, platform: Platform) -> String {
    let header = [
        "attack",
        "share",
        "has",
        "attacker has",
        "flush p50",
        "p99",
        "longest",
        "work/s",
        "interrupts/s",
        "stops",
        "longest stop",
        "attacker's exits/s",
        "resets",
        "wrong",
    ];
    let rows = cases.iter().map(|case| {
        let (plan, figures) = (&case.plan, case.median());
        let ms = |ms: f64| if ms < 10.0 { format!("{ms:.2} ms") } else { format!("{ms:.0} ms") };
        // A guest that has had no CPU has no rate.
        let rate = |rate: f64| if rate.is_nan() { "-".to_owned() } else { format!("{rate:.0}") };
        [
            name(plan, platform),
            percent(plan.share()),
            percent(figures.share),
            percent(figures.attackers_share),
            ms(figures.latencies.p50()),
            ms(figures.latencies.p99()),
            ms(figures.latencies.longest()),
            rate(figures.speed),
            rate(figures.interrupts),
            figures.tally.stops.to_string(),
            ms(float(figures.tally.longest_ns) / 1e6),
            rate(figures.exits),
            figures.resets.to_string(),
            case.runs.iter().filter(|run| run.wrong().is_some()).count().to_string(),
        ]
    });
    format!(
        "{}\n{NOTES}\nLimits: {} of its share at least; p99 of a flush {:.2} ms, twice that of the quiet machine and a slice.",
        table(header, rows),
        percent(SHARE_MIN),
        p99_limit(quiet)
    )
}

/// What the columns mean.
const NOTES: &str = "share: of 2 CPUs, by the weights; has: what the bystander had. work/s: units of its work in a \
second of its CPU time;\ninterrupts/s: those that took it out of guest mode in such a second. stops: times \
without work of more than 20 ms.\nattacker's exits/s: in a second of its own CPU time. wrong: runs in which \
something of the bystander had changed. Of several\nruns the one with the median p99 is shown.";

fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

/// The results.
fn samples(cases: &[Case], quiet: f64, platform: Platform) -> Samples {
    let mut samples = Samples::default();
    for (plan, figures) in cases.iter().flat_map(|case| case.runs.iter().map(|run| (&case.plan, run))) {
        let case = name(plan, platform);
        let tally = &figures.tally;
        for (metric, unit, value) in [
            ("share by weight", "ratio", plan.share()),
            ("share", "ratio", figures.share),
            ("attacker's share", "ratio", figures.attackers_share),
            ("flush p50", "ms", figures.latencies.p50()),
            ("flush p99", "ms", figures.latencies.p99()),
            ("flush p99 limit", "ms", p99_limit(quiet)),
            ("longest flush", "ms", figures.latencies.longest()),
            ("longest stop", "ms", float(tally.longest_ns) / 1e6),
            ("stopped", "ms", float(tally.stopped_ns) / 1e6),
            ("work", "per second", figures.speed),
            ("interrupts", "per second", figures.interrupts),
            ("attacker's exits", "per second", figures.exits),
        ] {
            samples.add(&case, Subject::Quell, metric, unit, value);
        }
        for (metric, count) in [
            ("flushes", figures.latencies.count()),
            ("stops", tally.stops),
            ("stale reads", tally.stale),
            ("words changed", tally.words),
            ("registers changed", tally.registers),
            ("attacker's resets", figures.resets),
        ] {
            samples.add_count(&case, Subject::Quell, metric, count);
        }
    }
    samples
}

#[cfg(test)]
mod tests;
