//! `quell top` on the command line.

use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Watch the vCPUs of machines that run: exits, flushes and how long they took, steal time
///
/// `./quell run` in one terminal, `./quell top` in another. Reads the hypervisor's counters out of
/// the machine's memory, so that it costs the guest nothing. Keys are shown at the bottom; `?`
/// explains the columns. A machine that ends is said to have ended, with its last figures.
///
/// Colours are left out where NO_COLOR is set.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The machine, as `./quell ctl vms` names it [default: the first; with --once the only one]
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
    /// Milliseconds from one look at the counters to the next
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(50..=3_600_000))]
    pub(crate) interval: u64,
    /// End after so many intervals
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Print the rates of one interval as a table, and end
    #[arg(long, conflicts_with = "count")]
    pub(crate) once: bool,
    /// Write the rates of all counters to this file, as docs/json.md describes
    #[arg(long, value_name = "FILE", requires = "once")]
    pub(crate) json: Option<PathBuf>,
}

impl TopArgs {
    /// Between two looks at the counters.
    pub(crate) const fn interval(&self) -> Duration {
        Duration::from_millis(self.interval)
    }
}
