//! The steps of a long command: which one runs, and how many are left.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal};
use std::time::Duration;

/// Shows the current step, and how much is left: a bar on a terminal, elsewhere a line for each
/// step.
pub(crate) struct Steps {
    bar: ProgressBar,
    /// Without a terminal: prints a line for each step.
    says: bool,
}

impl Steps {
    /// None has begun yet. Those that are quiet print no lines.
    pub(crate) fn new(count: u64, is_quiet: bool) -> Self {
        let watched = io::stderr().is_terminal();
        let bar = if watched { ProgressBar::new(count) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{spinner} [{pos}/{len}] {elapsed}  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar, says: !watched && !is_quiet }
    }

    pub(crate) fn begin(&self, what: &str) {
        self.bar.inc(1);
        self.bar.set_message(what.to_owned());
        if self.says {
            eprintln!("quell: {what}");
        }
    }

    /// How far the current step is; on a terminal only.
    pub(crate) fn detail(&self, what: String) {
        self.bar.set_message(what);
    }

    /// All are done: nothing is shown any more.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
