//! Reads the JSON of `bench all`: ratios, and the medians of each way.

use super::escape;
use super::plots::{self, Line, Scale};
use super::runs::{Runs, ShownWay, best_unit, short};
use crate::prelude::*;
use crate::results::significant;
use std::fmt::Write as _;

/// One comparison, with at least one pair of runs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Ratio {
    pub(super) case: String,
    pub(super) metric: String,
    #[serde(default)]
    pub(super) unit: String,
    pub(super) way: String,
    pub(super) peer: Subject,
    #[serde(default)]
    pub(super) peer_way: String,
    pub(super) quell: Spread,
    pub(super) theirs: Spread,
    pub(super) ratio: Spread,
    /// It differs from 1 by less than the spread.
    #[serde(rename = "equal")]
    pub(super) is_equal: bool,
    pub(super) target: Option<f64>,
    pub(super) verdict: String,
}

impl Ratio {
    pub(super) fn name(&self) -> String {
        format!("{}: {}, {}", self.case, self.metric, self.way)
    }

    fn peers(&self) -> ShownWay {
        ShownWay::new(self.peer, &self.peer_way)
    }
}

#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) ratios: Vec<Ratio>,
    unmeasured: usize,
    pub(super) facts: Vec<(String, String)>,
    runs: Runs,
}

impl Results {
    pub(super) fn of(value: &Value) -> Result<Self> {
        ensure!(value["bench"] == "all", "these are no results of `quell bench all`");
        let ratios = value["ratios"].as_array().context("there are no ratios")?;
        let mut facts = Vec::new();
        for part in ["machine", "versions"] {
            for (name, fact) in value[part].as_object().into_iter().flatten() {
                facts.push((name.clone(), fact.as_str().unwrap_or_default().to_owned()));
            }
        }
        let (unmeasured, measured): (Vec<_>, Vec<_>) =
            ratios.iter().partition(|ratio| ratio["verdict"] == "unmeasured");
        let ratio = |it: &&Value| Ratio::deserialize(*it).with_context(|| format!("this is no ratio: {it}"));
        let ratios = measured.iter().map(ratio).collect::<Result<_>>()?;
        let runs = Runs::deserialize(value).context("these are no runs")?;
        Ok(Self { ratios, unmeasured: unmeasured.len(), facts, runs })
    }

    pub(super) fn section(&self) -> Result<String> {
        let mut out = "<section id=\"ratios\"><h2>Quell beside its peers</h2>\n".to_owned();
        out += "<p>Each ratio is Quell's time or count divided by that of the best of a peer's ways: less than 1 is \
                in Quell's favour. Runs alternate; a ratio is the median over pairs of runs.</p>\n";
        out += &self.table()?;
        if self.unmeasured != 0 {
            writeln!(out, "<p>Comparisons without a pair of runs so far: {}.</p>", self.unmeasured)?;
        }
        if !self.ratios.is_empty() {
            write!(out, "<figure id=\"plot-ratios\">{}", plots::ratios(&self.ratios)?)?;
            out += "<figcaption>Ratios with their spread over pairs of runs; ticks are targets.</figcaption></figure>\n";
        }
        out += &self.runs.workloads(self.ratios.iter().map(|ratio| (&*ratio.case, &*ratio.metric)))?;
        let flushes = self.flush_costs();
        if flushes.iter().any(|line| line.points.len() > 1) {
            let scale = Scale { x: "targets", y: "instructions" };
            write!(out, "<figure id=\"plot-flushes\">{}", plots::lines(&flushes, scale)?)?;
            out += "<figcaption>Instructions of a flush hypercall against the number of targets, none of which is \
                    running.</figcaption></figure>\n";
        }
        out += &self.runs.boots()?;
        out += &self.runs.sizes()?;
        out += "<details><summary>Versions</summary><dl>";
        for (name, fact) in &self.facts {
            write!(out, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(fact))?;
        }
        Ok(out + "</dl></details></section>\n")
    }

    fn table(&self) -> Result<String> {
        let mut out =
            "<table><thead><tr><th>case<th>Quell<th>peer<th>ratio<th>spread<th>at most<th></tr></thead>\
                       <tbody>\n"
                .to_owned();
        for ratio in &self.ratios {
            let target = ratio.target.map_or_else(String::new, |target| target.to_string());
            let [quell, theirs] =
                [ratio.quell, ratio.theirs].map(|side| escape(&amount(side.median, &ratio.unit)));
            writeln!(
                out,
                "<tr class=\"{verdict}\"><td>{}<td>{quell}<td>{theirs} ({})<td>{}<td>{}<td>{target}\
                 <td>{verdict}{}</tr>",
                escape(&ratio.name()),
                escape(&ratio.peers().title()),
                significant(ratio.ratio.median),
                spread_text(ratio.ratio),
                if ratio.is_equal && ratio.verdict != "equal" { ", equal" } else { "" },
                verdict = escape(&ratio.verdict),
            )?;
        }
        Ok(out + "</tbody></table>\n")
    }

