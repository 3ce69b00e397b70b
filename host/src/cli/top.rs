//! `quell top` on the command line.

use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

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
