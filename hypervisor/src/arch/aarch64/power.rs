//! The firmware's PSCI: starting CPUs, switching the machine off.
//!
//! Source: Arm DEN 0022F, PSCI 1.3; calls by way of the `smccc` crate.

use smccc::{Hvc, Smc, psci};
use spin::Once;

/// How the firmware is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conduit {
    /// By HVC: there is another hypervisor below.
    Hvc,
    /// By SMC.
    Smc,
}

static CONDUIT: Once<Conduit> = Once::new();

/// Remembers what the device tree says.
pub(crate) fn set_conduit(conduit: Conduit) {
    CONDUIT.call_once(|| conduit);
}

/// Starts the CPU with affinity `id` at `entry`, with `context` in x0.
pub(crate) fn start_cpu(id: u64, entry: u64, context: u64) -> Result<(), psci::Error> {
    match CONDUIT.get() {
        Some(Conduit::Smc) => psci::cpu_on::<Smc>(id, entry, context),
        Some(Conduit::Hvc) => psci::cpu_on::<Hvc>(id, entry, context),
        None => Err(psci::Error::NotSupported),
    }
}

/// Switches the machine off, if the firmware can.
pub(crate) fn off() {
    let _ = match CONDUIT.get() {
        Some(Conduit::Smc) => psci::system_off::<Smc>(),
        Some(Conduit::Hvc) => psci::system_off::<Hvc>(),
        None => Ok(()),
    };
}
