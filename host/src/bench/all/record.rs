//! The file of `quell bench all`: every run as it was measured, and the results computed from them.
//! It is written after each run, and read again to continue.

use super::cases::{CASES, Case};
pub(crate) use super::machine::Setup;
use super::machine::Trial;
use super::pairs::{self, Ratio};
use super::way::FlushWay;
use crate::bench::counts;
use crate::prelude::*;
use crate::results::{Facts, Row};
use std::borrow::Cow;

const BENCH: &str = "all";
/// The facts about a machine that its times depend on.
const MACHINE_KEYS: [&str; 2] = ["cpu", "cpus"];

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) case: String,
    pub(crate) subject: Subject,
    pub(crate) way: String,
    /// Counted from 1. Runs of one round are compared with each other.
    pub(crate) round: u32,
    /// When it ended (RFC 3339).
    pub(crate) at: String,
    /// Its duration in seconds, including machines that died.
    pub(crate) wall: f64,
    pub(crate) deaths: Vec<String>,
    /// Empty if it failed.
    pub(crate) values: Vec<Number>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Number {
    pub(crate) metric: String,
    pub(crate) unit: Cow<'static, str>,
    pub(crate) value: f64,
}

/// Whether values may have this unit.
pub(super) fn is_unit(unit: &str) -> bool {
    let units =
        "s|ms|us|ns|count|instructions|cycles|per second|per call|per round|per deletion|per transfer|ratio";
    units.split('|').any(|known| known == unit)
}

/// A metric of a part of a case.
pub(crate) fn named(part: &str, metric: &str) -> String {
    format!("{part}: {metric}")
}

impl Number {
    pub(crate) fn of(part: &str, metric: &str, unit: &'static str, value: f64) -> Self {
        Self::new(&named(part, metric), unit, value)
    }

    pub(crate) fn new(metric: &str, unit: &'static str, value: f64) -> Self {
        Self { metric: metric.to_owned(), unit: unit.into(), value }
    }
}

impl Run {
    pub(crate) fn new(case: &Case, way: FlushWay, round: u32, at: String, trial: Trial) -> Self {
        let numbers = trial.numbers;
        let (values, failure) = numbers.map_or_else(|why| (Vec::new(), Some(why)), |values| (values, None));
        Self {
            case: case.name.to_owned(),
            subject: way.subject(),
            way: way.flushes().to_owned(),
            round,
            at,
            wall: trial.wall.as_secs_f64(),
            deaths: trial.deaths,
            values,
            failure,
        }
    }

    pub(crate) fn is_of(&self, case: &Case, way: FlushWay) -> bool {
        self.case == case.name && way.is(self.subject, &self.way)
    }

    pub(crate) fn value(&self, metric: &str) -> Option<&Number> {
        self.values.iter().find(|value| value.metric == metric)
    }
}

/// The settings that affect the numbers, apart from versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// Rounds of all cases whose numbers vary.
    pub(crate) runs: u32,
    /// Rounds of each of thrash's threads.
    pub(crate) rounds: u32,
}

/// The measurements, and how they were made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    bench: Cow<'static, str>,
    machine: Facts,
    pub(crate) versions: Facts,
    pub(crate) settings: Settings,
    pub(crate) setups: Vec<Setup>,
    pub(crate) runs: Vec<Run>,
}

/// The record with what follows from it.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    record: &'a Record,
    /// The number of machines without Quell that died or hung.
    deaths: usize,
    rows: Vec<Row>,
    ratios: Vec<Ratio>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    limits: Vec<Limit>,
}