    /// Instructions of flushes on each system, by the number of targets that do not run.
    fn flush_costs(&self) -> Vec<Line> {
        let mut lines = BTreeMap::<ShownWay, Vec<(f64, Spread)>>::new();
        for ratio in &self.ratios {
            let targets = ratio.metric.strip_prefix("space-idle-").and_then(|rest| rest.split(' ').next());
            let Some(targets) = targets.and_then(|targets| targets.parse().ok()) else { continue };
            let quell = ShownWay::new(Subject::Quell, &ratio.way);
            for (way, cost) in [(quell, ratio.quell), (ratio.peers(), ratio.theirs)] {
                lines.entry(way).or_default().push((targets, cost));
            }
        }
        let mut lines: Vec<_> = lines.into_iter().map(|(way, points)| Line { way, points }).collect();
        for line in &mut lines {
            line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
            // Quell's is the same beside each peer.
            line.points.dedup();
        }
        lines
    }
}

/// From the least to the most; nothing if they are the same.
fn spread_text(spread: Spread) -> String {
    if spread.min < spread.max {
        format!("{} – {}", significant(spread.min), significant(spread.max))
    } else {
        String::new()
    }
}

fn amount(value: f64, unit: &str) -> String {
    let (factor, unit) = best_unit(value, unit);
    format!("{} {unit}", short(value * factor))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn results(ratios: &[(&str, f64, Option<f64>)]) -> Value {
        let spread = |median: f64| json!({"median": median, "min": median * 0.9, "max": median * 1.2});
        let ratios: Vec<_> = ratios
            .iter()
            .map(|&(metric, ratio, target)| {
                json!({
                    "case": "flush", "metric": metric, "unit": "instructions", "way": "hypercall",
                    "peer": "kvm", "peer_way": "hyperv", "quell": spread(ratio * 1000.0), "theirs": spread(1000.0),
                    "pairs": [ratio], "ratio": spread(ratio), "equal": false, "target": target,
                    "verdict": "met",
                })
            })
            .collect();
        json!({"bench": "all", "machine": {"cpu": "<x>"}, "versions": {}, "ratios": ratios})
    }

    #[test]
    fn ratios_become_rows_and_plots() {
        let value = results(&[("space-idle-8", 0.13, Some(0.1)), ("space-idle-64", 0.08, None)]);
        let results = Results::of(&value).expect("reads");
        let lines = results.flush_costs();
        let medians: Vec<Vec<_>> = lines
            .iter()
            .map(|line| line.points.iter().map(|(targets, spread)| (*targets, spread.median)).collect())
            .collect();
        assert_eq!(medians, [[(8.0, 130.0), (64.0, 80.0)], [(8.0, 1000.0), (64.0, 1000.0)]]);
        let section = results.section().expect("is made");
        for part in ["plot-ratios", "plot-flushes", "0.13", "0.12 – 0.16", "&lt;x&gt;", "130 instructions"]
        {
            assert!(section.contains(part), "{part}:\n{section}");
        }
        assert_eq!(section.matches("<tr class=\"met\">").count(), 2);
    }

    #[test]
    fn results_of_an_interrupted_run_are_shown_as_far_as_they_go() {
        let mut value = results(&[("a", 0.5, None), ("b", 0.5, None)]);
        value["ratios"][1] = json!({"case": "flush", "metric": "b", "pairs": [], "verdict": "unmeasured"});
        let section = Results::of(&value).expect("reads").section().expect("is made");
        assert!(section.contains("without a pair of runs so far: 1."), "{section}");
        assert_eq!(section.matches("<tr class=").count(), 1);
    }

    #[test]
    fn other_files_are_refused() {
        assert!(Results::of(&json!({"bench": "demo"})).is_err());
        let mut value = results(&[("a", 0.5, None)]);
        value["ratios"][0]["ratio"]["max"] = Value::Null;
        assert!(Results::of(&value).expect_err("lacks a number").to_string().contains("no ratio"));
    }
}
