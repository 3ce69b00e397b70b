//! Measured values and their common JSON format; docs/json.md describes it.

use crate::guest::cache::Versions;
use crate::machine::emulator;
use crate::prelude::*;
use clap::ValueEnum;
use std::borrow::Cow;

/// What the same guest runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Subject {
    /// Quell
    #[default]
    Quell,
    /// The emulated machine itself
    Bare,
    /// Linux KVM in the same machine: Debian's kernel, and this system's QEMU, in an initial RAM
    /// disk
    Kvm,
    /// Xen in the same machine, in a domain: Debian's Xen, with its tools in an initial RAM disk
    Xen,
}

impl Subject {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Quell => "quell",
            Self::Bare => "bare",
            Self::Kvm => "kvm",
            Self::Xen => "xen",
        }
    }
}

/// A ratio with 2 decimals, or with more if there are zeros before its first two digits.
pub(crate) fn significant(ratio: f64) -> String {
    const MAX: usize = 9;
    let decimals = (2..MAX).find(|decimals| ratio >= 0.1_f64.powi(*decimals as i32 - 1)).unwrap_or(MAX);
    format!("{ratio:.decimals$}")
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of at least one number; the median of an even count is the mean of the middle two.
    pub(crate) fn of(numbers: &[f64]) -> Option<Self> {
        let mut sorted = numbers.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let median = f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Self { median, min, max })
    }

    /// Whether ratios with this spread differ from 1 by less than they differ among themselves.
    /// Compares logarithms, because half and twice are equally far from 1.
    pub(crate) fn is_equal(self) -> bool {
        self.min < self.max && self.median.ln().abs() < (self.max / self.min).ln()
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
pub(crate) const fn float(count: u64) -> f64 {
    count as f64
}

/// The number in a report: finite and not negative.
pub(crate) fn number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| number.is_finite() && *number >= 0.0)
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) case: String,
    pub(crate) subject: Subject,
    pub(crate) metric: String,
    /// The unit, as listed in docs/json.md.
    pub(crate) unit: Cow<'static, str>,
    #[serde(flatten)]
    pub(crate) spread: Spread,
    pub(crate) runs: usize,
    #[serde(skip)]
    values: Vec<f64>,
}

impl Row {
    /// Whose it is: its case, and its subject if that is not Quell.
    pub(crate) fn of(&self) -> String {
        match self.subject {
            Subject::Quell => self.case.clone(),
            other => format!("{} {}", other.name(), self.case),
        }
    }
}

/// Measured values, summarised into rows in the order of their first appearance.
#[derive(Default)]
pub(crate) struct Samples {
    rows: Vec<Row>,
}

impl Samples {
    pub(crate) fn add(
        &mut self,
        case: &str,
        subject: Subject,
        metric: &str,
        unit: impl Into<Cow<'static, str>>,
        value: f64,
    ) {
        let place = self.place(case, subject, metric).unwrap_or_else(|| {
            let (case, metric, unit) = (case.to_owned(), metric.to_owned(), unit.into());
            let spread = Spread { median: value, min: value, max: value };
            self.rows.push(Row { case, subject, metric, unit, spread, runs: 0, values: Vec::new() });
            self.rows.len() - 1
        });
        let row = &mut self.rows[place];
        row.values.push(value);
        (row.spread, row.runs) = (Spread::of(&row.values).unwrap_or(row.spread), row.values.len());
    }

    pub(crate) fn add_count(&mut self, case: &str, subject: Subject, metric: &str, value: u64) {
        self.add(case, subject, metric, "count", float(value));
    }

    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    fn place(&self, case: &str, subject: Subject, metric: &str) -> Option<usize> {
        self.rows.iter().position(|row| (&*row.case, row.subject, &*row.metric) == (case, subject, metric))
    }

    pub(crate) fn row(&self, case: &str, subject: Subject, metric: &str) -> Option<&Row> {
        Some(&self.rows[self.place(case, subject, metric)?])
    }

    /// The median of a case, subject and metric; NaN if it was not measured.
    pub(crate) fn median(&self, case: &str, subject: Subject, metric: &str) -> f64 {
        self.row(case, subject, metric).map_or(f64::NAN, |row| row.spread.median)
    }

    /// The same for Quell.
    pub(crate) fn of_quell(&self, case: &str, metric: &str) -> f64 {
        self.median(case, Subject::Quell, metric)
    }
}

pub(crate) type Facts = BTreeMap<String, String>;

/// A file of results that may be written several times.
#[derive(Serialize)]
pub(crate) struct Writer {
    #[serde(skip)]
    path: PathBuf,
    bench: &'static str,
    machine: Facts,
    versions: Facts,
}

