//! The case `flush-running`, whose targets are in guest mode: the effect of a call on them and on
//! others.
//!
//! The machine has a CPU for each vCPU, and its clock is the number of executed instructions. Each
//! case runs on two machines that differ only in the number of calls, so the difference between
//! their counters is the exact effect of those calls: the start of the guest, its report and its
//! end are the same in both.
//!
//! That clock counts the instructions of all CPUs, which QEMU runs in turn, one until it pauses or
//! halts and then the next. So instructions are reported for the machine as a whole, including the
//! loops of targets and bystanders.

use super::all::Runner;
use super::all::record::Number;
use super::all::way::FlushWay;
use super::lab;
use crate::prelude::*;

/// The most pages that the machines drop one by one: all those of the longest list.
const PAGES_MAX: u32 = 1024;
/// Calls of each initiator on the first machine: enough for everything to have happened once.
const CALLS_BEFORE: u32 = 100;
/// How many more the second machine makes.
const CALLS: u32 = 1000;

#[derive(Clone, Copy)]
enum Shape {
    /// vCPU 0 flushes the next `targets` vCPUs; one more runs and is no target.
    List { targets: u32 },
    /// `initiators` vCPUs flush each other, all at once.
    Merge { initiators: u32 },
}

impl Shape {
    fn limits(self, of: &dyn Fn(&str) -> f64) -> Vec<Limit> {
        // Each part of a long list is a flush of its own.
        let parts = || of("parts");
        let limits: &[_] = match self {
            Self::List { targets } => &[
                ("kicks", parts() * f64::from(targets)),
                ("exits of a target", parts()),
                ("exits of a bystander", 0.0),
            ],
            Self::Merge { .. } => {
                &[("kicks per initiator and target", 0.5), ("flushes per merged generation", 1.0)]
            }
        };
        limits.iter().map(|(metric, most)| Limit::at_most(*metric, of(metric), *most)).collect()
    }
}

struct Case {
    name: &'static str,
    label: &'static str,
    shape: Shape,
}

const fn list(name: &'static str, label: &'static str, targets: u32) -> Case {
    Case { name, label, shape: Shape::List { targets } }
}

const CASES: [Case; 6] = [
    list("list-1-running-1", "list of 1 range, 1 target", 1),
    list("list-1-running-3", "list of 1 range, 3 targets", 3),
    list("list-8-running-1", "list of 8 ranges, 1 target", 1),
    list("list-8-running-3", "list of 8 ranges, 3 targets", 3),
    list("list-64-running-1", "list of 64 ranges, 1 target", 1),
    Case {
        name: "merge-8x7",
        label: "8 vCPUs flush all of each other",
        shape: Shape::Merge { initiators: 8 },
    },
];

/// The effect of [`CALLS`] calls of each initiator.
struct Calls {
    count: u32,
    /// Instructions of all CPUs together.
    instructions: f64,
    counters: Snapshot,
}

/// One number of a case: its name, its unit and its value.
type Metric = (&'static str, &'static str, f64);

const INSTRUCTIONS: &str = "instructions";
const CALL: &str = "per call";
const ROUND: &str = "per round";
const RATIO: &str = "ratio";

impl Calls {
    fn per_call(&self, count: u64) -> f64 {
        float(count) / f64::from(self.count)
    }

    fn sum(&self, counter: Counter) -> f64 {
        self.per_call(self.counters.get(counter))
    }

    /// The largest result of `count` over the vCPUs, per call of an initiator.
    fn largest(&self, vcpus: Range<usize>, count: impl Fn(&Snapshot) -> u64) -> f64 {
        self.per_call(self.counters.of(vcpus).each().map(|vcpu| count(&vcpu)).max().unwrap_or(0))
    }

    fn instructions(&self) -> Metric {
        let each = self.instructions / f64::from(self.count);
        ("instructions of the machine", INSTRUCTIONS, each)
    }

    /// Makes sure that the calls were made as intended: else small numbers would mean nothing.
    fn check(&self, shape: Shape) -> Result<()> {
        let (initiators, targets) = match shape {
            Shape::List { targets } => (1, targets),
            Shape::Merge { initiators } => (initiators, initiators - 1),
        };
        let get = |counter| self.counters.get(counter);
        let calls = u64::from(self.count) * u64::from(initiators);
        ensure!(self.counters.flush_requests() == calls, "the guest did not make {calls} calls more");
        let asked = (calls + get(Counter::FlushContinued)) * u64::from(targets);
        ensure!(self.counters.flush_targets() == asked, "the calls did not name {asked} targets");
        if let Shape::List { .. } = shape {
            let idle = get(Counter::FlushDeferred);
            ensure!(idle == 0, "{idle} times a target was not in guest mode");
        }
        Ok(())
    }

