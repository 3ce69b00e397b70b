//! Collects the numbers from a machine's reports.

use super::cases::{CYCLES, INSTRUCTIONS, Linux, Metric, SECONDS, USERSPACE, Work};
use super::way::{Logged, Way};
use crate::bench::shootdown::Measured;
use crate::guest::peer;
use crate::machine::process::Flow;
use crate::results::number;
use serde_json::Value;
use std::time::Duration;

/// A number and its name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Number {
    pub(crate) metric: String,
    pub(crate) unit: &'static str,
    pub(crate) value: f64,
}

/// Follows the reports of one machine.
pub(crate) struct Watch<'a> {
    work: &'a Work,
    way: Way,
    /// When the guest's machine was started, by the clock of the outer machine.
    started: Option<Duration>,
    numbers: Vec<Number>,
    logged: Option<Logged>,
    /// The status of the guest's command, or 0 for a bare guest that has finished.
    status: Option<u64>,
    /// An error that the guest has reported.
    wrong: Option<String>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(work: &'a Work, way: Way) -> Self {
        // Quell is started with its machine.
        let started = (!way.is_peer()).then_some(Duration::ZERO);
        Self { work, way, started, numbers: Vec::new(), logged: None, status: None, wrong: None }
    }

    /// Handles a report that arrived `elapsed` after the machine's start. Stops as soon as the
    /// guest is done: neither it nor the kernel around it needs to be switched off.
    pub(crate) fn take(&mut self, report: &Value, elapsed: Duration) -> Flow {
        let event = report["event"].as_str().unwrap_or_default();
        let Some(started) = self.started else {
            if event == peer::STARTS {
                self.started = Some(elapsed);
            }
            return Flow::Continue;
        };
        if report["result"] == "fail" || matches!(event, "bail" | "damage") {
            self.wrong = Some(report["why"].as_str().map_or_else(|| report.to_string(), str::to_owned));
        }
        match self.work {
            Work::Linux(linux) => self.take_linux(linux, event, report, elapsed.saturating_sub(started)),
            Work::Probe { .. } => {
                if let (Some(case), Some(value)) = (report["case"].as_str(), number(&report["value"])) {
                    self.add(case.to_owned(), INSTRUCTIONS, value);
                }
                self.status = self.status.or((event == "done").then_some(0));
            }
            // Its numbers are in the plugin's file.
            Work::Removal => {}
            Work::Tlbcheck { .. } => {
                if let Some(measured) = Measured::read(report) {
                    self.add(format!("{} {}", measured.case, measured.side), CYCLES, measured.median);
                }
                self.status = self.status.or((event == "end").then_some(0));
            }
        }
        if self.status.is_some() || self.wrong.is_some() { Flow::Stop } else { Flow::Continue }
    }

    fn take_linux(&mut self, linux: &Linux, event: &str, report: &Value, since: Duration) {
        match event {
            "boot" => self.add(USERSPACE.to_owned(), SECONDS, since.as_secs_f64()),
            "flushes" => {
                let says = |what: &str| report[what].as_bool().unwrap_or(false);
                self.logged = Some(Logged { hyperv: says("hyperv"), kvm: says("kvm") });
            }
            "exit" => self.status = self.status.or(report["status"].as_u64()),
            _ => {}
        }
        for metric in linux.metrics.iter().filter(|metric| metric.is_in(event, report)) {
            if let Some(value) = report.pointer(metric.pointer).and_then(number) {
                self.add(metric.name.to_owned(), metric.unit, value * metric.factor);
            }
        }
    }

    fn add(&mut self, metric: String, unit: &'static str, value: f64) {
        self.numbers.push(Number { metric, unit, value });
    }

    /// Whether the guest has finished, whatever the result.
    pub(crate) const fn is_over(&self) -> bool {
        self.status.is_some() || self.wrong.is_some()
    }

    /// The numbers; or the error, if the guest finished with one.
    pub(crate) fn result(self) -> Result<Vec<Number>, String> {
        if let Some(wrong) = self.wrong {
            return Err(format!("the guest says: {wrong}"));
        }
        match self.status {
            Some(0) => {}
            Some(status) => return Err(format!("the guest's command ended with status {status}")),
            None => return Err("the guest did not come to its end".to_owned()),
        }
        if let Work::Linux(linux) = self.work {
            let expected = self.way.logged();
            let Some(logged) = self.logged else {
                return Err("the guest did not say how it flushes".to_owned());
            };
            if logged != expected {
                return Err(format!("the guest's log says {logged:?} of its flushes, not {expected:?}"));
            }
            let is_there = |name: &str| self.numbers.iter().any(|number| number.metric == name);
            let names = linux.metrics.iter().map(|metric| metric.name).chain([USERSPACE]);
            if let Some(missing) = names.into_iter().find(|name| !is_there(name)) {
                return Err(format!("the guest did not report '{missing}'"));
            }
        }
        if self.numbers.is_empty() {
            Err("the guest reported no numbers".to_owned())
        } else {
            Ok(self.numbers)
        }
    }
}

