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
    /// Does something with a machine whose guest accepts commands, and ends it. To an error it adds
    /// what was shown.
    pub(super) fn run<T>(
        spec: &Spec,
        signals: &Signals,
        patience: Duration,
        act: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<(T, Outcome)> {
        let mut script = Self { machine: Machine::start(spec, signals)?, read: 0, patience };
        script.await_text("load: ready")?;
        let worked = act(&mut script);
        // If the guest is lost, time is up soon.
        script.machine.type_text("poweroff\n")?;
        let outcome = script.machine.run(|_, _| Ok(Flow::Continue))?.powered_off()?;
        match worked {
            Ok(result) => Ok((result, outcome)),
            Err(error) => Err(outcome.explain(error)),
        }
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
}
