//! The part of `quell bench flush` whose targets are in guest mode: the effect of a call on them
//! and on others.
//!
//! The machine has a CPU for each vCPU, and its clock is the number of executed instructions. Each
//! case runs on two machines that differ only in the number of calls, so the difference between
//! their counters is the exact effect of those calls: the start of the guest, its report and its
//! end are the same in both.
//!
//! That clock counts the instructions of all CPUs, which QEMU runs in turn, one until it pauses or
//! halts and then the next. So instructions are reported for the machine as a whole, including the
//! loops of targets and bystanders.

#[cfg(test)]
mod tests;

use super::lab::{self, Lab};
use super::limits::Limit;
use crate::arch::Platform;
use crate::machine::counters::Snapshot;
use crate::machine::spec::Clock;
use crate::results::{Samples, Subject, float};
use crate::vm::Guest;
use crate::workspace;
use anyhow::{Context, Result, anyhow, ensure};
use hostlink::config::Switches;
use hostlink::counters::Counter;
use std::ops::Range;

/// The most pages that the machines drop one by one: all those of the longest list.
const PAGES_MAX: u32 = 1024;
/// Calls of each initiator on the first machine: enough for everything to have happened once.
const CALLS_BEFORE: u32 = 100;
/// How many more the second machine makes.
const CALLS: u32 = 1000;

/// The vCPUs that flush, and their targets.
#[derive(Clone, Copy)]
enum Shape {
    /// vCPU 0 flushes the next `targets` vCPUs; one more runs and is no target.
    List { targets: u32 },
    /// `initiators` vCPUs flush each other, all at once.
    Merge { initiators: u32 },
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

/// One number of a case: its name, its unit, its value, and its highest allowed value.
type Metric = (&'static str, &'static str, f64, f64);

const INSTRUCTIONS: &str = "instructions";
const CALL: &str = "per call";
const ROUND: &str = "per round";
const RATIO: &str = "ratio";

const NONE: f64 = f64::INFINITY;

impl Calls {
    /// A total per call of an initiator.
    fn per_call(&self, count: u64) -> f64 {
        float(count) / f64::from(self.count)
    }

    /// A counter summed over all vCPUs, per call of an initiator.
    fn sum(&self, counter: Counter) -> f64 {
        self.per_call(self.counters.get(counter))
    }

    /// The largest result of `count` over the vCPUs, per call of an initiator.
    fn largest(&self, vcpus: Range<usize>, count: impl Fn(&Snapshot) -> u64) -> f64 {
        self.per_call(self.counters.of(vcpus).each().map(|vcpu| count(&vcpu)).max().unwrap_or(0))
    }

    fn instructions(&self) -> Metric {
        let each = self.instructions / f64::from(self.count);
        ("instructions of the machine", INSTRUCTIONS, each, NONE)
    }

    /// Makes sure that the calls were made as intended by the case: otherwise small numbers would
    /// mean nothing.
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
            Shape::List { targets } => self.list_metrics(targets),
            Shape::Merge { initiators } => self.merge_metrics(initiators),
        }
    }

    fn list_metrics(&self, targets: u32) -> Vec<Metric> {
        let bystander = targets as usize + 1;
        // Each part of a long list is a flush of its own.
        let parts = 1.0 + self.sum(Counter::FlushContinued);
        let (asked, others) = (1..bystander, bystander..bystander + 1);
        let of_each =
            |counter| self.per_call(self.counters.of(asked.clone()).get(counter)) / f64::from(targets);
        let exits = |vcpus| self.largest(vcpus, Snapshot::exits);
        vec![
            self.instructions(),
            ("parts", CALL, parts, NONE),
            ("kicks", CALL, self.sum(Counter::FlushKicks), parts * f64::from(targets)),
            ("exits of a target", CALL, exits(asked.clone()), parts),
            ("exits of a bystander", CALL, exits(others), 0.0),
            ("ranges flushed by a target", CALL, of_each(Counter::FlushRanges), NONE),
            ("whole tags flushed by a target", CALL, of_each(Counter::FlushWhole), NONE),
        ]
    }

    fn merge_metrics(&self, initiators: u32) -> Vec<Metric> {
        let all = 0..initiators as usize;
        let kicks = self.sum(Counter::FlushKicks) / f64::from(initiators * (initiators - 1));
        let whole = |vcpu: &Snapshot| vcpu.get(Counter::FlushWhole);
        // Requests that are taken together are one generation.
        let taken = |vcpu: &Snapshot| self.per_call(vcpu.get(Counter::FlushTaken)).max(0.1);
        let flushes = self.counters.each().map(|vcpu| self.per_call(whole(&vcpu)) / taken(&vcpu));
        vec![
            self.instructions(),
            ("kicks per initiator and target", RATIO, kicks, 0.5),
            ("flushes per merged generation", RATIO, flushes.fold(0.0, f64::max), 1.0),
            ("flushes of a target", ROUND, self.largest(all.clone(), whole), NONE),
            ("exits of a target", ROUND, self.largest(all, Snapshot::exits), NONE),
            ("requests merged", ROUND, self.sum(Counter::FlushMerged), NONE),
            ("requests deferred", ROUND, self.sum(Counter::FlushDeferred), NONE),
        ]
    }
}

/// Runs every case; returns its numbers with their limits.
pub(super) fn count(lab: &Lab<'_>, samples: &mut Samples) -> Result<Vec<Limit>> {
    let mut limits = Vec::new();
    for case in &CASES {
        let calls = measure(lab, case).with_context(|| case.name)?;
        for (name, unit, value, most) in calls.metrics(case.shape) {
            samples.add(case.name, Subject::Quell, name, unit, value);
            limits.push(Limit::at_most(name, value, most).of(case.label));
        }
    }
    Ok(limits)
}

/// The effect of [`CALLS`] calls.
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
    // Not the measured value: with a clock of instructions neither INVLPGA nor a TLB miss takes
    // time.
    let switches = Switches { flush_pages: Some(PAGES_MAX), ..Switches::default() };
    let guest = Guest { switches, ..lab::bare(Platform::X86_64, workspace::PROBE, cmdline, cpus)? };
    let outcome = lab.run_alone(lab.on_quell(&guest, cpus, Clock::Instructions)?)?;
    let report = outcome.reports.iter().find(|report| report["metric"] == INSTRUCTIONS);
    let instructions = report.and_then(|report| report["value"].as_f64());
    let without = || outcome.explain(anyhow!("the guest ended without a number"));
    instructions.zip(outcome.counters.clone()).ok_or_else(without)
}
