//! Collects the numbers from a machine's reports.

use super::cases::{CYCLES, INSTRUCTIONS, Metric, SECONDS, USERSPACE, Work};
use super::record::Number;
use super::way::{FlushWay, Logged};
use crate::bench::shootdown::Measured;
use crate::guest::peer;
use crate::machine::process::complaint;
use crate::prelude::*;
use crate::results::number;

pub(crate) struct Watch<'a> {
    work: &'a Work,
    way: FlushWay,
    /// The kernels around the guest that have not started theirs yet.
    around: usize,
    /// When the guest's machine was started, by the clock of the outer machine.
    started: Duration,
    numbers: Vec<Number>,
    logged: Option<Logged>,
    /// The status of the guest's command, or 0 for a bare guest that has finished.
    status: Option<u64>,
    wrong: Option<String>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(work: &'a Work, way: FlushWay) -> Self {
        // Quell is started with its machine.
        let (around, started) = (way.starts(), Duration::ZERO);
        Self { work, way, around, started, numbers: Vec::new(), logged: None, status: None, wrong: None }
    }

    /// Handles a report that arrived `elapsed` after the machine's start. Stops as soon as the
    /// guest is done: neither it nor the kernel around it needs to be switched off.
    pub(crate) fn take(&mut self, report: &Value, elapsed: Duration) -> Flow {
        let event = report["event"].as_str().unwrap_or_default();
        if self.around != 0 {
            if event == peer::STARTS {
                (self.around, self.started) = (self.around - 1, elapsed);
            }
            return Flow::Continue;
        }
        self.wrong = self.wrong.take().or_else(|| complaint(report));
        match self.work {
            Work::Linux(_) => self.take_linux(event, report, elapsed.saturating_sub(self.started)),
            Work::Slots(_) if self.way.is_peer() => self.take_command(event, report),
            Work::Probe { .. } | Work::Slots(_) => {
                if let (Some(case), Some(value)) = (report["case"].as_str(), number(&report["value"])) {
                    // The guest takes them by its clock.
                    let is_own = matches!(self.way.platform(), Platform::Kvm(_))
                        || matches!(self.way, FlushWay::Inner(_, Clock::Wall));
                    self.add(case, if is_own { CYCLES } else { INSTRUCTIONS }, value);
                }
                self.status = self.status.or((event == "done").then_some(0));
            }
            // Their numbers are taken elsewhere.
            Work::Own(_) => {}
            Work::Tlbcheck(_) => {
                if let Some(measured) = Measured::read(report) {
                    measured.numbers().iter().for_each(|(metric, value)| self.add(metric, CYCLES, *value));
                }
                self.status = self.status.or((event == "end").then_some(0));
            }
        }
        if self.status.is_some() || self.wrong.is_some() { Flow::Stop } else { Flow::Continue }
    }

    pub(crate) fn fail(&mut self, why: String) {
        self.wrong = Some(why);
    }

    fn take_linux(&mut self, event: &str, report: &Value, since: Duration) {
        match event {
            "boot" => self.add(USERSPACE, SECONDS, since.as_secs_f64()),
            "flushes" => {
                let says = |what: &str| report[what].as_bool().unwrap_or(false);
                self.logged = Some(Logged { hyperv: says("hyperv"), own: says("own") });
            }
            _ => {}
        }
        self.take_command(event, report);
    }

    fn take_command(&mut self, event: &str, report: &Value) {
        if event == "exit" {
            self.status = self.status.or(report["status"].as_u64());
        }
        let is_in = |metric: &&Metric| {
            metric.event == event && metric.of.is_none_or(|(field, value)| report[field] == value)
        };
        for metric in self.work.metrics().iter().filter(is_in) {
            if let Some(value) = report.pointer(metric.pointer).and_then(number) {
                self.add(metric.name, metric.unit, value * metric.factor);
            }
        }
    }

    fn add(&mut self, metric: &str, unit: &'static str, value: f64) {
        self.numbers.push(Number::new(metric, unit, value));
    }

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
        let is_there = |name: &str| self.numbers.iter().any(|number| number.metric == name);
        let mut names: Vec<_> = self.work.metrics().iter().map(|metric| metric.name).collect();
        if let Work::Linux(_) = self.work {
            let expected = self.way.logged();
            let Some(logged) = self.logged else {
                return Err("the guest did not say how it flushes".to_owned());
            };
            if logged != expected {
                return Err(format!("the guest's log says {logged:?} of its flushes, not {expected:?}"));
            }
            names.push(USERSPACE);
        }
        if let Some(missing) = names.into_iter().find(|name| !is_there(name)) {
            return Err(format!("the guest did not report '{missing}'"));
        }
        if self.numbers.is_empty() {
            Err("the guest reported no numbers".to_owned())
        } else {
            Ok(self.numbers)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases::CASES;
    use super::super::way::{HYPERCALL, INNER, KVM_HYPERV, KVM_INNER, KVM_IPI};
    use super::*;

    fn work(name: &str) -> &'static Work {
        &CASES.iter().find(|case| case.name == name).expect("is a case").work
    }

    fn seen(name: &str, way: FlushWay, reports: &[Value]) -> Result<Vec<Number>, String> {
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
            json!({"event": "flushes", "hyperv": hyperv, "own": false}),
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
        assert!((value(&numbers, USERSPACE) - 1.0).abs() < 1e-9, "from the inner start: {numbers:?}");
        assert!((value(&numbers, "real") - 0.5).abs() < 1e-9, "{numbers:?}");
        let dead = [json!({"event": "boot"}), json!({"event": "exit", "status": 1})];
        let mut watch = Watch::new(work("boot"), KVM_HYPERV);
        assert!(dead.iter().all(|report| watch.take(report, Duration::ZERO) == Flow::Continue));
        assert!(!watch.is_over(), "no guest was started");
    }

    #[test]
    fn a_guests_guest_is_measured_from_the_last_start_around_it() {
        let starts = json!({"event": peer::STARTS});
        let line = |value: u64| json!({"case": "cpuid", "value": value});
        let lines = [line(1), starts.clone(), line(2), starts, line(3), json!({"event": "done"})];
        let numbers = seen("nested-exits", KVM_INNER, &lines).expect("is measured");
        assert_eq!((numbers.len(), &*numbers[0].unit), (1, CYCLES));
        assert!((value(&numbers, "cpuid") - 3.0).abs() < 1e-9, "{numbers:?}");
        assert!(seen("nested-exits", INNER, &lines[..5]).is_err(), "it did not end");
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
        assert_eq!((numbers.len(), &*numbers[0].unit), (1, "instructions"));
        assert!(seen("exits", HYPERCALL, &lines[1..]).is_err(), "nothing was counted");
    }
    #[test]
    fn slots_are_measured_by_the_monitor_or_by_the_bare_guest() {
        let round =
            json!({"event": "round", "delete.fault_in": 9e8, "delete.remove": 6e7, "delete.until_on": 7e7});
        let exit = |status: u64| json!({"event": "exit", "status": status});
        let starts = json!({"event": peer::STARTS});
        let numbers =
            seen("remove-1G", KVM_HYPERV, &[starts.clone(), round.clone(), exit(0)]).expect("is measured");
        assert!((value(&numbers, "stopped") - 7e7).abs() < 1e-9, "{numbers:?}");
        assert!(numbers.iter().all(|number| number.unit == INSTRUCTIONS));
        let error = |last| seen("remove-1G", KVM_HYPERV, &[starts.clone(), last]).expect_err("is refused");
        assert!(error(exit(3)).contains("status 3"));
        assert!(error(exit(0)).contains("'fault-in'"));

        let case = |name: &str| json!({"case": name, "metric": "instructions", "value": 5});
        let lines = ["fault-in", "stopped", "longest stop"].map(case);
        let done = json!({"event": "done"});
        let all = [&lines[..], std::slice::from_ref(&done)].concat();
        assert_eq!(seen("remove-1G", HYPERCALL, &all).expect("is measured").len(), 3);
        let error = seen("remove-1G", HYPERCALL, &[lines[0].clone(), done]).expect_err("is refused");
        assert!(error.contains("'stopped'"), "{error}");
    }

    #[test]
    fn a_request_that_was_refused_ends_the_run() {
        let mut watch = Watch::new(work("remove-1G"), HYPERCALL);
        watch.fail("Add: there is not so much memory".to_owned());
        assert!(watch.is_over() && watch.result().is_err_and(|why| why.contains("not so much memory")));
    }
}
