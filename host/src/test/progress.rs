//! The tests' output: a line per ended test, and on a terminal a bar for each in progress.

use crate::steps;
use indicatif::{MultiProgress, ProgressBar};
use std::time::Instant;

pub(crate) struct ProgressView {
    bars: MultiProgress,
}

/// A test in progress, and what it does.
pub(crate) struct Running<'a> {
    progress: &'a ProgressView,
    name: &'static str,
    bar: ProgressBar,
    started: Instant,
}

impl ProgressView {
    pub(crate) fn new() -> Self {
        Self { bars: MultiProgress::new() }
    }

    pub(crate) fn begin(&self, name: &'static str) -> Running<'_> {
        let bar = self.bars.add(steps::bar("{spinner} {elapsed}  {prefix} {msg}", 0).with_prefix(name));
        Running { progress: self, name, bar, started: Instant::now() }
    }

    /// A permanent line, above the bars.
    pub(crate) fn say(&self, text: &str) {
        self.bars.suspend(|| println!("{text}"));
    }
}

impl Running<'_> {
    pub(crate) fn note(&self, text: String) {
        self.bar.set_message(text);
    }

    /// Records that it has ended; `detail`, of a failure or of a first try, follows, indented.
    pub(crate) fn end(self, passed: bool, note: &str, detail: &str) {
        self.print(if passed { "ok  " } else { "FAIL" }, note, detail);
    }

    /// Records that it cannot be run here, for this reason.
    pub(crate) fn leave_out(self, why: &str) {
        self.print("none", "left out", why);
    }

    fn print(&self, verdict: &str, note: &str, detail: &str) {
        let secs = self.started.elapsed().as_secs_f64();
        // All of it at once: other tests end meanwhile.
        let mut text = format!("{verdict} {:<44} {secs:6.1} s  {note}", self.name);
        detail.lines().for_each(|line| text.push_str(&format!("\n     | {line}")));
        self.progress.say(&text);
    }
}
