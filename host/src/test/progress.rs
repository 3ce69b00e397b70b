//! The tests' output: one line per test, and a bar for the one under way where someone watches.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// Shows what is under way and what has ended.
pub(crate) struct Progress {
    bar: ProgressBar,
    started: Instant,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let bar = if io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{spinner} {prefix}  {elapsed}  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        Self { bar, started: Instant::now() }
    }

    /// A test begins.
    pub(crate) fn begin(&mut self, name: &str) {
        self.started = Instant::now();
        self.bar.reset();
        self.bar.set_prefix(name.to_owned());
        self.bar.set_message("");
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }

    /// What it is doing.
    pub(crate) fn note(&self, text: String) {
        self.bar.set_message(text);
    }

    /// A line that stays, above the bar.
    pub(crate) fn say(&self, text: &str) {
        self.bar.suspend(|| println!("{text}"));
    }

    /// It has ended; `detail` follows a failure, indented.
    pub(crate) fn end(&self, name: &str, passed: bool, note: &str, detail: &str) {
        self.bar.disable_steady_tick();
        let verdict = if passed { "ok  " } else { "FAIL" };
        let secs = self.started.elapsed().as_secs_f64();
        self.bar.suspend(|| {
            println!("{verdict} {name:<44} {secs:6.1} s  {note}");
            for line in detail.lines() {
                println!("     | {line}");
            }
        });
        self.bar.set_prefix("");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
