//! `quell bench isolation`: what a guest loses while another one does all that may disturb it.
//!
//! Two guests share the CPUs. One attacks, in each case in another way; the other one checks its
//! memory, its registers and its flushes, and takes the time of these. The first case is the quiet
//! machine, with which the others are compared.

pub(crate) mod pair;

use crate::cli::IsolationArgs;
use crate::prelude::*;
use hostile::attacks::Attack;
use pair::{Figures, Plan};

/// The least part of its share that the bystander has, and the most if both want as much.
const SHARE_MIN: f64 = 0.95;
const SHARE_MAX: f64 = 1.05;
/// Its flushes take at most so many times as long as on the quiet machine, p99, and a slice.
const P99_RATIO_MAX: f64 = 2.0;
const SLICE_MS: f64 = 5.0;
const FLUSHES: u64 = 100;
/// Weights of attacker and bystander, whether the attacker is pinned, and the attacks that are run
/// so: all of them the first way, whose case has no name of its own.
const WAYS: [([u32; 2], bool, &[Attack]); 4] = [
    ([100, 100], false, &Attack::ALL),
    ([100, 300], false, &[Attack::Compute, Attack::Mixture]),
    ([100, 100], true, &[Attack::Compute, Attack::Disk, Attack::Mixture]),
    ([1, 1000], true, &[Attack::Compute]),
];

struct Case {
    plan: Plan,
    /// At least one, in the order of the p99 of their flushes.
    runs: Vec<Figures>,
}

impl Case {
    fn median(&self) -> &Figures {
        &self.runs[(self.runs.len() - 1) / 2]
    }

    /// Its limits. Nothing may change in any run, and the share has to be right in all; of the
    /// times that flushes take, the median counts.
    fn limits(&self, quiet: f64) -> Vec<Limit> {
        let each = self.runs.iter().flat_map(|run| limits(&self.plan, run, None));
        each.chain([latency(self.median(), quiet)]).collect()
    }
}

pub(super) fn isolation(lab: &Lab<'_>, args: &IsolationArgs, all: &mut Samples) -> Result<Vec<Limit>> {
    let platform = args.platform.platform()?;
    let (mut cases, mut failures) = (Vec::new(), Vec::new());
    for plan in plans(args) {
        match measure(lab, platform, &plan, args.runs) {
            Ok(case) => cases.push(case),
            // The quiet machine is what the others are compared with.
            Err(error) if plan.attack == Attack::Halt || lab.signals.caught().is_some() => return Err(error),
            Err(error) => {
                eprintln!("quell: {error:#}");
                failures.push(Limit::shown(format!("{}: all", name(&plan, platform)), f64::NAN));
            }
        }
    }
    let quiet = cases.first().context("the quiet machine was not measured")?.median().latencies.p99();
    add(all, &cases, quiet, platform);
    let limits = cases.iter().flat_map(|case| {
        let name = name(&case.plan, platform);
        case.limits(quiet).into_iter().map(move |limit| limit.of(&name))
    });
    Ok(limits.chain(failures).collect())
}

fn measure(lab: &Lab<'_>, platform: Platform, plan: &Plan, runs: u32) -> Result<Case> {
    let name = name(plan, platform);
    let length = plan.batches * u64::from(runs);
    let bar = steps::bar("{prefix:18} {bar:40} {pos:>3} of {len} batches  {elapsed}", length);
    bar.set_prefix(name.clone());
    if bar.is_hidden() {
        eprintln!("{name}");
    }
    let run = |run: u64| {
        let (shown, before) = (bar.clone(), run * plan.batches);
        let progress = move |batches| shown.set_position(before + batches);
        let (hypervisor, directory) = (lab.hypervisor(platform.arch())?, lab.directory());
        pair::run(hypervisor, platform, plan, lab.timeout.get(), directory, lab.signals, progress)
    };
    let runs = (0..u64::from(runs)).map(run).collect::<Result<Vec<_>>>();
    let mut runs = runs.with_context(|| name.clone())?;
    bar.finish_and_clear();
    runs.sort_by(|one, other| one.latencies.p99().total_cmp(&other.latencies.p99()));
    Ok(Case { plan: *plan, runs })
}

