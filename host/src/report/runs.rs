//! The runs in the results of `bench all`: medians and spreads of each case and way.

use super::escape;
use super::plots::{self, Line, Scale};
use crate::bench::record::{Number, Run, Setup};
use crate::prelude::*;
use indicatif::HumanFloatCount;
use std::fmt::Write as _;

/// The metric of each case with a Linux guest: the time to its first process, in seconds.
const USERSPACE: &str = "userspace";

/// A hypervisor, and the way in which its guest flushes. Quell comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ShownWay {
    pub(super) subject: Subject,
    pub(super) flushes: String,
}

impl ShownWay {
    pub(super) fn new(subject: Subject, flushes: &str) -> Self {
        Self { subject, flushes: flushes.to_owned() }
    }

    fn of(run: &Run) -> Self {
        Self::new(run.subject, &run.way)
    }

    pub(super) fn title(&self) -> String {
        let subject = match self.subject {
            Subject::Quell => "Quell",
            Subject::Kvm => "KVM",
            Subject::Xen => "Xen",
            Subject::Bare => "bare",
        };
        format!("{subject} {}", self.flushes)
    }
}

/// The runs of a file, which it may lack, and how their machines are made.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Runs {
    #[serde(default)]
    pub(super) runs: Vec<Run>,
    #[serde(default)]
    setups: Vec<Setup>,
}

impl Runs {
    /// All numbers, by what `key` says of them.
    fn by<'r, K: Ord>(&'r self, key: impl Fn(&'r Run, &'r Number) -> Option<K>) -> BTreeMap<K, Vec<f64>> {
        let mut values = BTreeMap::<K, Vec<f64>>::new();
        for run in &self.runs {
            for number in &run.values {
                if let Some(key) = key(run, number) {
                    values.entry(key).or_default().push(number.value);
                }
            }
        }
        values
    }

    /// Small plots of these cases and metrics, by way. Counts of instructions are left out: they
    /// are the same each time, and their ratios say all.
    pub(super) fn workloads<'n>(&self, names: impl Iterator<Item = (&'n str, &'n str)>) -> Result<String> {
        let mut figures = String::new();
        let mut drawn = Vec::new();
        for name in names.filter(|name| name.0 != "boot") {
            if drawn.contains(&name) {
                continue;
            }
            drawn.push(name);
            let of = |run: &Run, number: &Number| (&*run.case, &*number.metric) == name;
            let all = self.by(|run, number| of(run, number).then(|| (ShownWay::of(run), &*number.unit)));
            let bars = all.iter().filter_map(|((way, _), values)| Some((way.clone(), Spread::of(values)?)));
            let bars: Vec<_> = bars.collect();
            let unit = all.keys().next().map_or("", |(_, unit)| unit);
            if bars.len() < 2 || unit == "instructions" {
                continue;
            }
            let (factor, unit) = best_unit(bars.iter().map(|bar| bar.1.max).fold(0.0, f64::max), unit);
            let scaled: Vec<_> = bars.into_iter().map(|(way, spread)| (way, times(spread, factor))).collect();
            let caption = escape(&format!("{}: {}, in {unit}", name.0, name.1));
            let plot = plots::ways(&scaled)?;
            writeln!(figures, "<figure><figcaption>{caption}</figcaption>{plot}</figure>")?;
        }
        Ok(section("workloads", "Medians of each way, with their spread over the runs.", &figures))
    }

    fn vcpus(&self, run: &Run) -> Option<u32> {
        let is_its = |it: &&Setup| (&it.case, it.subject, &it.way) == (&run.case, run.subject, &run.way);
        self.setups.iter().find(is_its)?.guest.split_once(" vCPUs")?.0.parse().ok()
    }

    /// The time to userspace against the number of vCPUs. Each case with a Linux guest measures it.
    pub(super) fn boots(&self) -> Result<String> {
        let values = self.by(|run, number| {
            if number.metric == USERSPACE { Some((ShownWay::of(run), self.vcpus(run)?)) } else { None }
        });
        let lines = lines(&values);
        if lines.is_empty() {
            return Ok(String::new());
        }
        let svg = plots::lines(&lines, Scale { x: "vCPUs, on 2 CPUs", y: "seconds" })?;
        Ok(section(
            "boots",
            "Time to the guest's first process against its number of vCPUs, with its spread over \
                             all runs of such guests.",
            &svg,
        ))
    }

    /// Metrics or cases whose names end with a size, against that size.
    pub(super) fn sizes(&self) -> Result<String> {
        let name = |run: &Run, metric: &str| match (sized(metric), sized(&run.case)) {
            (Some((metric, mib)), _) => Some((format!("{}: {metric}", run.case), mib)),
            (None, Some((case, mib))) => Some((format!("{case}: {metric}"), mib)),
            (None, None) => None,
        };
        let mut groups = BTreeMap::<(String, &str), BTreeMap<(ShownWay, u32), Vec<f64>>>::new();
        for ((name, unit, way, mib), values) in self.by(|run, Number { metric, unit, .. }| {
            let (name, mib) = name(run, metric).filter(|_| metric != USERSPACE)?;
            Some((name, &**unit, ShownWay::of(run), mib))
        }) {
            groups.entry((name, unit)).or_default().insert((way, mib), values);
        }
        let mut figures = String::new();
        for ((name, unit), values) in &groups {
            let lines = lines(values);
            if lines.is_empty() {
                continue;
            }
            let svg = plots::lines(&lines, Scale { x: "MiB", y: unit })?;
            writeln!(figures, "<figure><figcaption>{}</figcaption>{svg}</figure>", escape(name))?;
        }
        Ok(section("slots", "Cost against the size of the VM, with its spread over the runs.", &figures))
    }
}

