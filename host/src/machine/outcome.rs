//! The results of a machine that has ended.

use crate::prelude::*;

pub(crate) struct Outcome {
    pub(crate) end: End,
    pub(crate) wall: Duration,
    /// The end of the guest's console, unless it was the terminal.
    pub(crate) console: String,
    pub(crate) log: String,
    pub(crate) qemu_messages: String,
    /// What could not be written of what was to be shown and logged, and why.
    pub(crate) unwritten: Vec<String>,
    /// The reports, in order: if there were very many, the first and the last.
    pub(crate) reports: Vec<Value>,
    pub(crate) reports_dropped: usize,
    /// The counters at the end; `None` without hypervisor, or if it ended before it had any.
    pub(crate) counters: Option<Snapshot>,
}

impl Outcome {
    /// Fails, with the ends of console and log, unless the guest switched the machine off.
    pub(crate) fn powered_off(self) -> Result<Self> {
        let is_off = self.end == End::Hypervisor(ExitCode::GuestPowerOff);
        ensure!(is_off, self.explain(anyhow!("the machine ended with {:?}", self.end)));
        Ok(self)
    }

    pub(crate) fn explain(&self, error: Error) -> Error {
        let (console, log) = (tail(&self.console), tail(&self.log));
        anyhow!("{error:#}\nthe guest's console:\n{console}\nthe hypervisor's log:\n{log}")
    }

    pub(crate) fn report(&self, event: &str) -> Option<&Value> {
        self.reports.iter().find(|report| report["event"] == event)
    }
}