/// What is run: the quiet machine first.
fn plans(args: &IsolationArgs) -> Vec<Plan> {
    let IsolationArgs { attack: only, seed, batches, .. } = args;
    let is_wanted = |attack: &Attack| only.is_empty() || only.contains(attack) || attack.is_idle();
    let ways = WAYS.into_iter().flat_map(|(weights, is_pinned, attacks)| {
        let wanted = attacks.iter().copied().filter(is_wanted);
        let (seed, batches) = (*seed, u64::from(*batches));
        wanted.map(move |attack| Plan { attack, weights, is_pinned, seed, flushes: FLUSHES, batches })
    });
    ways.collect()
}

fn name(plan: &Plan, platform: Platform) -> String {
    let pinned = if plan.is_pinned { "-pinned" } else { "" };
    let weights = match plan.weights {
        [attacker, bystander] if attacker == bystander => String::new(),
        [attacker, bystander] => format!("-1:{}", bystander / attacker),
    };
    format!("{}{pinned}{weights}{}", plan.attack.name(), platform.suffix())
}

/// The limits of a run: `quiet` is the quiet machine's p99 in ms, if times are compared.
pub(crate) fn limits(plan: &Plan, figures: &Figures, quiet: Option<f64>) -> Vec<Limit> {
    let expected = plan.share();
    let share = Limit::at_least("share, of its part by weight", figures.share / expected, SHARE_MIN);
    // One that wants less than its share leaves it to the bystander. Of the time that both have
    // had: a long turn from before the measured phase is counted in it.
    let of_both = figures.share / (figures.share + figures.attackers_share) / expected;
    let fair = (plan.attack == Attack::Compute)
        .then(|| Limit::at_most("share of both guests' time, of its part by weight", of_both, SHARE_MAX));
    let late = quiet.map(|quiet| latency(figures, quiet));
    [share].into_iter().chain(fair).chain(late).chain(figures.unchanged()).collect()
}

fn latency(figures: &Figures, quiet: f64) -> Limit {
    Limit::at_most("flush p99, in ms", figures.latencies.p99(), p99_limit(quiet))
}

/// The most that flushes may take, p99, in ms.
fn p99_limit(quiet: f64) -> f64 {
    P99_RATIO_MAX * quiet + SLICE_MS
}

/// A figure: its metric and unit, and its value.
type Field = (&'static str, &'static str, fn(&Plan, &Figures) -> f64);

const MS: &str = "ms";
const RATE: &str = "per second";
const RATIO: &str = "ratio";
const COUNT: &str = "count";
const FIELDS: [Field; 17] = [
    ("share by weight", RATIO, |plan, _| plan.share()),
    ("share", RATIO, |_, figures| figures.share),
    ("attacker's share", RATIO, |_, figures| figures.attackers_share),
    ("flush p50", MS, |_, figures| figures.latencies.p50()),
    ("flush p99", MS, |_, figures| figures.latencies.p99()),
    ("longest flush", MS, |_, figures| figures.latencies.longest()),
    ("work", RATE, |_, figures| figures.speed),
    ("interrupts", RATE, |_, figures| figures.interrupts),
    ("stops", COUNT, |_, figures| float(figures.tally.stops)),
    ("longest stop", MS, |_, figures| float(figures.tally.longest_ns) / 1e6),
    ("attacker's exits", RATE, |_, figures| figures.exits),
    ("attacker's resets", COUNT, |_, figures| float(figures.resets)),
    ("stopped", MS, |_, figures| float(figures.tally.stopped_ns) / 1e6),
    ("flushes", COUNT, |_, figures| float(figures.latencies.count())),
    ("stale reads", COUNT, |_, figures| float(figures.tally.stale)),
    ("words changed", COUNT, |_, figures| float(figures.tally.words)),
    ("registers changed", COUNT, |_, figures| float(figures.tally.registers)),
];

