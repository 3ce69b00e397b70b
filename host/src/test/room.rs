//! What a row with an act of its own is given.

use super::cases::Case;
use super::guests::Lab;
use crate::machine::emulator;
use crate::prelude::*;
use std::cell::Cell;

/// This tool with these arguments, in its tree, with the same emulator and nothing to read.
pub(super) fn tool(args: &[&str]) -> Result<Command> {
    let mut command = Command::new(env::current_exe().context("this program has no path")?);
    command.args(emulator::wanted().arguments()).args(args);
    command.current_dir(workspace::root()).stdin(Stdio::null());
    Ok(command)
}

pub(super) type Act = fn(&Room<'_>) -> Result<()>;

/// An act, by the name of its row.
pub(super) type Named = (&'static str, Act);

#[derive(Clone, Copy)]
pub(super) struct Room<'a> {
    pub(super) lab: &'a Lab<'a>,
    pub(super) case: &'a Case,
    pub(super) platform: Platform,
    /// Another hypervisor than the one for tests.
    pub(super) other: Option<&'a Hypervisor>,
    pub(super) switches: Switches,
    pub(super) clock: Clock,
    /// For this row alone.
    pub(super) directory: &'a Path,
    pub(super) signals: &'a Signals,
    pub(super) is_long: bool,
    /// Whether a machine has reached its time limit.
    pub(super) hung: &'a Cell<bool>,
}

impl<'a> Room<'a> {
    pub(super) fn hypervisor(&self) -> Result<&'a Hypervisor> {
        self.other.map_or_else(|| self.lab.hypervisor(self.platform.arch()), Ok)
    }

    /// A machine on which Quell runs this guest, for so long.
    pub(super) fn on_quell(&self, guest: &Guest, cpus: u32, timeout: Duration) -> Result<Spec> {
        guest.check()?;
        let spec = guest.on_quell(self.hypervisor()?, cpus, self.clock, self.directory)?;
        Ok(Spec { timeout: Some(timeout), ..spec })
    }
}