#[derive(Serialize)]
struct Document<'a, R> {
    #[serde(flatten)]
    head: &'a Writer,
    rows: &'a [R],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    limits: &'a [Limit],
}

impl Writer {
    /// Of benchmark `bench`; `guest` has the packages of its Linux guest.
    pub(crate) fn new(path: PathBuf, bench: &'static str, guest: Option<&Versions>) -> Self {
        Self { path, bench, machine: machine(), versions: versions(guest) }
    }

    /// Replaces the file by one with these rows. A concurrent reader sees the old or the new one as
    /// a whole, unless it is not an ordinary file.
    pub(crate) fn write<R: Serialize>(&self, rows: &[R], limits: &[Limit]) -> Result<()> {
        replace(&self.path, &Document { head: self, rows, limits })
    }
}

/// Replaces the file at `path` by one with this document.
pub(crate) fn replace(path: &Path, document: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string_pretty(document)?;
    text.push('\n');
    let is_special = fs::metadata(path).is_ok_and(|metadata| !metadata.is_file());
    let part = path.with_added_extension("part");
    let written = if is_special {
        fs::write(path, text)
    } else {
        fs::write(&part, text).and_then(|()| fs::rename(&part, path))
    };
    written.with_context(|| format!("cannot write {}", path.display()))
}

pub(crate) fn machine() -> Facts {
    let field = |file: &str, name: &str, separator: char| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let mut pairs = text.lines().filter_map(|line| line.split_once(separator));
        pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().trim_matches('"').to_owned())
    };
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let facts = [
        ("cpu", field("/proc/cpuinfo", "model name", ':')),
        ("cpus", Some(cpus.to_string())),
        ("memory", field("/proc/meminfo", "MemTotal", ':')),
        ("os", field("/etc/os-release", "PRETTY_NAME", '=')),
        ("kernel", Some(kernel.trim().to_owned())),
    ];
    facts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

pub(crate) fn versions(guest: Option<&Versions>) -> Facts {
    let first_line = |command: &mut Command| {
        let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().next().filter(|_| output.status.success()).map(str::to_owned)
    };
    let qemu = |arch: Arch| first_line(emulator::chosen().ok()?.command(arch).arg("--version"));
    let git = ["describe", "--always", "--dirty"];
    let facts = [
        ("quell", Some(env!("CARGO_PKG_VERSION").to_owned())),
        ("commit", first_line(Command::new("git").args(git).current_dir(workspace::root()))),
        ("qemu", qemu(Arch::X86_64)),
        ("qemu_aarch64", qemu(Arch::Aarch64)),
        ("cargo", first_line(workspace::cargo().arg("--version"))),
        ("guest_kernel", guest.map(|guest| guest.kernel.clone())),
        ("guest_busybox", guest.map(|guest| guest.busybox.clone())),
    ];
    facts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_order_and_have_medians() {
        let mut samples = Samples::default();
        for value in [3.0, 1.0, 2.0] {
            samples.add("b", Subject::Quell, "real", "s", value);
            samples.add_count("a", Subject::Bare, "exits", 4);
        }
        samples.add("b", Subject::Quell, "real", "s", 10.0);
        let rows = samples.rows();
        assert_eq!(rows.iter().map(|row| row.case.as_str()).collect::<Vec<_>>(), ["b", "a"]);
        assert!((rows[0].spread.median - 2.5).abs() < 1e-9, "{rows:?}");
        assert!(rows[0].spread.min < 1.5 && rows[0].spread.max > 9.5 && rows[0].runs == 4);
        assert_eq!(samples.row("b", Subject::Bare, "real"), None);
    }

    #[test]
    fn the_file_has_the_documented_shape() {
        let directory = tempfile::tempdir().expect("makes");
        let path = directory.path().join("out.json");
        let mut samples = Samples::default();
        samples.add("thrash-8:2-ipi", Subject::Quell, "real", "s", 1.5);
        Writer::new(path.clone(), "demo", None).write(samples.rows(), &[]).expect("writes");
        let text = fs::read_to_string(path).expect("reads");
        let value: serde_json::Value = serde_json::from_str(&text).expect("is JSON");
        assert_eq!(value["bench"], "demo");
        assert!(value["machine"]["cpus"].is_string() && value["versions"]["quell"].is_string());
        let expected = serde_json::json!({
            "case": "thrash-8:2-ipi", "subject": "quell", "metric": "real", "unit": "s",
            "median": 1.5, "min": 1.5, "max": 1.5, "runs": 1,
        });
        assert_eq!(value["rows"], serde_json::json!([expected]));
    }
}
