//! What a bystander and the hypervisor's counters say of a measured phase.

use crate::results::float;
use anyhow::{Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;

/// Of the flushes, as many are at most as long as p99 says.
const P99: f64 = 0.99;
const P50: f64 = 0.5;

/// How long flushes took: nanoseconds, and how many took that long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Latencies(BTreeMap<u64, u64>);

impl Latencies {
    #[cfg(test)]
    pub(super) fn of(counts: &[(u64, u64)]) -> Self {
        Self(counts.iter().copied().collect())
    }

    fn add(&mut self, pairs: &Value) -> Result<()> {
        for pair in pairs.as_array().into_iter().flatten() {
            let (Some(ns), Some(count)) = (pair[0].as_u64(), pair[1].as_u64()) else {
                anyhow::bail!("the bystander reports a latency of {pair}");
            };
            *self.0.entry(ns).or_default() += count;
        }
        Ok(())
    }

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
        self.quantile(P50)
    }

    /// Exceeded by one in a hundred, in ms.
    pub(super) fn p99(&self) -> f64 {
        self.quantile(P99)
    }

    /// The longest, in ms.
    pub(super) fn longest(&self) -> f64 {
        self.0.last_key_value().map_or(f64::NAN, |(ns, _)| float(*ns) / 1e6)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

impl Tally {
    fn of(report: &Value) -> Result<Self> {
        let field = |name: &str| {
            report[name].as_u64().ok_or_else(|| anyhow::anyhow!("a batch of the bystander has no '{name}'"))
        };
        Ok(Self {
            units: field("units")?,
            stale: field("stale")?,
            words: field("words")?,
            registers: field("registers")?,
            stops: field("stops")?,
            stopped_ns: field("stopped_ns")?,
            longest_ns: field("longest_ns")?,
        })
    }
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
        let number = report["batch"].as_u64().unwrap_or(0);
        let expected = self.last.map_or(1, |(last, _)| last + 1);
        ensure!(number == expected, "batch {number} of the bystander follows batch {}", expected - 1);
        let tally = Tally::of(report)?;
        if self.begin.is_some() {
            self.latencies.add(&report["latency"])?;
        }
        self.last = Some((number, tally));
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
