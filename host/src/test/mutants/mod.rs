//! Tests of the tests: cargo-mutants breaks the code that guests depend on most, and the tests have
//! to fail for each broken version. `docs/mutants.md` lists the exceptions with their reasons.

mod survivors;

use super::progress::ProgressView;
use super::{Tally, lines, verdict};
use crate::machine::signals::Signals;
use crate::workspace;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use survivors::Listed;

/// The list of survivors, below the root of the source tree.
const LIST: &str = "docs/mutants.md";
/// Seconds for one mutant's tests, which take less than one: what takes longer hangs: caught.
const TEST_TIMEOUT_SECS: &str = "20";
/// Seconds for building one.
const BUILD_TIMEOUT_SECS: &str = "300";
/// Longest time for all mutants of a crate.
const AREA_TIMEOUT: Duration = Duration::from_secs(2 * 3600);
/// Longest time for installing cargo-mutants.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(1800);
/// Files of tests, which cargo-mutants recognises only if guarded by a plain `cfg(test)`.
const TEST_FILES: [&str; 2] = ["**/tests.rs", "crates/*/src/model/**"];
/// The same for test modules inside files.
const TEST_MODULES: &str = r"\btests::";
/// How the copy is built and tested. A little optimization makes property tests ten times faster,
/// and building no slower. Property tests use the same values for every mutant, so that none is
/// caught by luck, or by an earlier failure's saved value.
const ENVIRONMENT: [(&str, &str); 6] = [
    ("CARGO_TERM_COLOR", "never"),
    ("CARGO_PROFILE_DEV_DEBUG", "0"),
    ("CARGO_PROFILE_DEV_OPT_LEVEL", "1"),
    ("PROPTEST_RNG_SEED", "1"),
    ("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1"),
    ("PROPTEST_MAX_SHRINK_ITERS", "0"),
];

struct Area {
    name: &'static str,
    about: &'static str,
    package: &'static str,
    directory: &'static str,
}

const AREAS: [Area; 2] = [
    Area {
        name: "mutants-coherence",
        about: "every mutated expression of the flush engine fails a test",
        package: "quell-coherence",
        directory: "crates/coherence/",
    },
    Area {
        name: "mutants-tlfs",
        about: "and every one of the hypercall decoders",
        package: "quell-tlfs",
        directory: "crates/tlfs/",
    },
];

/// Runs or lists the areas that are `wanted`; the status is 1 if a survivor is not listed.
pub(super) fn test(list: bool, wanted: &impl Fn(&str) -> bool, signals: &Signals) -> Result<u8> {
    let areas = AREAS.iter().filter(|area| wanted(area.name));
    if list {
        areas.for_each(|area| println!("{:<40} {}", area.name, area.about));
        return Ok(0);
    }
    let path = workspace::root().join(LIST);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let listed = Listed::parse(&text).context(LIST)?;
    let progress = ProgressView::new();
    install(&progress, signals)?;
    let mut total = Tally::default();
    for area in areas {
        if signals.caught().is_some() {
            break;
        }
        total.add(area.run(&listed, &progress, signals)?);
    }
    Ok(verdict(total, signals))
}

/// Installs cargo-mutants into cargo's directory for the user's programs, unless it is installed.
fn install(progress: &ProgressView, signals: &Signals) -> Result<()> {
    let mut command = workspace::cargo();
    command.args(["mutants", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    if command.status().context("cannot start cargo")?.success() {
        return Ok(());
    }
    progress.say("installing cargo-mutants into cargo's home directory; that takes some minutes");
    let running = progress.begin("cargo-mutants");
    let mut command = workspace::cargo();
    command.args(["install", "cargo-mutants", "--locked"]);
    let mut last = String::new();
    let status = lines::read(command, INSTALL_TIMEOUT, signals, |line| {
        running.note(lines::shorten(&line));
        last = line;
    })?;
    ensure!(status.is_some_and(|status| status.success()), "cargo-mutants cannot be installed: {last}");
    Ok(())
}

impl Area {
    /// Runs it, and counts as one test.
    fn run(&self, listed: &Listed, progress: &ProgressView, signals: &Signals) -> Result<Tally> {
        let running = progress.begin(self.name);
        let output = workspace::target_dir("mutants").join(self.package);
        fs::create_dir_all(&output).with_context(|| format!("cannot create {}", output.display()))?;
        let mut said = Vec::new();
        let status = lines::read(self.command(&output), AREA_TIMEOUT, signals, |line| {
            running.note(lines::shorten(&line));
            said.push(line);
        })?;
        // 2: some were missed. 3: some timed out. Any other status means no result.
        let has_result = status.is_some_and(|status| matches!(status.code(), Some(0 | 2 | 3)));
        if !has_result {
            let why = status.map_or("stopped".to_owned(), |status| status.to_string());
            let is_verdict = |line: &String| ["caught", "MISSED"].iter().any(|word| line.starts_with(word));
            said.retain(|line| !is_verdict(line));
            running.end(false, &format!("cargo-mutants: {why}"), &said.join("\n"));
            return Ok(Tally { failed: 1, ..Tally::default() });
        }
        let path = output.join("mutants.out/missed.txt");
        let missed = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let missed: Vec<_> = missed.lines().map(str::to_owned).collect();
        let unlisted = listed.unlisted(&missed);
        let mut detail = unlisted.iter().map(|name| format!("missed: {name}")).collect::<Vec<_>>();
        if !unlisted.is_empty() {
            detail.push(format!("Add a test, or list it in {LIST} with the reason why none can see it."));
        }
        let passed = unlisted.is_empty();
        // Its last line says how many were caught, missed, and not built.
        running.end(passed, said.last().map_or("", String::as_str), &detail.join("\n"));
        for name in listed.outdated(&missed, self.directory) {
            progress.say(&format!("     | listed in {LIST}, but not missed any more: {name}"));
        }
        Ok(Tally { passed: usize::from(passed), failed: usize::from(!passed), second: 0 })
    }

    fn command(&self, output: &Path) -> Command {
        let mut command = workspace::cargo();
        // The copy of the tree is built in a separate directory.
        command.env_remove("CARGO_TARGET_DIR").envs(ENVIRONMENT);
        command.args(["mutants", "--package", self.package, "--jobs", "1", "--caught", "--unviable"]);
        command.args(["--timeout", TEST_TIMEOUT_SECS, "--build-timeout", BUILD_TIMEOUT_SECS]);
        command.args(["--exclude-re", TEST_MODULES]);
        for glob in TEST_FILES {
            command.args(["--exclude", glob]);
        }
        command.arg("--output").arg(output).args(["--", "--lib"]);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_in_the_sources_can_be_read() {
        let text = fs::read_to_string(workspace::root().join(LIST)).unwrap();
        Listed::parse(&text).unwrap();
    }
}
