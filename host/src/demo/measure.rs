//! One run of thrash, observed through the guest's report channel and the hypervisor's counters.

use crate::machine::counters::Snapshot;
use crate::machine::process::{Flow, Machine};
use crate::results::{Samples, Subject};
use anyhow::Result;
use indicatif::ProgressBar;
use serde_json::Value;

/// How long thrash idles after it has announced its begin and its end, so that the counters read
/// then match the measured stretch.
pub(crate) const SETTLE_MS: u64 = 300;

#[derive(Clone, Debug)]
pub(crate) struct ThrashRun {
    /// Wall clock in the guest, seconds.
    pub(crate) real: f64,
    user: f64,
    sys: f64,
    tlb_ipis: u64,
    call_ipis: u64,
    counters: Snapshot,
}

impl ThrashRun {
    /// Adds every value to the samples of `case`.
    pub(crate) fn add_to(&self, samples: &mut Samples, case: &str) {
        for (metric, secs) in [("real", self.real), ("user", self.user), ("sys", self.sys)] {
            samples.add(case, Subject::Quell, metric, "s", secs);
        }
        samples.add_count(case, Subject::Quell, "guest.tlb_ipis", self.tlb_ipis);
        samples.add_count(case, Subject::Quell, "guest.call_ipis", self.call_ipis);
        samples.add_count(case, Subject::Quell, "exit.all", self.counters.exits());
        for (name, value) in self.counters.iter() {
            samples.add_count(case, Subject::Quell, name, value);
        }
    }
}

pub(crate) struct Observer<'a> {
    bar: &'a ProgressBar,
    begin: Option<Snapshot>,
    result: Option<ThrashRun>,
}

impl<'a> Observer<'a> {
    /// Shows the progress on `bar`.
    pub(crate) fn new(bar: &'a ProgressBar) -> Self {
        Self { bar, begin: None, result: None }
    }

    /// Processes one line of the report channel.
    pub(crate) fn observe(&mut self, report: &Value, machine: &mut Machine) -> Result<Flow> {
        match report["event"].as_str() {
            Some("boot") => {
                self.bar.set_message(format!("booted in {:.1} s", machine.elapsed().as_secs_f64()))
            }
            Some("begin") => self.begin = machine.counters()?,
            Some("progress") => {
                self.bar.set_length(report["total"].as_u64().unwrap_or(1));
                self.bar.set_position(report["done"].as_u64().unwrap_or(0));
            }
            Some("end") => self.result = self.measured(report, machine.counters()?),
            _ => {}
        }
        Ok(Flow::Continue)
    }

    /// The results, once thrash has ended.
    pub(crate) fn result(self) -> Option<ThrashRun> {
        self.result
    }

    fn measured(&self, report: &Value, now: Option<Snapshot>) -> Option<ThrashRun> {
        Some(ThrashRun {
            real: report["real"].as_f64()?,
            user: report["user"].as_f64()?,
            sys: report["sys"].as_f64()?,
            tlb_ipis: report["tlb_ipis"].as_u64()?,
            call_ipis: report["call_ipis"].as_u64()?,
            counters: now?.since(self.begin.as_ref()?),
        })
    }
}
