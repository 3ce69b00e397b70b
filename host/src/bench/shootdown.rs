//! `quell bench shootdown`: tlbcheck's measurements of shootdowns, and the table of the work that
//! it follows.

use crate::check;
use crate::cli::ShootdownArgs;
use crate::prelude::*;
use std::thread::available_parallelism;

const CYCLES: &str = "cycles";
/// The modes of the table, the baseline first.
const MODES: [&str; 4] = ["ipi-serial", "ipi-concurrent", "ipi-inline", "ipi-async"];
/// CPUs, and the highest cost of the concurrent and the asynchronous mode relative to the serial
/// one: figures of the mail that proposed them (Linux, 2019), -14 % and -22 % on 2 CPUs, -10 % and
/// -18 % on 4.
const RATIOS_MAX: [(u32, f64, f64); 2] = [(2, 0.86, 0.78), (4, 0.90, 0.82)];

pub(super) fn shootdown(lab: &Lab<'_>, args: &ShootdownArgs, samples: &mut Samples) -> Result<Vec<Limit>> {
    for _ in 0..args.runs {
        run(lab, args, samples)?;
    }
    print(samples, args);
    let cores = available_parallelism().map_or(1, |cores| cores.get() as u32);
    Ok(limits(samples, args, cores))
}

fn run(lab: &Lab<'_>, args: &ShootdownArgs, samples: &mut Samples) -> Result<()> {
    let targets = if args.halted { "halt" } else { "spin" };
    let words = format!("bench json report=com2 rounds={} targets={targets}", args.samples);
    let (cpus, switches) = ((args.cpus, args.cpus), Switches::default());
    let spec = check::spec(Platform::X86_64, args.on, &words, cpus, switches, lab.directory())?;
    let outcome = lab.start(spec)?.run(|report, _| {
        if let Some(measured) = Measured::read(report) {
            eprintln!("{}: {:.0} cycles of the {}", measured.case(), measured.median, measured.side);
            measured.add_to(args.on.subject(), samples);
        }
        if let Some(why) = report["why"].as_str().filter(|_| report["event"] == "note") {
            eprintln!("{why}");
        }
        Ok(Flow::Continue)
    })?;
    check::ended(&outcome)
}

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

    fn add_to(&self, subject: Subject, samples: &mut Samples) {
        let Self { side, median, min, p90, p99, max, .. } = self;
        samples.add(&self.case(), subject, side, CYCLES, *median);
        for (name, value) in [("min", min), ("p90", p90), ("p99", p99), ("max", max)] {
            samples.add(&self.case(), subject, &format!("{side} {name}"), CYCLES, *value);
        }
    }
}

fn case(back_end: &str, processors: u64, ranges: &str) -> String {
    format!("{back_end}-{processors}:{ranges}")
}

fn median(samples: &Samples, args: &ShootdownArgs, mode: &str, processors: u32, ranges: &str) -> f64 {
    samples.median(&case(mode, processors.into(), ranges), args.on.subject(), "initiator")
}

fn print(samples: &Samples, args: &ShootdownArgs) {
    let counts = (0..).map(|power| 1 << power).take_while(|count| *count <= args.cpus);
    let rows = counts
        .flat_map(|processors| [("one page", "1"), ("everything", "all")].map(|what| (processors, what)));
    let rows = rows.map(|(processors, (what, ranges))| {
        let cells = MODES.map(|mode| format!("{:.0}", median(samples, args, mode, processors, ranges)));
        [vec![format!("{processors} CPUs, {what}")], cells.to_vec()].concat()
    });
    println!("{}", table(["cycles of the initiator", "serial", "concurrent", "inline", "async"], rows));
}

/// The targets. They apply to the machine itself, and to at most as many CPUs as there are `cores`
/// to emulate them: a target without a core at the moment answers only when it has one. Waking
/// targets that have halted dominates, so there are none for these.
fn limits(samples: &Samples, args: &ShootdownArgs, cores: u32) -> Vec<Limit> {
    let judged = RATIOS_MAX.into_iter().filter(|(processors, ..)| !args.halted && *processors <= args.cpus);
    let (judged, others): (Vec<_>, Vec<_>) = judged.partition(|(processors, ..)| *processors <= cores);
    for (processors, ..) in others {
        println!("{processors} CPUs: not judged, for this machine has {cores} cores");
    }
    let limits = judged.into_iter().flat_map(|(processors, concurrent_max, async_max)| {
        [(MODES[1], concurrent_max), (MODES[3], async_max)].map(|(mode, most)| {
            let of = |mode| median(samples, args, mode, processors, "1");
            let label = format!("{processors} CPUs, one page, {mode}, relative to serial");
            Limit::at_most(label, of(mode) / of(MODES[0]), most)
        })
    });
    limits.collect()
}

#[cfg(test)]
mod tests {
    use super::super::limits::all_met;
    use super::*;
    use crate::check::On;
    use crate::cli::Output;

    fn args(cpus: u32) -> ShootdownArgs {
        let output = Output { json: None, timeout: 60 };
        ShootdownArgs { on: On::Bare, cpus, halted: false, runs: 1, samples: 101, output }
    }

    fn add(samples: &mut Samples, mode: &str, processors: u64, median: u64) {
        let line = json!({
            "bench": "shootdown", "back_end": mode, "processors": processors, "ranges": 1, "side": "initiator",
            "unit": "cycles", "samples": 101, "min": 1, "median": median, "p90": 2, "p99": 3, "max": 4,
        });
        Measured::read(&line).expect("is a measurement").add_to(Subject::Bare, samples);
    }

    #[test]
    fn targets_are_missed_by_what_is_slower_or_was_not_measured() {
        let mut samples = Samples::default();
        let is_met = |samples: &Samples, cpus, cores| all_met(&limits(samples, &args(cpus), cores));
        assert!(!is_met(&samples, 2, 4));
        for (mode, median) in MODES.into_iter().zip([1000, 850, 800, 770]) {
            add(&mut samples, mode, 2, median);
        }
        assert!(is_met(&samples, 2, 4));
        assert!(!is_met(&samples, 4, 4), "4 CPUs were not measured");
        assert!(is_met(&samples, 4, 2), "nor can they be");
        let mut slow = Samples::default();
        for (mode, median) in MODES.into_iter().zip([1000, 850, 800, 790]) {
            add(&mut slow, mode, 2, median);
        }
        assert!(!is_met(&slow, 2, 4));
    }

    #[test]
    fn lines_of_other_kinds_are_no_measurements() {
        assert!(Measured::read(&json!({"row": "a", "result": "pass"})).is_none());
        assert!(Measured::read(&json!({"bench": "other", "back_end": "ipi"})).is_none());
    }
}
