//! The results of a machine that has ended.

use super::counters::Snapshot;
use super::process::End;
use crate::run::tail;
use anyhow::{Result, ensure};
use hostlink::exit::ExitCode;
use serde_json::Value;
use std::time::Duration;

/// The results of a machine that has ended.
pub(crate) struct Outcome {
    /// How it ended.
    pub(crate) end: End,
    /// Wall clock from start to end.
    pub(crate) wall: Duration,
    /// The end of the guest's console, unless it was the terminal.
    pub(crate) console: String,
    /// The end of the hypervisor's log.
    pub(crate) log: String,
    /// QEMU's messages.
    pub(crate) qemu_messages: String,
    /// The reports, in order: if there were very many, the first and the last.
    pub(crate) reports: Vec<Value>,
    /// The number of dropped reports.
    pub(crate) reports_dropped: usize,
    /// The counters at the end; `None` without hypervisor, or if it ended before it had any.
    pub(crate) counters: Option<Snapshot>,
}

impl Outcome {
    /// Fails, with the ends of console and log, unless the guest switched the machine off.
    pub(crate) fn powered_off(self) -> Result<Self> {
        let (console, log) = (tail(&self.console), tail(&self.log));
        ensure!(
            self.end == End::Hypervisor(ExitCode::GuestPowerOff),
            "the machine ended with {:?}; the guest's console:\n{console}\nthe hypervisor's log:\n{log}",
            self.end
        );
        Ok(self)
    }

    /// The first report of that event.
    pub(crate) fn report(&self, event: &str) -> Option<&Value> {
        self.reports.iter().find(|report| report["event"] == event)
    }
}
