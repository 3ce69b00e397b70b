//! Runs all cases on one machine.

use super::cases::{CASES, Case, NOTHING, Work};
use crate::bench::lab::Lab;
use crate::bench::phases::Phases;
use crate::machine::counters::Snapshot;
use crate::machine::process::Flow;
use crate::machine::spec::Spec;
use crate::results::float;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Counted {
    /// What the devices did: reads, writes, or frames that were sent.
    pub(super) ios: f64,
    /// Instructions for all of them.
    pub(super) instructions: f64,
    /// Exits by name; empty without Quell.
    pub(super) exits: BTreeMap<&'static str, f64>,
}

impl Counted {
    pub(super) fn instructions_each(&self) -> f64 {
        self.instructions / self.ios
    }

    pub(super) fn exits_each(&self) -> f64 {
        self.exits.values().sum::<f64>() / self.ios
    }
}

#[derive(Clone, Debug, Default)]
struct Heard {
    reports: [Option<Value>; 2],
    counters: [Option<Snapshot>; 2],
}

impl Heard {
    /// How much a number of the guest's reports has grown.
    fn gained(&self, name: &str) -> Option<f64> {
        let [begin, end] = self.reports.each_ref().map(|report| report.as_ref()?[name].as_f64());
        Some(end? - begin?)
    }

    fn ios(&self, case: &Case) -> Result<f64> {
        let gained = |name| self.gained(name).context("the guest did not report its end");
        match case.work {
            Work::Disk { count, .. } => {
                let count = float(count);
                let ios = gained("reads")? + gained("writes")?;
                ensure!((ios - count).abs() < 0.5, "the disk has done {ios} transfers instead of {count}");
                Ok(ios)
            }
            Work::Stream { .. } => gained("frames"),
            Work::Nothing => Ok(1.0),
        }
    }

    fn exits(&self) -> BTreeMap<&'static str, f64> {
        let [Some(begin), Some(end)] = &self.counters else { return BTreeMap::new() };
        let exits = end.since(begin);
        let all = exits.iter().filter(|(name, _)| name.starts_with("exit."));
        all.map(|(name, count)| (name, float(count))).collect()
    }
}

/// Runs the machine to its end; returns the counts of each case but the one without work, which is
/// subtracted.
pub(super) fn run(lab: &Lab<'_>, spec: Spec) -> Result<Vec<Counted>> {
    let mut heard: BTreeMap<String, Heard> = BTreeMap::new();
    let mut last = "boot".to_owned();
    let counted = lab.count(spec, |report, machine| {
        last = report.to_string();
        let place = match report["event"].as_str() {
            Some("begin") => 0,
            Some("end") => 1,
            Some("failed") => bail!("a command has failed"),
            _ => return Ok(Flow::Continue),
        };
        let case = heard.entry(report["case"].as_str().unwrap_or_default().to_owned()).or_default();
        // Each comes twice: what lies between the last beginning and the first end is counted.
        if place == 0 || case.reports[1].is_none() {
            case.counters[place] = machine.counters()?;
            case.reports[place] = Some(report.clone());
        }
        Ok(Flow::Continue)
    });
    let (_, phases) = counted.with_context(|| format!("after {last}"))?;
    self::counted(&heard, &phases)
}

fn counted(heard: &BTreeMap<String, Heard>, phases: &Phases) -> Result<Vec<Counted>> {
    let all = CASES.iter().zip(1..).map(|(case, phase)| {
        let heard = heard.get(case.name).with_context(|| format!("the guest did not begin {}", case.name))?;
        let instructions = float(phases.numbered(phase)?.instructions);
        let ios = heard.ios(case).with_context(|| case.name)?;
        Ok((case, Counted { ios, instructions, exits: heard.exits() }))
    });
    let all = all.collect::<Result<Vec<_>>>()?;
    let nothing = all.iter().find(|(case, _)| case.name == NOTHING).map(|(_, counted)| counted.clone());
    let nothing = nothing.context("there is nothing to subtract")?;
    let others = all.into_iter().filter(|(case, _)| case.name != NOTHING);
    Ok(others.map(|(_, counted)| without(counted, &nothing)).collect())
}

/// The counts without those of what surrounds the work.
fn without(mut counted: Counted, nothing: &Counted) -> Counted {
    counted.instructions = (counted.instructions - nothing.instructions).max(0.0);
    for (name, count) in &mut counted.exits {
        *count = (*count - nothing.exits.get(name).copied().unwrap_or(0.0)).max(0.0);
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn heard(reads: u64, frames: u64) -> Heard {
        let report = |reads, frames| Some(json!({"reads": reads, "writes": 7, "frames": frames}));
        Heard { reports: [report(10, 20), report(10 + reads, 20 + frames)], ..Heard::default() }
    }

    #[test]
    fn transfers_are_those_that_the_devices_have_done() {
        let [_, read, ..] = &CASES;
        assert_eq!(heard(500, 0).ios(read).expect("all are done"), 500.0);
        let error = heard(499, 0).ios(read).expect_err("one is missing").to_string();
        assert!(error.contains("499"), "{error}");
        let stream = CASES.iter().find(|case| case.name == "stream").expect("is one");
        assert_eq!(heard(5, 300).ios(stream).expect("counts"), 300.0);
        assert!(Heard::default().ios(stream).is_err());
    }

    #[test]
    fn what_surrounds_the_work_is_subtracted() {
        let counted = |instructions, waits| Counted {
            ios: 10.0,
            instructions,
            exits: BTreeMap::from([("exit.wait", waits)]),
        };
        let net = without(counted(1100.0, 25.0), &counted(100.0, 5.0));
        assert_eq!((net.instructions_each(), net.exits_each()), (100.0, 2.0));
        assert_eq!(without(counted(90.0, 1.0), &counted(100.0, 5.0)).exits_each(), 0.0);
    }
}