/// A line for each way that has at least two values of x; each value must have a logarithm.
fn lines(values: &BTreeMap<(ShownWay, u32), Vec<f64>>) -> Vec<Line> {
    let mut lines = Vec::<Line>::new();
    for ((way, x), values) in values {
        let Some(spread) = Spread::of(values).filter(|spread| spread.min > 0.0) else { continue };
        let point = (f64::from(*x), spread);
        match lines.last_mut() {
            Some(line) if line.way == *way => line.points.push(point),
            _ => lines.push(Line { way: way.clone(), points: vec![point] }),
        }
    }
    lines.retain(|line| line.points.len() > 1);
    lines
}

fn section(id: &str, caption: &str, plots: &str) -> String {
    if plots.is_empty() {
        return String::new();
    }
    format!("<figure id=\"plot-{id}\"><div>{plots}</div><figcaption>{caption}</figcaption></figure>\n")
}

/// A name without the size at its end, and that size in MiB.
fn sized(name: &str) -> Option<(&str, u32)> {
    let (name, size) = name.rsplit_once('-')?;
    let (digits, factor) = match size.strip_suffix('M') {
        Some(digits) => (digits, 1),
        None => (size.strip_suffix('G')?, 1024),
    };
    Some((name, digits.parse::<u32>().ok()?.checked_mul(factor)?))
}

fn times(spread: Spread, factor: f64) -> Spread {
    Spread { median: spread.median * factor, min: spread.min * factor, max: spread.max * factor }
}