impl Record {
    pub(crate) fn new(machine: Facts, versions: Facts, settings: Settings) -> Self {
        Self { bench: BENCH.into(), machine, versions, settings, setups: Vec::new(), runs: Vec::new() }
    }

    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let record: Self = serde_json::from_str(&text).with_context(|| {
            format!("{} has no results of `bench all`; name another file", path.display())
        })?;
        ensure!(record.bench == BENCH, "{} has results of '{}'", path.display(), record.bench);
        let mut units = record.runs.iter().flat_map(|run| &run.values).map(|value| &*value.unit);
        let unknown = units.find(|unit| !is_unit(unit));
        ensure!(unknown.is_none(), "{}: there is no unit '{}'", path.display(), unknown.unwrap_or_default());
        Ok(record)
    }

    /// The reasons why the numbers of `kept` cannot be compared with new ones, one per line.
    pub(crate) fn differences(&self, kept: &Self) -> Vec<String> {
        let keys: BTreeSet<_> = self.versions.keys().chain(kept.versions.keys()).collect();
        let versions = keys.into_iter().map(|key| (&**key, self.versions.get(key), kept.versions.get(key)));
        let machine = MACHINE_KEYS.map(|key| (key, self.machine.get(key), kept.machine.get(key)));
        let text = |fact: Option<&String>| fact.map_or("unknown", String::as_str).to_owned();
        let facts = versions.chain(machine).filter(|(_, now, before)| now != before);
        let mut found: Vec<_> = facts
            .map(|(key, now, before)| format!("{key} was '{}' and is '{}'", text(before), text(now)))
            .collect();
        for setup in &self.setups {
            let Setup { case, subject, way, .. } = setup;
            let mut before = kept.setups.iter();
            let before = before.find(|it| (&it.case, it.subject, &it.way) == (case, *subject, way));
            if before.is_some_and(|before| before != setup) {
                let who = subject.name();
                found.push(format!("{case} on {who}, {way}, has another machine, command line or command"));
            }
        }
        let (now, before) = (self.settings.rounds, kept.settings.rounds);
        if now != before {
            found.push(format!("thrash's threads made {before} rounds each, and are to make {now}"));
        }
        found
    }

    /// The ways in which something was run, or was to be run.
    pub(crate) fn ways(&self) -> Vec<FlushWay> {
        let all = CASES.iter().flat_map(|case| case.ways.iter().map(move |way| (case, *way)));
        all.filter(|(case, way)| {
            self.setups.iter().any(|setup| setup.case == case.name && way.is(setup.subject, &setup.way))
        })
        .map(|(_, way)| way)
        .collect()
    }

    pub(crate) fn has(&self, case: &Case, way: FlushWay, round: u32) -> bool {
        self.runs.iter().any(|run| run.is_of(case, way) && run.round == round && run.failure.is_none())
    }

    /// Adds a run, in place of one that failed. The deaths of the failed run remain counted.
    pub(crate) fn add(&mut self, mut run: Run) {
        let is_same = |other: &Run| {
            (&other.case, other.subject, &other.way, other.round)
                == (&run.case, run.subject, &run.way, run.round)
        };
        if let Some(index) = self.runs.iter().position(is_same) {
            let failed = self.runs.remove(index);
            run.deaths.splice(0..0, failed.deaths);
            run.wall += failed.wall;
        }
        self.runs.push(run);
    }

    pub(crate) fn deaths(&self) -> usize {
        self.runs.iter().map(|run| run.deaths.len()).sum()
    }

    pub(crate) fn ratios(&self, cases: &[&'static Case], peer: Subject) -> Vec<Ratio> {
        let compared = cases.iter().filter(|case| case.lacks(peer).is_none());
        compared.flat_map(|case| pairs::ratios(case, peer, &self.runs)).collect()
    }

    /// The budgets of these cases, as far as Quell has run them.
    pub(crate) fn limits(&self, cases: &[&'static Case]) -> Vec<Limit> {
        let ran = |case: &&&'static Case| self.runs.iter().any(|run| run.is_of(case, case.ways[0]));
        let limits = cases.iter().filter(ran).flat_map(|case| {
            counts::budgets_of(case, &|way, metric| {
                pairs::spread(&pairs::series(case, way, metric, &self.runs))
            })
        });
        limits.collect()
    }

    /// The summary of the runs of these cases, in the format of all benchmarks; or as in tables, in
    /// which the part of a metric before a colon belongs to the name of the case.
    pub(super) fn rows(&self, cases: &[&Case], is_shown: bool) -> Vec<Row> {
        let mut samples = Samples::default();
        for (case, way) in cases.iter().flat_map(|case| case.ways.iter().map(move |way| (case, *way))) {
            let name = format!("{}-{}", case.name, way.flushes());
            for run in self.runs.iter().filter(|run| run.is_of(case, way)) {
                for value in run.values.iter().filter(|it| !is_shown || case.work.shows(&it.metric)) {
                    let parts = value.metric.split_once(": ").filter(|_| is_shown);
                    let part =
                        parts.map_or_else(|| name.clone(), |(part, _)| format!("{}: {part}", case.name));
                    let metric = parts.map_or(&*value.metric, |(_, metric)| metric);
                    samples.add(&part, run.subject, metric, value.unit.clone(), value.value);
                }
            }
        }
        samples.rows().to_vec()
    }

    /// Replaces the file. Compares all cases that a peer has run.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let ratios = [Subject::Kvm, Subject::Xen].into_iter().flat_map(|peer| {
            let ran = |case: &&Case| self.runs.iter().any(|run| run.case == case.name && run.subject == peer);
            self.ratios(&CASES.iter().filter(ran).collect::<Vec<_>>(), peer)
        });
        let document = Document {
            record: self,
            deaths: self.deaths(),
            rows: self.rows(&CASES.iter().collect::<Vec<_>>(), false),
            ratios: ratios.collect(),
            limits: self.limits(&CASES.iter().collect::<Vec<_>>()),
        };
        results::replace(path, &document)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::way::{FlushWay, HYPERCALL, KVM_HYPERV, KVM_NEWER, QUELL_ON_ARM};
    use super::*;

    pub(crate) fn run(case: &Case, way: FlushWay, round: u32, number: Option<(&str, f64)>) -> Run {
        let number = number.map(|(metric, value)| vec![Number::new(metric, "s", value)]);
        let (numbers, wall) = (number.ok_or_else(|| "it failed".to_owned()), Duration::from_secs(2));
        Run::new(case, way, round, "then".to_owned(), Trial { numbers, deaths: Vec::new(), wall })
    }

    fn record() -> Record {
        let facts = |facts: &[(&str, &str)]| {
            facts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let versions = facts(&[("commit", "abc"), ("qemu", "7.2")]);
        Record::new(facts(&[("cpu", "x"), ("cpus", "2")]), versions, Settings { runs: 5, rounds: 100 })
    }

    #[test]
    fn what_was_written_is_read_again_and_has_the_documented_shape() {
        let directory = tempfile::tempdir().expect("makes");
        let path = directory.path().join("out.json");
        let mut record = record();
        record.add(run(&CASES[0], HYPERCALL, 1, Some(("userspace", 1.5))));
        record.add(run(&CASES[0], KVM_HYPERV, 1, Some(("userspace", 6.0))));
        // A number whose last bit a JSON parser may get wrong.
        record.add(run(&CASES[0], HYPERCALL, 2, Some(("userspace", 31.245270191439438))));
        record.write(&path).expect("writes");
        assert_eq!(Record::read(&path).expect("reads"), record);
        let value: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(value["rows"][0]["case"], "boot-hypercall");
        assert_eq!((&value["rows"][1]["subject"], &value["deaths"]), (&"kvm".into(), &0.into()));
        assert_eq!(
            (&value["ratios"][0]["ratio"]["median"], &value["ratios"][0]["verdict"]),
            (&0.25.into(), &"met".into())
        );
    }

    #[test]
    fn results_of_other_versions_are_not_kept_and_it_is_said_why() {
        let kept = record();
        assert!(record().differences(&kept).is_empty());
        let mut now = record();
        now.versions.insert("qemu".into(), "10.0".into());
        now.versions.insert("cargo".into(), "1".into());
        now.settings = Settings { runs: 9, rounds: 50 };
        let found = now.differences(&kept);
        assert_eq!(found.len(), 3, "more runs are no difference: {found:?}");
        assert!(found.contains(&"qemu was '7.2' and is '10.0'".to_owned()), "{found:?}");
        let setup = serde_json::json!({
            "case": "rom", "subject": "kvm", "way": "hyperv", "machine": "3 CPUs", "guest": "8 vCPUs", "cmdline": "",
        });
        let mut kept = record();
        kept.setups = vec![serde_json::from_value(setup.clone()).expect("is one")];
        assert!(record().differences(&kept).is_empty(), "what is not run now");
        let mut now = kept.clone();
        assert!(now.differences(&kept).is_empty());
        let mut other = setup;
        other["guest"] = "4 vCPUs".into();
        now.setups = vec![serde_json::from_value(other).expect("is one")];
        assert!(now.differences(&kept)[0].contains("rom on kvm, hyperv"), "{:?}", now.differences(&kept));
        let mut elsewhere = record();
        elsewhere.machine.insert("cpus".into(), "64".into());
        assert_eq!(elsewhere.differences(&record()), ["cpus was '2' and is '64'"]);
    }

    #[test]
    fn ways_are_known_from_how_machines_are_made() {
        let setup = |case, subject, way| {
            serde_json::json!({
                "case": case, "subject": subject, "way": way, "machine": "", "guest": "", "cmdline": "",
            })
        };
        let setups = [
            setup("arm-boot", "quell", "own"),
            setup("arm-slot-1G", "kvm", "newer-kernel"),
            setup("gone", "kvm", "hyperv"),
        ];
        let mut record = record();
        record.setups = setups.map(|setup| serde_json::from_value(setup).expect("is one")).to_vec();
        assert_eq!(record.ways(), [QUELL_ON_ARM, KVM_NEWER]);
    }

    #[test]
    fn a_run_that_failed_is_made_again_and_its_deaths_stay_counted() {
        let (mut record, case) = (record(), &CASES[0]);
        let mut failed = run(case, KVM_HYPERV, 2, None);
        failed.deaths = vec!["it hung".into(), "it hung".into(), "it hung".into()];
        record.add(failed);
        assert!(!record.has(case, KVM_HYPERV, 2));
        let mut second = run(case, KVM_HYPERV, 2, Some(("userspace", 1.0)));
        second.deaths = vec!["it died".into()];
        record.add(second);
        assert!(record.has(case, KVM_HYPERV, 2) && !record.has(case, KVM_HYPERV, 1));
        assert_eq!((record.runs.len(), record.deaths()), (1, 4));
        assert!((record.runs[0].wall - 4.0).abs() < 1e-9);
    }

    #[test]
    fn budgets_are_those_of_the_benchmark_alone() {
        let (mut record, cases) = (record(), CASES.iter().collect::<Vec<_>>());
        assert!(record.limits(&cases).is_empty(), "nothing was run");
        for (case, metric) in [("exits", "cpuid"), ("flush", "space-idle-64"), ("boot", "userspace")] {
            let case = CASES.iter().find(|other| other.name == case).expect("is a case");
            record.add(run(case, HYPERCALL, 1, Some((metric, 390.0))));
        }
        let limits = record.limits(&cases);
        let met: Vec<_> = limits.iter().filter(|limit| limit.is_met()).map(|limit| &*limit.label).collect();
        assert_eq!((limits.len(), &met[..]), (9, &["CPUID", "… of 64"][..]), "{limits:?}");
    }

    #[test]
    fn files_of_other_benchmarks_are_refused() {
        let directory = tempfile::tempdir().expect("makes");
        let path = directory.path().join("other.json");
        let error = |text: &str| {
            fs::write(&path, text).expect("writes");
            format!("{:#}", Record::read(&path).expect_err("is refused"))
        };
        assert!(error("{\"bench\": \"boot\", \"rows\": []}").contains("no results of `bench all`"));
        assert!(error("not JSON").contains("no results of `bench all`"));
        let mut record = record();
        record.add(run(&CASES[0], HYPERCALL, 1, Some(("userspace", 1.5))));
        record.runs[0].values[0].unit = "hours".into();
        assert!(error(&serde_json::to_string(&record).expect("is JSON")).contains("no unit 'hours'"));
    }
}
