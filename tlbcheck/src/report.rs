//! The report: TAP or lines of JSON.
//!
//! TAP is that of the Test Anything Protocol, version 14: a plan, then a line for each row; the
//! reason of a failure is on its own line after a `#`.

use core::fmt::{self, Write};

use arrayvec::ArrayString;
use baremetal::text::{Cut, Quoted};
use baremetal::watch::Unseen;

use crate::statistics::Summary;

/// Why a row fails or is skipped.
pub type Reason = ArrayString<112>;

/// Why a row does not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The defect that it detects is present.
    Fail(Reason),
    /// It is not applicable here.
    Skip(Reason),
}

/// The result of a row.
pub type Verdict = Result<(), Stop>;

/// This text, truncated if it is too long.
pub fn reason(text: fmt::Arguments<'_>) -> Reason {
    let mut reason = Reason::new();
    let _ = Cut(&mut reason).write_fmt(text);
    reason
}

/// A failure with this text.
pub fn fail(text: fmt::Arguments<'_>) -> Stop {
    Stop::Fail(reason(text))
}

/// A skip with this text.
pub fn skip(text: fmt::Arguments<'_>) -> Stop {
    Stop::Skip(reason(text))
}

impl From<Unseen> for Stop {
    fn from(unseen: Unseen) -> Self {
        match unseen {
            Unseen::Silent(round) => {
                fail(format_args!("the watching processor does not look at round {round}"))
            }
            Unseen::Unnoticed(tries) => skip(format_args!(
                "no TLB here keeps a page that is replaced without a flush, in {tries} tries"
            )),
        }
    }
}

/// Fails with a text unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::report::fail(format_args!($($text)+)));
        }
    };
}

/// Skips with a text unless the condition holds.
#[macro_export]
macro_rules! needs {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::report::skip(format_args!($($text)+)));
        }
    };
}

/// Number of rows with each result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Rows that passed.
    pub passed: u32,
    /// Rows that failed.
    pub failed: u32,
    /// Rows that were skipped.
    pub skipped: u32,
}

impl Totals {
    /// Counts a row.
    pub const fn count(&mut self, verdict: &Verdict) {
        match verdict {
            Ok(()) => self.passed += 1,
            Err(Stop::Fail(_)) => self.failed += 1,
            Err(Stop::Skip(_)) => self.skipped += 1,
        }
    }
}

/// A measurement, with its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurement<'a> {
    /// The name of the measurement.
    pub bench: &'a str,
    /// The unit of the results.
    pub unit: Unit,
    /// The back end.
    pub back_end: &'a str,
    /// Participating processors, including the initiator.
    pub processors: usize,
    /// Ranges of one page each; 0 for everything.
    pub ranges: usize,
    /// The initiator's time.
    pub initiator: Summary,
    /// Each target's lost time, if known.
    pub target: Option<Summary>,
}

/// The unit of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Cycles of the TSC.
    Cycles,
    /// Nanoseconds.
    Nanoseconds,
}

impl Unit {
    const fn short(self) -> &'static str {
        match self {
            Self::Cycles => "cycles",
            Self::Nanoseconds => "ns",
        }
    }

    const fn long(self) -> &'static str {
        match self {
            Self::Cycles => "TSC cycles",
            Self::Nanoseconds => "nanoseconds",
        }
    }
}

/// The clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The TSC, with this many cycles per second.
    Tsc(u64),
    /// The virtual counter, with this many ticks per second.
    VirtualCounter(u64),
}

/// The machine, for the head of a report.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    /// Its name.
    pub name: &'static str,
    /// Its name and features.
    pub platform: &'a dyn fmt::Display,
    /// Number of processors in use.
    pub processors: usize,
    /// The clock.
    pub clock: Clock,
    /// The boot protocol.
    pub protocol: &'static str,
}

/// A report that is written to `out`, which must not fail.
#[derive(Debug)]
pub struct Report<W> {
    out: W,
    is_json: bool,
    /// Number of rows so far, and of lines of measurements.
    number: u32,
}

impl<W: Write> Report<W> {
    /// In lines of JSON, or in text.
    pub const fn new(out: W, is_json: bool) -> Self {
        Self { out, is_json, number: 0 }
    }

