//! The tests' output: a line per ended test, and on a terminal a bar for those in progress.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) struct ProgressView {
    bar: ProgressBar,
    /// Tests in progress: name, and current activity.
    running: Mutex<Vec<(&'static str, String)>>,
}

pub(crate) struct Running<'a> {
    progress: &'a ProgressView,
    name: &'static str,
    started: Instant,
}

impl ProgressView {
    pub(crate) fn new() -> Self {
        let bar = if io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{spinner} {elapsed}  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar, running: Mutex::default() }
    }

    pub(crate) fn begin(&self, name: &'static str) -> Running<'_> {
        self.running().push((name, String::new()));
        self.show();
        Running { progress: self, name, started: Instant::now() }
    }

    /// A permanent line, above the bar.
    pub(crate) fn say(&self, text: &str) {
        self.bar.suspend(|| println!("{text}"));
    }

    fn running(&self) -> MutexGuard<'_, Vec<(&'static str, String)>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self) {
        let rows: Vec<String> = self.running().iter().map(|(name, note)| format!("{name} {note}")).collect();
        self.bar.set_message(rows.join("  |  "));
    }
}

impl Running<'_> {
    pub(crate) fn note(&self, text: String) {
        if let Some(row) = self.progress.running().iter_mut().find(|row| row.0 == self.name) {
            row.1 = text;
        }
        self.progress.show();
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
        self.progress.bar.suspend(|| {
            // All of it at once: other tests end meanwhile.
            let mut text = format!("{verdict} {:<44} {secs:6.1} s  {note}\n", self.name);
            detail.lines().for_each(|line| text.push_str(&format!("     | {line}\n")));
            print!("{text}");
        });
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.progress.running().retain(|row| row.0 != self.name);
        self.progress.show();
    }
}

impl Drop for ProgressView {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
