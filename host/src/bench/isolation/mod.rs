//! The case `isolation`: what a guest loses while another one does all that may disturb it.
//!
//! Two guests share the CPUs. One attacks, each time in another way; the other one checks its
//! memory, its registers and its flushes, and takes the time of these. First the machine is quiet,
//! with which the others are compared.

pub(crate) mod pair;

use super::all::Runner;
use super::all::cases::Case;
use super::all::own::{Own, own};
use super::all::record::Number;
use super::all::way::FlushWay;
use crate::cli::{AllArgs, AttackOptions};
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

const FAILED: &str = "attacks without figures";

pub(super) const CASE: Case = own(
    "isolation",
    "what a guest loses while another one attacks it, by the clock",
    Own::timed(measure, machines),
);

fn machines(args: &AllArgs) -> String {
    let AttackOptions { attack, batches, seed, .. } = &args.isolation;
    format!("2 CPUs; {batches} batches of attacks {attack:?}, with seed {seed}")
}

fn measure(Runner { lab, args }: &Runner<'_>, way: FlushWay) -> Result<Vec<Number>> {
    let (hypervisor, timeout) = (lab.hypervisor(way.platform().arch())?, lab.timeout.get());
    let (mut numbers, mut failed) = (Vec::new(), 0);
    for plan in plans(&args.isolation) {
        let name = name(&plan);
        eprintln!("{name}: {} batches …", plan.batches);
        match pair::run(hypervisor, way.platform(), &plan, timeout, lab.directory(), lab.signals) {
            Ok(figures) => numbers.extend(
                fields(&plan, &figures).map(|(metric, unit, value)| Number::of(&name, metric, unit, value)),
            ),
            // The quiet machine is what the others are compared with.
            Err(error) if plan.attack.is_idle() || lab.signals.caught().is_some() => return Err(error),
            Err(error) => {
                eprintln!("quell: {name}: {error:#}");
                failed += 1;
            }
        }
    }
    numbers.push(Number::new(FAILED, COUNT, float(failed)));
    Ok(numbers)
}

/// The limits of all attacks that were measured.
pub(super) fn all_limits(of: &dyn Fn(&str) -> Option<Spread>) -> Vec<Limit> {
    let quiet = of("halt: flush p99").map_or(f64::NAN, |spread| spread.median);
    let failed = of(FAILED).map_or(f64::NAN, |spread| spread.max);
    let limits = plans(&AttackOptions::default()).into_iter().flat_map(|plan| {
        let name = name(&plan);
        let of = |metric: &str| of(&format!("{name}: {metric}"));
        let limits = if of("share").is_some() { limits(&plan, &of, Some(quiet)) } else { Vec::new() };
        limits.into_iter().map(|limit| limit.of(&name)).collect::<Vec<_>>()
    });
    limits.chain([Limit::at_most(FAILED, failed, 0.0)]).collect()
}

/// What is run: the quiet machine first.
fn plans(AttackOptions { attack: only, seed, batches, .. }: &AttackOptions) -> Vec<Plan> {
    let is_wanted = |attack: &Attack| only.is_empty() || only.contains(attack) || attack.is_idle();
    let ways = WAYS.into_iter().flat_map(|(weights, is_pinned, attacks)| {
        let wanted = attacks.iter().copied().filter(is_wanted);
        let (seed, batches) = (*seed, u64::from(*batches));
        wanted.map(move |attack| Plan { attack, weights, is_pinned, seed, flushes: FLUSHES, batches })
    });
    ways.collect()
}

fn name(plan: &Plan) -> String {
    let pinned = if plan.is_pinned { "-pinned" } else { "" };
    let weights = match plan.weights {
        [attacker, bystander] if attacker == bystander => String::new(),
        [attacker, bystander] => format!("-1:{}", bystander / attacker),
    };
    format!("{}{pinned}{weights}", plan.attack.name())
}