impl Metric {
    /// Whether the report contains the number.
    fn is_in(&self, event: &str, report: &Value) -> bool {
        self.event == event && self.of.is_none_or(|(field, value)| report[field] == value)
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases::CASES;
    use super::super::way::{HYPERCALL, KVM_HYPERV, KVM_IPI};
    use super::*;
    use serde_json::json;

    fn work(name: &str) -> &'static Work {
        &CASES.iter().find(|case| case.name == name).expect("is a case").work
    }

    fn seen(name: &str, way: Way, reports: &[Value]) -> Result<Vec<Number>, String> {
        let mut watch = Watch::new(work(name), way);
        for (index, report) in reports.iter().enumerate() {
            if watch.take(report, Duration::from_secs(index as u64)) == Flow::Stop {
                assert_eq!(index, reports.len() - 1, "it stops early");
            }
        }
        watch.result()
    }

    fn thrash(hyperv: bool) -> [Value; 4] {
        [
            json!({"event": "boot"}),
            json!({"event": "flushes", "hyperv": hyperv, "kvm": false}),
            json!({"event": "end", "real": 0.5, "sys": 1.5, "tlb_ipis": 0}),
            json!({"event": "exit", "status": 0}),
        ]
    }

    fn value(numbers: &[Number], metric: &str) -> f64 {
        numbers.iter().find(|number| number.metric == metric).expect("was measured").value
    }

    #[test]
    fn what_the_kernel_around_reports_is_not_the_guests() {
        let around = [json!({"event": "boot"}), json!({"event": peer::STARTS})];
        let numbers = seen("thrash-2:2", KVM_HYPERV, &[&around[..], &thrash(true)].concat());
        let numbers = numbers.expect("is measured");
        assert!(
            (value(&numbers, USERSPACE) - 1.0).abs() < 1e-9,
            "from the inner machine's start: {numbers:?}"
        );
        assert!((value(&numbers, "real") - 0.5).abs() < 1e-9, "{numbers:?}");
        let dead = [json!({"event": "boot"}), json!({"event": "exit", "status": 1})];
        let mut watch = Watch::new(work("boot"), KVM_HYPERV);
        assert!(dead.iter().all(|report| watch.take(report, Duration::ZERO) == Flow::Continue));
        assert!(!watch.is_over(), "no guest was started");
    }

    #[test]
    fn a_guest_that_flushes_in_another_way_is_not_measured() {
        assert!(seen("thrash-2:2", HYPERCALL, &thrash(true)).is_ok());
        let around = [json!({"event": peer::STARTS})];
        let error =
            seen("thrash-2:2", KVM_IPI, &[&around[..], &thrash(true)].concat()).expect_err("is refused");
        assert!(error.contains("hyperv: true"), "{error}");
        assert!(seen("thrash-2:2", HYPERCALL, &thrash(false)).is_err());
    }

    #[test]
    fn what_is_missing_or_wrong_is_said() {
        let [boot, flushes, end, exit] = thrash(true);
        let error = |reports: &[Value]| seen("thrash-2:2", HYPERCALL, reports).expect_err("is refused");
        assert!(error(&[boot.clone(), flushes.clone(), exit]).contains("'real'"));
        let failed = json!({"event": "exit", "status": 3});
        assert!(error(&[boot.clone(), flushes, end.clone(), failed]).contains("status 3"));
        assert!(error(&[boot, end]).contains("come to its end"));
        assert!(error(&[json!({"test": "exits", "result": "fail", "why": "no APIC"})]).contains("no APIC"));
    }

    #[test]
    fn bare_guests_are_done_by_their_own_word() {
        let lines =
            [json!({"case": "cpuid", "metric": "instructions", "value": 383}), json!({"event": "done"})];
        let numbers = seen("exits", HYPERCALL, &lines).expect("is measured");
        assert_eq!((numbers.len(), numbers[0].unit), (1, "instructions"));
        assert!(seen("exits", HYPERCALL, &lines[1..]).is_err(), "nothing was counted");
    }
}
