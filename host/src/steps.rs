//! The steps of a long command: which one runs, and how many are left.

use crate::prelude::*;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// A bar that moves, on a terminal; nothing elsewhere. When it is dropped it goes.
pub(crate) fn bar(template: &str, length: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(length).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Shows the current step, and what is left: a bar on a terminal, elsewhere a line each.
pub(crate) struct Steps {
    bar: ProgressBar,
    /// Without a terminal: prints a line for each step.
    says: bool,
}

impl Steps {
    /// None has begun yet. Those that are quiet print no lines.
    pub(crate) fn new(count: u64, is_quiet: bool) -> Self {
        let bar = bar("{spinner} [{pos}/{len}] {elapsed}  {msg}", count);
        Self { says: bar.is_hidden() && !is_quiet, bar }
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

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
