//! tlbcheck's measurements of shootdowns, and their limits.

use super::all::way::BARE;
use super::counts::Figures;
use crate::prelude::*;
use std::thread::available_parallelism;

/// The baseline.
const SERIAL: &str = "ipi-serial";
/// CPUs, and the highest cost of the concurrent and the asynchronous mode relative to the serial
/// one: figures of the mail that proposed them (Linux, 2019), -14 % and -22 % on 2 CPUs, -10 % and
/// -18 % on 4.
const RATIOS_MAX: [(u32, f64, f64); 2] = [(2, 0.86, 0.78), (4, 0.90, 0.82)];

/// A line of tlbcheck's measurements: one side of one kind of shootdown.
#[derive(Deserialize)]
pub(super) struct Measured {
    back_end: String,
    processors: u64,
    /// 0 for everything.
    ranges: u64,
    pub(super) side: String,
    pub(super) median: f64,
    min: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

impl Measured {
    pub(super) fn read(report: &Value) -> Option<Self> {
        Self::deserialize(report).ok().filter(|_| report["bench"] == "shootdown")
    }

    /// `BACK-END-CPUS:RANGES`, with `all` for a flush of everything.
    pub(super) fn case(&self) -> String {
        let ranges = if self.ranges == 0 { "all".to_owned() } else { self.ranges.to_string() };
        case(&self.back_end, self.processors, &ranges)
    }

    /// All numbers, by metric.
    pub(super) fn numbers(&self) -> [(String, f64); 5] {
        let of = |name: &str| format!("{} {}{name}", self.case(), self.side);
        let Self { median, min, p90, p99, max, .. } = *self;
        [(of(""), median), (of(" min"), min), (of(" p90"), p90), (of(" p99"), p99), (of(" max"), max)]
    }
}

fn case(back_end: &str, processors: u64, ranges: &str) -> String {
    format!("{back_end}-{processors}:{ranges}")
}

pub(super) fn cores() -> u32 {
    available_parallelism().map_or(1, |cores| cores.get() as u32)
}

/// The targets. They apply to the machine itself, and to at most as many CPUs as there are `cores`
/// to emulate them: a target without a core at the moment answers only when it has one. Waking
/// targets that have halted dominates, so there are none for these.
pub(super) fn limits(of: Figures<'_>, cores: u32) -> Vec<Limit> {
    let limits = RATIOS_MAX.into_iter().flat_map(|(processors, concurrent_max, async_max)| {
        let of = move |mode| of(BARE, &format!("{} initiator", case(mode, processors.into(), "1")));
        [("ipi-concurrent", concurrent_max), ("ipi-async", async_max)].into_iter().filter_map(
            move |(mode, most)| {
                let label = format!("{processors} CPUs, one page, {mode}, relative to serial");
                let most = if processors <= cores { most } else { f64::INFINITY };
                Some(Limit::at_most(label, of(mode).unwrap_or(f64::NAN) / of(SERIAL)?, most))
            },
        )
    });
    limits.collect()
}

#[cfg(test)]
mod tests {
    use super::super::limits::all_met;
    use super::*;

    const MODES: [&str; 3] = [SERIAL, "ipi-concurrent", "ipi-async"];

    /// Whether medians of these modes on so many CPUs meet the targets, which are so many.
    fn is_met(processors: u64, medians: [f64; 3], cores: u32) -> (bool, usize) {
        let lines = MODES.into_iter().zip(medians).map(|(mode, median)| {
            let line = json!({
                "bench": "shootdown", "back_end": mode, "processors": processors, "ranges": 1, "side": "initiator",
                "unit": "cycles", "samples": 101, "min": 1, "median": median, "p90": 2, "p99": 3, "max": 4,
            });
            Measured::read(&line)
        });
        let numbers: Vec<_> = lines.flatten().flat_map(|line| line.numbers()).collect();
        let of = |metric: &str| Some(numbers.iter().find(|(name, _)| name == metric)?.1);
        let limits = limits(&|way, metric| of(metric).filter(|_| way.is_bare()), cores);
        (all_met(&limits), limits.len())
    }

    #[test]
    fn targets_are_missed_by_what_is_slower_or_was_not_measured() {
        assert_eq!(is_met(2, [1000.0, 850.0, 770.0], 4), (true, 2));
        assert_eq!(is_met(2, [1000.0, 850.0, 790.0], 4), (false, 2));
        assert_eq!(is_met(2, [1000.0, 850.0, f64::NAN], 4), (false, 2), "JSON has no such number");
        assert_eq!(is_met(4, [1000.0, 1000.0, 1000.0], 4), (false, 2));
        assert_eq!(is_met(4, [1000.0, 1000.0, 1000.0], 2), (true, 2), "without cores for them");
        assert_eq!(is_met(1, [1000.0, 1000.0, 1000.0], 2), (true, 0));
    }

    #[test]
    fn lines_of_other_kinds_are_no_measurements() {
        assert!(Measured::read(&json!({"row": "a", "result": "pass"})).is_none());
        assert!(Measured::read(&json!({"bench": "other", "back_end": "ipi"})).is_none());
    }
}
