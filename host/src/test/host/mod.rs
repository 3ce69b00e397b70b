//! Tests that cargo runs: unit, property and model tests, and the linters.

mod reading;
#[cfg(test)]
mod tests;

use super::progress::ProgressView;
use super::{Tally, lines};
use crate::prelude::*;
use reading::Reading;

/// Longest time for one step, including building.
const STEP_TIMEOUT: Duration = Duration::from_secs(1800);
/// CPU time of one program of unit tests, several times as long as usual. A test that has no end
/// takes its program with it, and is named.
const UNIT_TESTS_CPU_TIME: Duration = Duration::from_secs(900);

pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    args: &'static str,
    /// Model-checked: built with `cfg(loom)`, in a target directory of its own.
    loom: bool,
    /// CPU time of each of its processes.
    cpu_time: Duration,
    /// Run only with `--long`.
    pub(super) only_long: bool,
    env: &'static [(&'static str, &'static str)],
}

const fn step(name: &'static str) -> Step {
    Step { name, about: "", args: "", loom: false, cpu_time: STEP_TIMEOUT, only_long: false, env: &[] }
}

impl Step {
    const fn runs(self, args: &'static str) -> Self {
        Self { args, ..self }
    }

    const fn about(self, about: &'static str) -> Self {
        Self { about, ..self }
    }

    const fn under_loom(self) -> Self {
        Self { loom: true, ..self }
    }

    const fn within(self, cpu_time: Duration) -> Self {
        Self { cpu_time, ..self }
    }

    const fn only_long(self, env: &'static [(&'static str, &'static str)]) -> Self {
        Self { only_long: true, env, ..self }
    }
}

/// Compares the sources with their formatted text.
pub(super) const FORMAT: &str = "fmt --all -- --check --color never";

/// Everything that cargo checks. The bare-metal images are linted for their own targets. All lints
/// have the profile of the unit tests, so that macros are built once; all models have the profile
/// `model`.
pub(super) const STEPS: [Step; 18] = [
    step("format").runs(FORMAT).about("the sources are formatted"),
    step("unit-tests").runs("test --workspace --exclude quell-probe --features quell-hypervisor/trace")
        .about("unit and property tests of all crates; the hypervisor's record a trace")
        .within(UNIT_TESTS_CPU_TIME),
    step("model-tests").runs("test --profile model --lib -p quell-coherence -p quell-iommu -p quell-memslots -p quell-hostlink -p quell-transfer")
    .about("flush protocol, IOMMU rings, memory slots, dirty logs, rings and channels under loom")
    .under_loom(),
    // Its documentation's examples cannot run under loom.
    step("model-tests-paging").runs("test --profile model --lib -p quell-paging")
        .about("faults, changes and processors at one page table under loom")
        .under_loom(),
    // Its unit tests use the same atomics outside of any model.
    step("model-tests-hypervisor").runs("test --profile model --lib -p quell-hypervisor model::")
        .about("inboxes, PSCI's power states, scheduler, announcements and CPUs that start, under loom")
        .under_loom(),
    step("machine-at-length").runs("test --release -p quell-machine --test clean")
        .about("random programs on the abstract machine: 10^8 operations, or ten minutes")
        .only_long(&[("QUELL_MACHINE_OPERATIONS", "50000000"), ("QUELL_MACHINE_SECONDS", "300")]),
    step("scheduler-at-length").runs("test --release -p quell-hypervisor --lib sched::simulation")
        .about("10,000 random machines under the scheduler: no vCPU starves")
        .only_long(&[("QUELL_SCHED_MACHINES", "10000")]),
    step("requests-at-length").runs("test --release -p quell-hypervisor --lib random_requests")
        .about("random control requests about several guests, in any order: an hour on an idle computer")
        .only_long(&[("QUELL_REQUESTS_RUNS", "10000")]),
    step("streams-at-length").runs("test --release -p quell-hypervisor --lib m6_")
        .about("changed streams of guests that arrive, and changed states of their vCPUs")
        .only_long(&[("QUELL_STREAMS_RUNS", "4000")]),
    step("lint-host").runs("clippy --workspace --exclude quell-probe --all-targets -- -Dwarnings")
        .about("clippy on everything that runs on the host"),
    step("lint-hypervisor").runs("clippy -p quell-hypervisor --bin quell-hypervisor --features image \
         --target x86_64-unknown-none -- -Dwarnings")
    .about("clippy on the hypervisor's image"),
    step("lint-workloads-arm").runs("clippy -p quell-workloads --bins --target aarch64-unknown-linux-musl -- -Dwarnings")
    .about("clippy on the programs of Arm64 guests"),
    step("lint-probe").runs("clippy -p quell-probe -p quell-hostile -p quell-load -p quell-boot --bins --target x86_64-unknown-none \
         -- -Dwarnings")
    .about("clippy on the bare guests"),
    step("lint-tlbcheck").runs("clippy -p quell-tlbcheck -p quell-hypervisor --bins --target x86_64-unknown-none --features \
         quell-hypervisor/image,quell-hypervisor/defects,quell-hypervisor/audit,quell-hypervisor/trace \
         -- -Dwarnings")
    .about("clippy on tlbcheck's image, and on the hypervisor's for tests"),
    step("lint-hypervisor-arm").runs("clippy -p quell-hypervisor --bin quell-hypervisor --features image,defects,audit,trace \
         --target aarch64-unknown-none-softfloat -- -Dwarnings")
    .about("clippy on the hypervisor's image for Arm64, for tests"),
    step("lint-guests-arm").runs("clippy -p quell-tlbcheck -p quell-load -p quell-hostile --bins \
         --target aarch64-unknown-none-softfloat -- -Dwarnings")
    .about("clippy on tlbcheck and the bare test guests for Arm64"),
    step("lint-plugin").runs("clippy -p quell-plugin --features interface-3 -- -Dwarnings")
        .about("clippy on QEMU's plugin for the interface of QEMU 9.1 and later"),
    step("lint-docs").runs("doc --workspace --exclude quell-probe --no-deps --document-private-items")
        .about("the documentation's links resolve"),
];

impl Step {
    /// Runs it. A step without tests of its own counts as one.
    pub(super) fn run(&self, progress: &ProgressView, signals: &Signals) -> Result<Tally> {
        self.run_by(workspace::cargo(), progress, signals)
    }

    fn run_by(&self, cargo: Command, progress: &ProgressView, signals: &Signals) -> Result<Tally> {
        let running = progress.begin(self.name);
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
        let status = lines::read(self.command(cargo), STEP_TIMEOUT, self.cpu_time, signals, |line| {
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
        self.args.starts_with("test ")
    }

    fn command(&self, mut command: Command) -> Command {
        command.args(self.args.split_whitespace()).env("CARGO_TERM_COLOR", "never");
        command.envs(self.env.iter().copied());
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
