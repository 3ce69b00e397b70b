//! The output of `quell bench all`: the progress, and the table at the end.

use super::Step;
use super::cases::Case;
use super::pairs::{Ratio, Verdict, series, spread};
use super::record::Run;
use crate::prelude::*;
use crate::results::{Row, significant};
use comfy_table::Table;
use indicatif::ProgressBar;

/// A progress bar on a terminal, a line for each run elsewhere.
pub(crate) struct Progress {
    bar: ProgressBar,
    total: usize,
}

impl Progress {
    pub(crate) fn new(total: usize) -> Self {
        Self { bar: steps::bar("{prefix:30} {bar:30} {pos}/{len}  {msg}", total as u64), total }
    }

    pub(crate) fn begin(&self, step: &Step, done: usize, remaining: Duration) {
        self.bar.set_position(done as u64);
        self.bar.set_prefix(format!("{} {}", step.case.name, step.way.title()));
        self.bar.set_message(format!("{} left", minutes(remaining)));
    }

    pub(crate) fn end(&self, step: &Step, run: &Run, done: usize, remaining: Duration) {
        let line = line(step, run);
        if self.bar.is_hidden() {
            eprintln!("[{done}/{}, {} left] {line}", self.total, minutes(remaining));
        } else {
            self.bar.println(line);
        }
    }
}

fn line(step: &Step, run: &Run) -> String {
    let first = step.case.comparisons.first().and_then(|comparison| run.value(comparison.metric));
    let result = match (&run.failure, first) {
        (Some(why), _) => format!("failed: {why}"),
        (None, Some(value)) => format!("{} {}", value.metric, number(value.value, &value.unit)),
        (None, None) => "done".to_owned(),
    };
    let deaths = match run.deaths.len() {
        0 => String::new(),
        count => format!(" ({count} died before: {})", run.deaths.join("; ")),
    };
    format!("{} {} {}: {result}{deaths}", step.case.name, step.way.title(), step.round)
}

fn minutes(duration: Duration) -> String {
    match duration.as_secs() {
        secs @ 0..=90 => format!("{secs} s"),
        secs => format!("{} min", secs.div_ceil(60)),
    }
}

/// A number with as many digits as are meaningful.
fn number(value: f64, unit: &str) -> String {
    match unit {
        "instructions" | "count" | "cycles" => format!("{value:.0}"),
        "" => significant(value),
        _ if value < 10.0 => format!("{value:.2} {unit}"),
        _ => format!("{value:.1} {unit}"),
    }
}

fn numbers(spread: Spread, unit: &str) -> String {
    let median = number(spread.median, unit);
    if spread.min < spread.max {
        format!("{median} ({}..{})", bare(spread.min), bare(spread.max))
    } else {
        median
    }
}

fn bare(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        _ => significant(value),
    }
}

/// What is compared with `peer`, and what is not, and why.
pub(crate) fn print_ratios(ratios: &[Ratio], peer: Subject, cases: &[&'static Case], runs: &[Run]) {
    let rows = ratios.iter().map(|ratio| {
        let unit = ratio.unit.as_deref().unwrap_or_default();
        let dash = || "–".to_owned();
        let case = cases.iter().find(|case| case.name == ratio.case);
        let peers = case.map_or_else(dash, |case| peers(case, ratio, unit, runs));
        [
            case.map_or_else(String::new, |case| label(case, ratio)),
            ratio.quell.map_or_else(dash, |quell| numbers(quell, unit)),
            peers,
            ratio.ratio.map_or_else(dash, |ratio| numbers(ratio, "")),
            ratio.target.map_or_else(String::new, |target| target.to_string()),
            word(ratio).to_owned(),
        ]
    });
    let lacking = cases.iter().filter_map(|case| Some((case.name, case.lacks(peer)?)));
    let lacking = lacking.map(|(name, why)| [name, "", why, "", "", "not there"].map(str::to_owned));
    println!("{}", table(["", "quell", peer.name(), "ratio", "at most", ""], rows.chain(lacking)));
}

fn label(case: &Case, ratio: &Ratio) -> String {
    let way = if case.ways.iter().filter(|way| way.subject() == Subject::Quell).count() > 1 {
        format!(", by {}", ratio.way)
    } else {
        String::new()
    };
    format!("{}: {}{way}", case.name, ratio.metric)
}

/// All the peer's ways that a comparison covers, a line each, the best one marked.
fn peers(case: &Case, ratio: &Ratio, unit: &str, runs: &[Run]) -> String {
    let of = case.comparisons.iter().filter(|c| c.metric == ratio.metric && c.quell.flushes() == ratio.way);
    let lines = of.flat_map(|comparison| comparison.of(ratio.peer)).map(|way| {
        let spread = spread(&series(case, way, ratio.metric, runs));
        let text = spread.map_or_else(|| "–".to_owned(), |spread| numbers(spread, unit));
        format!("{} {text}", way.flushes())
    });
    lines.collect::<Vec<_>>().join("\n")
}

const fn word(ratio: &Ratio) -> &'static str {
    match ratio.verdict {
        Verdict::Missed => "missed",
        Verdict::Unmeasured => "not measured",
        Verdict::Met if ratio.equal => "met, equal",
        Verdict::Met => "met",
        Verdict::Less => "less",
        Verdict::More => "more",
        Verdict::Equal => "equal",
    }
}