/// The unit in which an amount has few digits, and the factor to convert to it.
pub(super) fn best_unit(value: f64, unit: &str) -> (f64, &str) {
    const TIMES: [(&str, f64); 4] = [("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)];
    let Some((_, seconds)) = TIMES.iter().find(|(name, _)| *name == unit) else { return (1.0, unit) };
    let fits = |(_, size): &&(&str, f64)| value * seconds >= *size;
    let (name, size) = TIMES.iter().find(fits).unwrap_or(&TIMES[3]);
    (seconds / size, if *name == "us" { "µs" } else { name })
}

/// A number with three significant digits at least, and with separators.
pub(super) fn short(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        _ => 3,
    };
    format!("{:.digits$}", HumanFloatCount(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(case: &str, (subject, way): (&str, &str), metric: &str, unit: &str, values: &[f64]) -> Vec<Value> {
        let run = |value| {
            json!({"case": case, "subject": subject, "way": way, "round": 1, "at": "", "wall": 1.0, "deaths": [],
            "values": [{"metric": metric, "unit": unit, "value": value}]})
        };
        values.iter().map(run).collect()
    }

    const QUELL: (&str, &str) = ("quell", "hypercall");
    const KVM: (&str, &str) = ("kvm", "hyperv");

    fn runs(lists: &[Vec<Value>], vcpus: &[(&str, u32)]) -> Runs {
        let setups = vcpus.iter().flat_map(|(case, vcpus)| {
            [QUELL, KVM].map(|(subject, way)| {
                json!({"case": case, "subject": subject, "way": way, "machine": "", "cmdline": "",
                "guest": format!("{vcpus} vCPUs, 512 MiB")})
            })
        });
        let setups = setups.collect::<Vec<_>>();
        Runs::deserialize(json!({"runs": lists.concat(), "setups": setups})).expect("reads")
    }

    #[test]
    fn each_workload_is_a_plot_of_its_ways() {
        let runs = runs(
            &[
                run("thrash-8:2", KVM, "real", "s", &[2.0, 3.0]),
                run("thrash-8:2", QUELL, "real", "s", &[0.3, 0.4, 0.5]),
                run("loops", QUELL, "mmap", "ns", &[53_000.0]),
            ],
            &[],
        );
        let names = [("thrash-8:2", "real"), ("thrash-8:2", "real"), ("loops", "mmap"), ("rom", "round")];
        let plots = runs.workloads(names.into_iter()).expect("draws");
        assert_eq!(plots.matches("<svg").count(), 1, "once, and not with one way: {plots}");
        assert_eq!(plots.matches("<rect").count(), 2);
        assert!(plots.contains("thrash-8:2: real, in s"), "{plots}");
        assert!(plots.find("var(--quell)") < plots.find("var(--kvm)"), "Quell's bar is above: {plots}");
    }

    #[test]
    fn boots_are_taken_from_all_linux_guests() {
        let lists = [
            run("thrash-2:2", QUELL, USERSPACE, "s", &[1.5]),
            run("boot", QUELL, USERSPACE, "s", &[1.7]),
            run("thrash-8:2", QUELL, USERSPACE, "s", &[2.5]),
            run("thrash-8:2", KVM, USERSPACE, "s", &[9.5]),
        ];
        let plot = runs(&lists, &[("thrash-2:2", 2), ("boot", 2), ("thrash-8:2", 8)]).boots().expect("draws");
        assert_eq!(plot.matches("<svg").count(), 1);
        assert!(
            plot.contains("Quell hypercall") && !plot.contains("KVM hyperv"),
            "one point is no line: {plot}"
        );
        assert!(runs(&lists, &[("thrash-8:2", 8)]).boots().expect("draws").is_empty());
    }

    #[test]
    fn sizes_are_read_from_the_ends_of_names() {
        assert_eq!(sized("delete-256M"), Some(("delete", 256)));
        assert_eq!(sized("a-b-2G"), Some(("a-b", 2048)));
        assert!(["thrash-8:2", "delete-4K", "-M", "1G", "x-9999999G"].iter().all(|s| sized(s).is_none()));
        let by_metric = [
            run("slots", QUELL, "delete-256M", "us", &[10.0]),
            run("slots", QUELL, "delete-1G", "us", &[20.0, 30.0]),
            run("slots", KVM, "delete-1G", "us", &[900.0]),
        ];
        let plot = runs(&by_metric, &[]).sizes().expect("draws");
        assert_eq!(plot.matches("<svg").count(), 1);
        assert!(plot.contains("slots: delete<") && plot.contains("MiB"), "{plot}");
        let by_case = [
            run("remove-1G", KVM, "round", "us", &[10.0]),
            run("remove-2G", KVM, "round", "us", &[20.0]),
            run("remove-2G", KVM, USERSPACE, "s", &[20.0]),
        ];
        assert!(runs(&by_case, &[]).sizes().expect("draws").contains("remove: round"));
        assert!(runs(&by_case[..1], &[]).sizes().expect("draws").is_empty(), "one size is no line");
    }

    #[test]
    fn numbers_are_short_and_in_a_fitting_unit() {
        let texts = [
            (3_825_312.0, "3,825,312"),
            (86.55, "86.5"),
            (0.5, "0.5"),
            (0.047, "0.047"),
            (-1234.0, "-1,234"),
            (0.0, "0"),
            (999.0, "999"),
            (1000.0, "1,000"),
            (1_234_567.0, "1,234,567"),
        ];
        for (value, text) in texts {
            assert_eq!(short(value), text);
        }
        for (value, unit, factor, best) in [
            (3.8e6, "ns", 1e-6, "ms"),
            (0.05, "s", 1e3, "ms"),
            (5.0, "us", 1.0, "µs"),
            (7.0, "cycles", 1.0, "cycles"),
        ] {
            let (found, name) = best_unit(value, unit);
            assert!((found / factor - 1.0).abs() < 1e-9 && name == best, "{value} {unit}: {found} {name}");
        }
    }
}