    fn line(&mut self, text: fmt::Arguments<'_>) {
        let _ = self.out.write_fmt(text);
        let _ = self.out.write_str("\r\n");
    }

    /// Begins the report.
    pub fn head(&mut self, head: &Head<'_>) {
        let Head { name, platform, processors, clock, protocol } = head;
        let (clock, key, hz) = match *clock {
            Clock::Tsc(hz) => ("TSC", "tsc_hz", hz),
            Clock::VirtualCounter(hz) => ("virtual counter", "counter_hz", hz),
        };
        if !self.is_json {
            self.line(format_args!("TAP version 14"));
            self.line(format_args!("# tlbcheck on {platform}"));
            let mhz = hz / 1_000_000;
            self.line(format_args!("# {processors} processors, {clock} {mhz} MHz, started by {protocol}"));
            return;
        }
        self.line(format_args!(
            r#"{{"event":"start","platform":"{name}","processors":{processors},"{key}":{hz},"protocol":"{protocol}"}}"#
        ));
    }

    /// Reports the number of rows.
    pub fn plan(&mut self, rows: usize) {
        match self.is_json {
            true => self.line(format_args!(r#"{{"event":"plan","rows":{rows}}}"#)),
            false => self.line(format_args!("1..{rows}")),
        }
    }

    /// Reports that a row begins: if the machine hangs in it, this is the last line.
    pub fn begin(&mut self, name: &str) {
        match self.is_json {
            true => self.line(format_args!(r#"{{"event":"row","row":"{name}"}}"#)),
            false => self.line(format_args!("# {name}")),
        }
    }

    /// Reports a row.
    pub fn row(&mut self, name: &str, verdict: &Verdict) {
        self.number += 1;
        let number = self.number;
        if self.is_json {
            let (result, why) = match verdict {
                Ok(()) => ("pass", ""),
                Err(Stop::Fail(why)) => ("fail", why.as_str()),
                Err(Stop::Skip(why)) => ("skip", why.as_str()),
            };
            return self
                .line(format_args!(r#"{{"row":"{name}","result":"{result}","why":"{}"}}"#, Quoted(why)));
        }
        match verdict {
            Ok(()) => self.line(format_args!("ok {number} - {name}")),
            Err(Stop::Skip(why)) => self.line(format_args!("ok {number} - {name} # SKIP {why}")),
            Err(Stop::Fail(why)) => {
                self.line(format_args!("not ok {number} - {name}"));
                self.line(format_args!("# {why}"));
            }
        }
    }

    /// Reports a measurement; the first one is preceded by the table's head.
    pub fn measurement(&mut self, measured: &Measurement<'_>) {
        let Measurement { bench, unit, back_end, processors, ranges, initiator, target } = measured;
        let (short, long) = (unit.short(), unit.long());
        if self.is_json {
            for (side, of) in [("initiator", Some(initiator)), ("target", target.as_ref())] {
                let Some(Summary { count, min, median, p90, p99, max }) = of else { continue };
                self.line(format_args!(
                    r#"{{"bench":"{bench}","back_end":"{back_end}","processors":{processors},"ranges":{ranges},"side":"{side}","unit":"{short}","samples":{count},"min":{min},"median":{median},"p90":{p90},"p99":{p99},"max":{max}}}"#
                ));
            }
            return;
        }
        if self.number == 0 {
            self.line(format_args!("# medians and percentiles in {long}; 0 ranges: everything"));
            self.line(format_args!(
                "# {:<12}{:>5}{:>7}{:>12}{:>12}{:>12}{:>12}{:>12}",
                "back end", "CPUs", "ranges", "initiator", "p90", "p99", "target", "p90"
            ));
        }
        self.number += 1;
        let Summary { median, p90, p99, .. } = initiator;
        let (target, target_p90) = target.as_ref().map_or((0, 0), |target| (target.median, target.p90));
        self.line(format_args!(
            "  {back_end:<14}{processors:>3}{ranges:>7}{median:>12}{p90:>12}{p99:>12}{target:>12}{target_p90:>12}"
        ));
    }

    /// Reports why something could not be measured.
    pub fn note(&mut self, why: &str) {
        match self.is_json {
            true => self.line(format_args!(r#"{{"event":"note","why":"{}"}}"#, Quoted(why))),
            false => self.line(format_args!("# {why}")),
        }
    }

    /// Ends the report.
    pub fn end(&mut self, totals: &Totals) {
        let Totals { passed, failed, skipped } = totals;
        match self.is_json {
            true => self.line(format_args!(
                r#"{{"event":"end","passed":{passed},"failed":{failed},"skipped":{skipped}}}"#
            )),
            false => self.line(format_args!("# {passed} passed, {failed} failed, {skipped} skipped")),
        }
    }

    /// Reports that the image cannot continue.
    pub fn bail(&mut self, why: &str) {
        match self.is_json {
            true => self.line(format_args!(r#"{{"event":"bail","why":"{}"}}"#, Quoted(why))),
            false => self.line(format_args!("Bail out! {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::string::String;
    use std::vec::Vec;

    const HEAD: Head<'_> = Head {
        name: "bare",
        platform: &"bare, with nothing",
        processors: 2,
        clock: Clock::Tsc(2_000_000_000),
        protocol: "pvh",
    };

    /// All kinds of output.
    fn everything(is_json: bool) -> String {
        let mut report = Report::new(String::new(), is_json);
        let mut totals = Totals::default();
        report.head(&HEAD);
        report.plan(3);
        for (name, verdict) in [
            ("one", Ok(())),
            ("two", Err(fail(format_args!("saw \"{}\"\n\\", 7)))),
            ("three", Err(skip(format_args!("no such thing")))),
        ] {
            report.begin(name);
            totals.count(&verdict);
            report.row(name, &verdict);
        }
        let summary = Summary::of(&mut [1, 2, 3]);
        let measured = Measurement {
            bench: "shootdown",
            unit: Unit::Cycles,
            back_end: "ipi",
            processors: 2,
            ranges: 0,
            initiator: summary,
            target: Some(summary),
        };
        report.measurement(&measured);
        report.note("a \"note\"");
        report.bail("why");
        report.end(&totals);
        report.out
    }

    #[test]
    fn tap_is_tap() {
        let text = everything(false);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "TAP version 14");
        for line in [
            "# tlbcheck on bare, with nothing",
            "# 2 processors, TSC 2000 MHz, started by pvh",
            "1..3",
            "ok 1 - one",
            "not ok 2 - two",
            "ok 3 - three # SKIP no such thing",
            "Bail out! why",
        ] {
            assert!(lines.contains(&line), "{line}: {text}");
        }
        let counted = lines.iter().filter(|line| line.starts_with("ok ") || line.starts_with("not ok "));
        assert_eq!(counted.count(), 3);
        assert!(text.contains("# 1 passed, 1 failed, 1 skipped"));
    }

    #[test]
    fn every_line_of_json_is_json() {
        let lines: Vec<Value> =
            everything(true).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!((&lines[0]["platform"], &lines[0]["tsc_hz"]), (&"bare".into(), &2_000_000_000u64.into()));
        let failed = lines.iter().find(|line| line["result"] == "fail").expect("one failed");
        assert_eq!((&failed["row"], &failed["why"]), (&"two".into(), &"saw '7' /".into()));
        let sides = lines.iter().filter(|line| line["bench"] == "shootdown" && line["median"] == 2);
        assert_eq!(sides.count(), 2);
        assert_eq!(lines.last().map(|line| line["skipped"] == 1), Some(true));
    }

    #[test]
    fn an_overlong_reason_loses_its_end() {
        let long = "x".repeat(500);
        assert_eq!(reason(format_args!("{long}")).len(), 112);
    }

    /// A line that a hypervisor logs is cut in two if it is longer: Xen's `DOMAIN_PBUF_SIZE`.
    #[test]
    fn the_longest_line_of_a_row_is_one_line_of_xens_log() {
        let mut report = Report::new(String::new(), true);
        report.row(&"x".repeat(48), &Err(skip(format_args!("{}", "\"\\".repeat(100)))));
        assert!(report.out.trim_end().len() < 199, "{}", report.out);
    }
}
