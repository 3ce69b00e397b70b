//! Tests that cargo runs: unit, property and model tests, and the linters.

mod reading;
#[cfg(test)]
mod tests;

use super::progress::ProgressView;
use super::{Tally, lines};
use crate::prelude::*;
use reading::Reading;
use std::sync::LazyLock;

/// Longest time for one step, including building.
const STEP_TIMEOUT: Duration = Duration::from_secs(1800);
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Step {
    pub(super) name: String,
    pub(super) about: String,
    runs: String,
    loom: bool,
    cpu_seconds: Option<u64>,
    pub(super) only_long: bool,
    env: BTreeMap<String, String>,
}

/// Everything that cargo checks.
pub(super) static STEPS: LazyLock<Vec<Step>> = LazyLock::new(|| {
    let mut steps: BTreeMap<String, Vec<Step>> =
        toml::from_str(include_str!("steps.toml")).expect("steps.toml is right");
    steps.remove("step").expect("it has steps")
});

impl Step {
    /// Runs it. A step without tests of its own counts as one.
    pub(super) fn run(&'static self, progress: &ProgressView, signals: &Signals) -> Result<Tally> {
        self.run_by(workspace::cargo(), progress, signals)
    }

    fn run_by(&'static self, cargo: Command, progress: &ProgressView, signals: &Signals) -> Result<Tally> {
        let running = progress.begin(&self.name);
        let (has_succeeded, reading) = self.read(cargo, signals, |reading, line| {
            running.note(format!("{} passed  {}", reading.passed_so_far(), lines::shorten(line)));
        })?;
        let tally = self.verdict(has_succeeded, &reading);
        let passed = tally.failed == 0;
        let counts = if tally.passed + tally.failed > 1 {
            format!("{} passed, {} failed", tally.passed, tally.failed)
        } else {
            String::new()
        };
        let detail = if passed { String::new() } else { reading.detail() };
        running.end(passed, &counts, &detail);
        Ok(tally)
    }

    /// Reads what this program prints, with a note before each line. Whether it has succeeded.
    fn read(
        &self,
        cargo: Command,
        signals: &Signals,
        mut note: impl FnMut(&Reading, &str),
    ) -> Result<(bool, Reading)> {
        let mut reading = Reading::default();
        let cpu_time = self.cpu_seconds.map_or(STEP_TIMEOUT, Duration::from_secs);
        let status = lines::read(self.command(cargo), STEP_TIMEOUT, cpu_time, signals, |line| {
            note(&reading, &line);
            reading.line(line);
        })?;
        Ok((status.is_some_and(|status| status.success()), reading))
    }

    /// What counts as passed and failed. The printed results are believed about failures only: a
    /// binary that crashes, or does not compile, prints none, and its test is one that failed.
    fn verdict(&self, has_succeeded: bool, reading: &Reading) -> Tally {
        let mut tally = Tally { rows: 1, ..reading.tally };
        tally.failed += reading.unfinished;
        if !self.is_test() && has_succeeded {
            tally.passed = 1;
        }
        // Tests of which none ran have shown nothing.
        if tally.failed == 0 && (!has_succeeded || tally.passed == 0) {
            tally.failed = 1;
        }
        tally
    }

    fn is_test(&self) -> bool {
        self.runs.starts_with("test ")
    }

    pub(super) fn command(&self, mut command: Command) -> Command {
        command.args(self.runs.split_whitespace()).env("CARGO_TERM_COLOR", "never");
        command.envs(&self.env);
        if self.name == "lint-docs" {
            command.env("RUSTDOCFLAGS", "-Dwarnings");
        }
        if self.is_test() {
            // All failures, not only those of the first crate. Before any "--".
            command.arg("--no-fail-fast");
        }
        if self.loom {
            command.env("RUSTFLAGS", "--cfg loom").arg("--target-dir").arg(workspace::target_dir("loom"));
        }
        command
    }
}
