//! What a bystander and the hypervisor's counters say of a measured phase.

use crate::results::float;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// How long flushes took: nanoseconds, and how many took that long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Latencies(pub(super) BTreeMap<u64, u64>);

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

/// What the bystander has done and found since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Tally {
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
pub(super) struct Batches {
    last: Option<(u64, Tally)>,
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

    /// The measured phase begins with the next batch.
    pub(super) fn begin(&mut self) {
        self.begin = self.last;
    }

    pub(super) const fn has_any(&self) -> bool {
        self.last.is_some()
    }

    /// Batches since the beginning.
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
mod tests {
    use super::*;
    use serde_json::json;

    fn batch(number: u64, units: u64, latency: &Value) -> Value {
        json!({
            "event": "batch", "batch": number, "units": units, "stale": 0, "words": 1, "registers": 2,
            "stops": number, "stopped_ns": 10 * number, "longest_ns": 7, "latency": latency,
        })
    }

    #[test]
    fn quantiles_are_those_of_all_batches_since_the_beginning() {
        let mut batches = Batches::default();
        batches.take(&batch(1, 100, &json!([[9_000_000, 50]]))).expect("is one");
        assert_eq!((batches.measured(), batches.latencies.count()), (0, 0));
        batches.begin();
        batches.take(&batch(2, 150, &json!([[1_000_000, 98], [2_000_000, 1]]))).expect("is one");
        batches.take(&batch(3, 180, &json!([[4_000_000, 1]]))).expect("is one");
        let latencies = &batches.latencies;
        assert_eq!((batches.measured(), latencies.count()), (2, 100));
        assert!((latencies.p50() - 1.0).abs() < 1e-9 && (latencies.p99() - 2.0).abs() < 1e-9);
        assert!((latencies.longest() - 4.0).abs() < 1e-9);
        let tally = batches.tally();
        assert_eq!((tally.units, tally.stops, tally.stopped_ns), (80, 2, 20));
        assert_eq!((tally.words, tally.registers), (1, 2), "whenever they were found");
    }

    #[test]
    fn what_is_missing_is_an_error() {
        let mut batches = Batches::default();
        assert!(batches.take(&batch(2, 0, &json!([]))).is_err(), "the first is missing");
        assert!(batches.take(&json!({"batch": 1, "units": 3})).is_err());
        batches.take(&batch(1, 0, &json!([["x", 1]]))).expect("it is not measured yet");
        batches.begin();
        assert!(batches.take(&batch(2, 0, &json!([["x", 1]]))).is_err());
        assert!(Latencies::default().p99().is_nan());
    }
}
