//! Bare guests that keep the hypervisor as busy as they can, and the requests sent to it meanwhile.

use crate::test::prelude::*;

pub(super) struct Siege {
    /// The test to run. The guest reports on the report channel when it begins, and never ends.
    pub(super) test: &'static str,
    pub(super) vcpus: u32,
    pub(super) cpus: u32,
    pub(super) memory: u64,
    /// Minimum values of the hypervisor's counters at the end.
    pub(super) least: &'static [(Counter, u64)],
}

/// How many times each request is sent.
const ROUNDS: u32 = 20;
/// A machine that has not answered for this long never will: an answer takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends all kinds of requests, repeatedly.
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
