//! The console of a machine's only guest: what it has shown, and what is typed on it.

use super::super::console::lines_with;
use super::super::kept::{Dropped, Ring};
use super::{Machine, POLL_PERIOD};
use crate::prelude::*;
use std::io::Write;
use std::sync::MutexGuard;

impl Machine {
    /// Types on the guest's console; with
    /// [`Console::Capture`](crate::machine::spec::Console::Capture) only.
    pub(crate) fn type_text(&mut self, text: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().ok_or_else(|| anyhow!("the console takes no input"))?;
        stdin.write_all(text.as_bytes()).context("cannot type on the guest's console")
    }

    fn kept(&self) -> MutexGuard<'_, Ring> {
        self.console.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the console shows `text` after its first `from` bytes; returns where the text
    /// ends. With [`Console::Capture`](crate::machine::spec::Console::Capture) only; fails after
    /// `timeout` of the machine's own time, and if some of those bytes are not kept any more.
    pub(crate) fn await_console(&self, text: &str, from: usize, timeout: Duration) -> Result<usize> {
        let mut time = self.own_time();
        while time.passed() < timeout && self.signals.caught().is_none() {
            let console = self.kept();
            let shown = console.behind(from).map_err(not_kept)?;
            let found = shown.windows(text.len()).position(|window| window == text.as_bytes());
            if let Some(at) = found {
                return Ok(from + at + text.len());
            }
            drop(console);
            thread::sleep(POLL_PERIOD);
        }
        Err(anyhow!("the guest's console did not show '{text}'"))
    }

    /// Waits for the first whole line that contains `text` after the console's first `from` bytes;
    /// returns the line and where it ends. Otherwise like [`Self::await_console`].
    pub(crate) fn await_line(&self, text: &str, from: usize, timeout: Duration) -> Result<(String, usize)> {
        let found = self.await_console(text, from, timeout)?;
        self.await_console("\n", found, timeout)?;
        let line = self.lines(text, from)?.into_iter().next();
        line.ok_or_else(|| anyhow!("the guest's console shows no line with '{text}'"))
    }

    /// The whole lines that contain `text` and that the console has shown after its first `from`
    /// bytes, and where each ends. Fails if some of those bytes are not kept any more.
    pub(crate) fn lines(&self, text: &str, from: usize) -> Result<Vec<(String, usize)>> {
        let console = self.kept();
        Ok(lines_with(text, console.behind(from).map_err(not_kept)?, from))
    }

    /// The end of the guest's console output so far.
    pub(crate) fn shown(&self) -> String {
        self.kept().shown().replace('\r', "")
    }
}

fn not_kept(dropped: Dropped) -> anyhow::Error {
    anyhow!(
        "the guest's console has shown so much that {} bytes which were to be read are not kept",
        dropped.count
    )
}