fn add(samples: &mut Samples, cases: &[Case], quiet: f64, platform: Platform) {
    for (plan, figures) in cases.iter().flat_map(|case| case.runs.iter().map(|run| (&case.plan, run))) {
        let case = name(plan, platform);
        for (metric, unit, value) in FIELDS {
            samples.add(&case, Subject::Quell, metric, unit, value(plan, figures));
        }
        samples.add(&case, Subject::Quell, "flush p99 limit", MS, p99_limit(quiet));
    }
}

/// How long flushes took: nanoseconds, and how many took that long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Latencies(pub(super) BTreeMap<u64, u64>);

impl Latencies {
    pub(super) fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// The length that this part of them does not exceed, in ms; NaN if there are none.
    fn quantile(&self, part: f64) -> f64 {
        let wanted = (part * float(self.count())).ceil();
        let mut seen = 0;
        let reached = self.0.iter().find(|(_, count)| {
            seen += **count;
            float(seen) >= wanted
        });
        reached.map_or(f64::NAN, |(ns, _)| float(*ns) / 1e6)
    }

    /// The median, in ms.
    pub(super) fn p50(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Exceeded by one in a hundred, in ms.
    pub(super) fn p99(&self) -> f64 {
        self.quantile(0.99)
    }

    /// The longest, in ms.
    pub(super) fn longest(&self) -> f64 {
        self.quantile(1.0)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
struct Tally {
    pub(super) units: u64,
    /// Reads of a page that had been replaced, after the flush.
    pub(super) stale: u64,
    /// Words of its memory that had changed.
    pub(super) words: u64,
    /// Registers that had changed.
    pub(super) registers: u64,
    /// Times without work of more than 20 ms.
    pub(super) stops: u64,
    pub(super) stopped_ns: u64,
    pub(super) longest_ns: u64,
}

#[derive(Deserialize)]
struct Batch {
    batch: u64,
    #[serde(flatten)]
    tally: Tally,
    /// Pairs of nanoseconds and a count.
    latency: Value,
}

/// The reports of a bystander: from a beginning on, which is set when the attack has begun.
#[derive(Clone, Debug, Default)]
struct Batches {
    pub(super) last: Option<(u64, Tally)>,
    begin: Option<(u64, Tally)>,
    pub(super) latencies: Latencies,
}

impl Batches {
    /// Takes the report of a batch.
    ///
    /// # Errors
    ///
    /// One is missing, or says nothing.
    pub(super) fn take(&mut self, report: &Value) -> Result<()> {
        let what = || format!("the bystander reports a batch of {report}");
        let Batch { batch, tally, latency } = Batch::deserialize(report).with_context(what)?;
        let expected = self.last.map_or(1, |(last, _)| last + 1);
        ensure!(batch == expected, "batch {batch} of the bystander follows batch {}", expected - 1);
        if self.begin.is_some() {
            for (ns, count) in Vec::<(u64, u64)>::deserialize(latency).with_context(what)? {
                *self.latencies.0.entry(ns).or_default() += count;
            }
        }
        self.last = Some((batch, tally));
        Ok(())
    }

    pub(super) fn begin(&mut self) {
        self.begin = self.last;
    }

    pub(super) fn measured(&self) -> u64 {
        self.begin.zip(self.last).map_or(0, |((begin, _), (last, _))| last - begin)
    }

    /// What was done since the beginning. What was found counts from the start of the guest: the
    /// attack may have begun before the phase.
    pub(super) fn tally(&self) -> Tally {
        let (begin, last) = (self.begin.unwrap_or_default().1, self.last.unwrap_or_default().1);
        Tally {
            units: last.units - begin.units,
            stops: last.stops - begin.stops,
            stopped_ns: last.stopped_ns - begin.stopped_ns,
            ..last
        }
    }
}

#[cfg(test)]
mod tests;