    fn metrics(&self, shape: Shape) -> Vec<Metric> {
        match shape {
            Shape::List { targets } => self.list_metrics(targets).to_vec(),
            Shape::Merge { initiators } => self.merge_metrics(initiators).to_vec(),
        }
    }

    fn list_metrics(&self, targets: u32) -> [Metric; 7] {
        let bystander = targets as usize + 1;
        let parts = 1.0 + self.sum(Counter::FlushContinued);
        let (asked, others) = (1..bystander, bystander..bystander + 1);
        let of_each = |it| self.per_call(self.counters.of(asked.clone()).get(it)) / f64::from(targets);
        let exits = |vcpus| self.largest(vcpus, Snapshot::exits);
        [
            self.instructions(),
            ("parts", CALL, parts),
            ("kicks", CALL, self.sum(Counter::FlushKicks)),
            ("exits of a target", CALL, exits(asked.clone())),
            ("exits of a bystander", CALL, exits(others)),
            ("ranges flushed by a target", CALL, of_each(Counter::FlushRanges)),
            ("whole tags flushed by a target", CALL, of_each(Counter::FlushWhole)),
        ]
    }

    fn merge_metrics(&self, initiators: u32) -> [Metric; 7] {
        let all = 0..initiators as usize;
        let kicks = self.sum(Counter::FlushKicks) / f64::from(initiators * (initiators - 1));
        let whole = |vcpu: &Snapshot| vcpu.get(Counter::FlushWhole);
        // Requests that are taken together are one generation.
        let taken = |vcpu: &Snapshot| self.per_call(vcpu.get(Counter::FlushTaken)).max(0.1);
        let flushes = self.counters.each().map(|vcpu| self.per_call(whole(&vcpu)) / taken(&vcpu));
        [
            self.instructions(),
            ("kicks per initiator and target", RATIO, kicks),
            ("flushes per merged generation", RATIO, flushes.fold(0.0, f64::max)),
            ("flushes of a target", ROUND, self.largest(all.clone(), whole)),
            ("exits of a target", ROUND, self.largest(all, Snapshot::exits)),
            ("requests merged", ROUND, self.sum(Counter::FlushMerged)),
            ("requests deferred", ROUND, self.sum(Counter::FlushDeferred)),
        ]
    }
}

/// Measures all shapes; the metrics are `NAME: METRIC`.
pub(super) fn count(runner: &Runner<'_>, _: FlushWay) -> Result<Vec<Number>> {
    let mut numbers = Vec::new();
    for case in &CASES {
        let calls = measure(&runner.lab, case).with_context(|| case.name)?;
        let number = |(name, unit, value)| Number::of(case.name, name, unit, value);
        numbers.extend(calls.metrics(case.shape).into_iter().map(number));
    }
    Ok(numbers)
}

pub(super) fn limits(worst: &dyn Fn(&str) -> f64) -> Vec<Limit> {
    let of_case = |case: &'static Case| {
        let limits = case.shape.limits(&|metric| worst(&format!("{}: {metric}", case.name)));
        limits.into_iter().map(|limit| limit.of(case.label))
    };
    CASES.iter().flat_map(of_case).collect()
}

fn measure(lab: &Lab<'_>, case: &Case) -> Result<Calls> {
    let (before, after) = (machine(lab, case, CALLS_BEFORE)?, machine(lab, case, CALLS_BEFORE + CALLS)?);
    let (instructions, counters) = (after.0 - before.0, after.1.since(&before.1));
    let calls = Calls { count: CALLS, instructions, counters };
    calls.check(case.shape).map(|()| calls)
}