/// Tables of what was measured. Neighbouring cases with the same metrics share one, whose shorter
/// side is across.
pub(crate) fn tables(rows: &[Row]) -> Vec<Table> {
    let cases: Vec<_> = rows.chunk_by(|one, other| one.of() == other.of()).collect();
    let metrics = |rows: &[Row]| rows.iter().map(|row| row.metric.clone()).collect::<Vec<_>>();
    let groups = cases.chunk_by(|one, other| metrics(one) == metrics(other));
    let lines = groups.map(|group| {
        let names: Vec<_> = group.iter().map(|rows| rows[0].of()).collect();
        let cell = |row: &Row| numbers(row.spread, &row.unit);
        let metrics = metrics(group[0]);
        if metrics.len() > names.len() {
            let row = |(at, name): (usize, &String)| {
                [name.clone()].into_iter().chain(group.iter().map(|rows| cell(&rows[at]))).collect::<Vec<_>>()
            };
            table(headed(&names), metrics.iter().enumerate().map(row).collect::<Vec<_>>())
        } else {
            let row = |(name, rows): (&String, &&[Row])| {
                [name.clone()].into_iter().chain(rows.iter().map(cell)).collect::<Vec<_>>()
            };
            table(headed(&metrics), names.iter().zip(group).map(row).collect::<Vec<_>>())
        }
    });
    lines.collect()
}

fn headed(columns: &[String]) -> Vec<String> {
    std::iter::once(String::new()).chain(columns.iter().cloned()).collect()
}

pub(crate) fn print_failures(runs: &[Run]) {
    let ways: BTreeSet<_> = runs.iter().map(|run| (run.subject, &run.way)).collect();
    for (subject, way) in ways {
        let of_way = runs.iter().filter(|run| (run.subject, &run.way) == (subject, way));
        let (made, deaths) = of_way.fold((0, 0), |(made, deaths), run| (made + 1, deaths + run.deaths.len()));
        if deaths != 0 {
            let who = subject.name();
            println!("{who} {way}: {deaths} machines died or hung in {made} runs, which were repeated");
        }
    }
    for run in runs {
        if let Some(why) = &run.failure {
            let who = run.subject.name();
            println!("{} on {who}, {}, round {} failed: {why}", run.case, run.way, run.round);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases::CASES;
    use super::super::record::tests::run;
    use super::super::way::KVM_HYPERV;
    use super::*;

    #[test]
    fn deaths_and_failures_are_shown() {
        let step = Step { case: &CASES[0], way: KVM_HYPERV, round: 2 };
        let mut made = run(step.case, step.way, 2, Some(("userspace", 1.25)));
        assert_eq!(line(&step, &made), "boot kvm hyperv 2: userspace 1.25 s");
        made.deaths.push("it hung".into());
        assert!(line(&step, &made).ends_with("(1 died before: it hung)"));
        assert!(line(&step, &run(step.case, step.way, 2, None)).contains("failed: it failed"));
    }

    #[test]
    fn neighbours_with_the_same_metrics_share_a_table_with_the_shorter_side_across() {
        let mut samples = Samples::default();
        for case in ["a", "b"] {
            samples.add(case, Subject::Quell, "real", "s", 1.0);
        }
        for metric in ["x", "y"] {
            samples.add("c", Subject::Bare, metric, "count", 7.0);
        }
        let tables: Vec<_> = tables(samples.rows()).iter().map(|table| table.to_string()).collect();
        assert_eq!(tables.len(), 2, "{tables:?}");
        let words = |table: &str| {
            table.lines().nth(3).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        assert_eq!(
            tables.iter().map(|table| words(table)).collect::<Vec<_>>(),
            [Some("a 1.00 s".into()), Some("x 7".into())]
        );
        assert!(tables[1].lines().nth(1).is_some_and(|header| header.contains("bare c")), "{}", tables[1]);
    }

    #[test]
    fn numbers_have_their_spread() {
        let spread = Spread { median: 0.321, min: 0.3, max: 0.354 };
        assert_eq!(numbers(spread, "s"), "0.32 s (0.30..0.35)");
        assert_eq!(numbers(spread, ""), "0.32 (0.30..0.35)");
        assert_eq!(numbers(Spread { median: 383.0, min: 383.0, max: 383.0 }, "instructions"), "383");
        let ratio = |value| number(value, "");
        assert_eq!(
            [1.5, 0.1, 0.0987, 0.00627, 0.000_039].map(ratio),
            ["1.50", "0.10", "0.099", "0.0063", "0.000039"]
        );
        assert_eq!(ratio(0.0), "0.000000000", "no loop without an end");
        assert_eq!(minutes(Duration::from_secs(61)), "61 s");
        assert_eq!(minutes(Duration::from_secs(121)), "3 min");
    }
}