/// The limits of an attack: `quiet` is the quiet machine's p99 in ms. If times are not compared,
/// shares are parts of the time that both guests have had.
/// Nothing may change in any run, and the share has to be right in all; of times the median counts.
pub(crate) fn limits(plan: &Plan, of: &dyn Fn(&str) -> Option<Spread>, quiet: Option<f64>) -> Vec<Limit> {
    let least = |metric| of(metric).map_or(f64::NAN, |spread| spread.min);
    let most = |metric| of(metric).map_or(f64::NAN, |spread| spread.max);
    let (expected, late) = (plan.share(), of("flush p99").map_or(f64::NAN, |spread| spread.median));
    let part = if quiet.is_some() { "share" } else { USED };
    let share = Limit::at_least("share, of its part by weight", least(part) / expected, SHARE_MIN);
    // One that wants less than its share leaves it to the bystander. Of the time that both have
    // had: a long turn from before the measured phase is counted in it.
    let both = "share of both guests' time, of its part by weight";
    let fair =
        (plan.attack == Attack::Compute).then(|| Limit::at_most(both, most(USED) / expected, SHARE_MAX));
    let late = quiet.map(|quiet| Limit::at_most("flush p99, in ms", late, P99_RATIO_MAX * quiet + SLICE_MS));
    let changed = CHANGED.map(|metric| Limit::at_most(metric, most(metric), 0.0));
    [share].into_iter().chain(fair).chain(late).chain(changed).collect()
}

const USED: &str = "share of used time";
const CHANGED: [&str; 3] = ["stale reads", "words changed", "registers changed"];

/// A figure: its metric and unit, and its value.
type Field = (&'static str, &'static str, fn(&Plan, &Figures) -> f64);

const MS: &str = "ms";
const RATE: &str = "per second";
const RATIO: &str = "ratio";
const COUNT: &str = "count";
const FIELDS: [Field; 18] = [
    ("share by weight", RATIO, |plan, _| plan.share()),
    ("share", RATIO, |_, figures| figures.share),
    ("attacker's share", RATIO, |_, figures| figures.attackers_share),
    (USED, RATIO, |_, figures| figures.share / (figures.share + figures.attackers_share)),
    ("flush p50", MS, |_, figures| figures.latencies.quantile(0.5)),
    ("flush p99", MS, |_, figures| figures.latencies.quantile(0.99)),
    ("longest flush", MS, |_, figures| figures.latencies.quantile(1.0)),
    ("work", RATE, |_, figures| figures.speed),
    ("interrupts", RATE, |_, figures| figures.interrupts),
    ("stops", COUNT, |_, figures| float(figures.tally.stops)),
    ("longest stop", MS, |_, figures| float(figures.tally.longest_ns) / 1e6),
    ("attacker's exits", RATE, |_, figures| figures.exits),
    ("attacker's resets", COUNT, |_, figures| float(figures.resets)),
    ("stopped", MS, |_, figures| float(figures.tally.stopped_ns) / 1e6),
    ("flushes", COUNT, |_, figures| float(figures.latencies.count())),
    (CHANGED[0], COUNT, |_, figures| float(figures.tally.stale)),
    (CHANGED[1], COUNT, |_, figures| float(figures.tally.words)),
    (CHANGED[2], COUNT, |_, figures| float(figures.tally.registers)),
];

/// Metrics, units and values. What was not measured is left out.
pub(crate) fn fields<'f>(
    plan: &'f Plan,
    figures: &'f Figures,
) -> impl Iterator<Item = (&'static str, &'static str, f64)> + 'f {
    let all = FIELDS.into_iter().map(move |(metric, unit, value)| (metric, unit, value(plan, figures)));
    all.filter(|(.., value)| value.is_finite())
}

/// The same as what was measured in one run.
pub(crate) fn of_run(plan: &Plan, figures: &Figures) -> impl Fn(&str) -> Option<Spread> + use<> {
    let fields: Vec<_> = fields(plan, figures).collect();
    move |metric| Spread::of(&[fields.iter().find(|(name, ..)| *name == metric)?.2])
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