/// The guest's instructions and the counters of a machine whose initiators make `calls` calls.
fn machine(lab: &Lab<'_>, case: &Case, calls: u32) -> Result<(f64, Snapshot)> {
    let cpus = match case.shape {
        Shape::List { targets } => targets + 2,
        Shape::Merge { initiators } => initiators,
    };
    let cmdline = format!("bench={} count={calls}", case.name);
    // Not the measured value: by this clock neither INVLPGA nor a TLB miss takes time.
    let switches = Switches { flush_pages: Some(PAGES_MAX), ..Switches::default() };
    let guest = Guest { switches, ..lab::bare(Platform::X86_64, workspace::PROBE, cmdline, cpus)? };
    let outcome = lab.run_alone(lab.on_quell(&guest, cpus, Clock::Instructions)?)?;
    let report = outcome.reports.iter().find(|report| report["metric"] == INSTRUCTIONS);
    let instructions = report.and_then(|report| report["value"].as_f64());
    let without = || outcome.explain(anyhow!("the guest ended without a number"));
    instructions.zip(outcome.counters.clone()).ok_or_else(without)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Shape = Shape::List { targets: 1 };
    const ALL: Shape = Shape::Merge { initiators: 8 };

    fn calls(vcpus: &[&[(Counter, u64)]]) -> Calls {
        Calls { count: 10, instructions: 20_000.0, counters: Snapshot::of_counts(vcpus) }
    }

    fn over(calls: &Calls, shape: Shape) -> Vec<String> {
        let metrics = calls.metrics(shape);
        let of = |name: &str| metrics.iter().find(|metric| metric.0 == name).map_or(f64::NAN, |it| it.2);
        let limits = shape.limits(&of).into_iter();
        limits.filter(|limit| !limit.is_met()).map(|limit| limit.label).collect()
    }

    #[test]
    fn list_may_kick_and_stop_its_targets_once_and_nobody_else() {
        let requests = [(Counter::FlushLists, 10), (Counter::FlushBusy, 10)];
        let list = |kicks, exits, bystander| {
            let initiator =
                [requests[0], requests[1], (Counter::FlushKicks, kicks), (Counter::ExitHypercall, 10)];
            calls(&[&initiator, &[(Counter::ExitInterrupt, exits)], &[(Counter::ExitInterrupt, bystander)]])
        };
        assert!(over(&list(10, 10, 0), ONE).is_empty());
        assert_eq!(over(&list(11, 10, 0), ONE), ["kicks"]);
        assert_eq!(over(&list(10, 11, 0), ONE), ["exits of a target"]);
        assert_eq!(over(&list(10, 10, 1), ONE), ["exits of a bystander"]);
        assert!(list(10, 10, 0).check(ONE).is_ok());
        // In two parts, twice as much.
        let parts = [
            (Counter::FlushLists, 10),
            (Counter::FlushContinued, 10),
            (Counter::FlushBusy, 20),
            (Counter::FlushKicks, 20),
        ];
        let parts = calls(&[&parts, &[(Counter::ExitInterrupt, 20)], &[]]);
        assert!(parts.check(ONE).is_ok() && over(&parts, ONE).is_empty());
    }

    #[test]
    fn calls_that_were_not_made_or_met_nobody_are_not_taken() {
        let call = |requests, targets, idle| {
            let counts = [
                (Counter::FlushLists, requests),
                (Counter::FlushBusy, targets - idle),
                (Counter::FlushDeferred, idle),
            ];
            calls(&[&counts]).check(ONE)
        };
        assert!(call(10, 10, 0).is_ok());
        assert!(call(9, 10, 0).is_err());
        assert!(call(10, 9, 0).is_err());
        assert!(call(10, 10, 1).is_err());
        assert!(calls(&[]).check(ALL).is_err());
    }

    #[test]
    fn merging_halves_the_kicks_and_flushes_once_per_generation() {
        let merge = |kicks, flushes| {
            let vcpu = [
                (Counter::FlushKicks, kicks),
                (Counter::FlushTaken, 20),
                (Counter::FlushWhole, flushes),
                (Counter::ExitHypercall, 10),
                (Counter::ExitInterrupt, 10),
            ];
            calls(&[vcpu.as_slice(); 8])
        };
        // Each vCPU has seven targets in ten rounds.
        assert!(over(&merge(35, 20), ALL).is_empty());
        assert_eq!(over(&merge(36, 20), ALL), ["kicks per initiator and target"]);
        assert_eq!(over(&merge(35, 21), ALL), ["flushes per merged generation"]);
    }

    #[test]
    fn numbers_are_per_call() {
        let metrics = calls(&[]).metrics(ONE);
        assert_eq!(metrics[0], ("instructions of the machine", INSTRUCTIONS, 2000.0));
        assert_eq!((metrics[2].0, metrics[2].2), ("kicks", 0.0));
        assert!(limits(&|_| f64::NAN).iter().all(|limit| !limit.is_met()), "nothing was measured");
    }
}
