//! Bare guests that keep the hypervisor as busy as they can, and what is asked of it meanwhile.

use crate::machine::process::Machine;
use anyhow::{Context, Result, ensure};
use hostlink::counters::Counter;
use hostlink::ctl::Request;
use std::time::Duration;

/// The guest.
pub(super) struct Siege {
    /// What it is told to do. It says on the report channel when it begins, and never ends.
    pub(super) test: &'static str,
    pub(super) vcpus: u32,
    pub(super) cpus: u32,
    pub(super) memory: u64,
    /// How much the hypervisor has to have counted in the end.
    pub(super) least: &'static [(Counter, u64)],
}

/// How often each thing is asked.
const ROUNDS: u32 = 20;
/// A machine that has not answered for so long never will: an answer takes thousandths of a second.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks what there is to ask, again and again.
pub(super) fn talk(machine: &Machine) -> Result<()> {
    let mut control = machine.control()?.with_patience(PATIENCE);
    for round in 0..ROUNDS {
        for request in [Request::Vms, Request::Slots, Request::Stats] {
            let records = control.ask(&request).with_context(|| format!("round {round}, '{request}'"))?;
            ensure!(!records.is_empty(), "round {round}: '{request}' has an empty answer");
        }
    }
    Ok(())
}
