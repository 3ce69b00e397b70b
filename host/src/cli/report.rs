//! `quell report` on the command line.

use clap::Args;
use std::path::PathBuf;

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
    /// Also write the table of ratios, with date and versions, as Markdown
    #[arg(long, value_name = "FILE", requires = "results")]
    pub(crate) markdown: Option<PathBuf>,
    /// Also take pictures of the report with a headless Chromium, if that is installed: light.png,
    /// dark.png and paper.png in this directory
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) screenshots: Option<PathBuf>,
}
