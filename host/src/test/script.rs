//! Commands to the bare guest `load`.

use crate::test::prelude::*;

/// A machine, and how far its console was read.
pub(super) struct Script {
    pub(super) machine: Machine,
    pub(super) read: usize,
    /// Longest time for a step.
    patience: Duration,
}

impl Script {
    /// Starts a machine whose guest accepts commands.
    pub(super) fn start(spec: &Spec, signals: &Signals, patience: Duration) -> Result<Self> {
        let mut script = Self { machine: Machine::start(spec, signals)?, read: 0, patience };
        script.await_text("load: ready")?;
        Ok(script)
    }

    pub(super) fn await_text(&mut self, text: &str) -> Result<()> {
        let found = self.machine.await_console(text, self.read, self.patience);
        self.read = found.with_context(|| self.machine.shown())?;
        Ok(())
    }

    pub(super) fn command(&mut self, command: &str) -> Result<()> {
        self.machine.type_text(&format!("{command}\n"))?;
        self.await_text(&format!("load: done: {command}"))
    }

    pub(super) fn end(mut self) -> Result<Outcome> {
        // If the guest is lost, time is up soon.
        self.machine.type_text("poweroff\n")?;
        self.machine.run(|_, _| Ok(Flow::Continue))?.powered_off()
    }
}
