//! `quell console`, `quell top` and `quell report` on the command line.

use crate::prelude::*;
use clap::Args;

/// Attach to the console of a guest of a running machine
///
/// Start `./quell run examples/two.toml` in one terminal and `./quell console web` in another. What
/// the console has shown so far comes first, as far as it is kept; then it is followed, and what is
/// typed goes to the guest.
///
/// Ctrl-A d leaves; the guest goes on. Ctrl-A a sends Ctrl-A. All other keys are for the guest,
/// Ctrl-C included. Several terminals may be attached to one console.
///
/// A machine that was started without a machine file has one guest, whose console is where it was
/// started.
#[derive(Debug, Args)]
pub(crate) struct ConsoleArgs {
    /// The guest [default: the only one]
    #[arg(value_name = "NAME")]
    pub(crate) guest: Option<String>,
    /// The machine, by its name in `./quell ctl vms` [default: the only one]
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
    /// The guest's serial port: 0 is its console
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1))]
    pub(crate) port: u16,
    /// Print what the console has shown so far, and exit
    #[arg(long)]
    pub(crate) once: bool,
}

/// Watch the vCPUs of running machines: exits, flushes and their duration, steal time
///
/// Start `./quell run` in one terminal and `./quell top` in another. It reads the hypervisor's
/// counters from the machine's memory, at no cost to the guest. Keys are shown at the bottom; `?`
/// explains the columns. When a machine ends, the view says so and keeps its last figures.
///
/// Set NO_COLOR to turn colours off.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The machine, by its name in `./quell ctl vms` [default: the first; with --once the only one]
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
    /// Milliseconds between two samples of the counters
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(50..=3_600_000))]
    pub(crate) interval: u64,
    /// Exit after this many intervals
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Print the rates of one interval as a table, and exit
    #[arg(long, conflicts_with = "count")]
    pub(crate) once: bool,
    /// Write the rates of all counters to this file, as docs/json.md describes
    #[arg(long, value_name = "FILE", requires = "once")]
    pub(crate) json: Option<PathBuf>,
}

impl TopArgs {
    /// The time between two samples of the counters.
    pub(crate) const fn interval(&self) -> Duration {
        Duration::from_millis(self.interval)
    }
}

/// Show results and traces in one HTML file that needs no network
///
/// Results are a file of `bench all --json`, traces are files of `run --trace`. The part of a trace
/// with the most flushes is shown as a timeline of the CPUs.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Results of `quell bench all`
    #[arg(value_name = "FILE")]
    pub(crate) results: Option<PathBuf>,
    /// A trace of `quell run`; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Vec<PathBuf>,
    /// Length of the part of a trace that is shown, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) window: u64,
    /// Beginning of that part, in milliseconds of the run [default: the part with the most flushes,
    /// or, without flushes, with the most IPIs]
    #[arg(long, value_name = "MS")]
    pub(crate) from: Option<u64>,
    /// File for the report
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    pub(crate) output: PathBuf,
    /// Also draw the timeline of the first trace as a picture of its own (SVG), with a headless
    /// Chromium, if that is installed
    #[arg(long, value_name = "FILE", requires = "trace")]
    pub(crate) picture: Option<PathBuf>,
    /// Also take pictures of the report with a headless Chromium, if that is installed: light.png,
    /// dark.png and paper.png in this directory
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) screenshots: Option<PathBuf>,
}
