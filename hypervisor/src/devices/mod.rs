//! The guest's platform devices: plain state, effects returned as values.
//!
//! No device touches hardware, takes a lock or knows which CPU runs it. A register access returns
//! what must happen elsewhere (an interrupt message to deliver, a byte to transmit, a power event,
//! memory to be added or removed); the caller performs it.

pub mod pc;
pub mod region;
#[cfg(test)]
pub(crate) mod state_checks;
pub mod uart16550;
pub mod virt;
pub mod wall_clock;

/// The access raises #GP(0) in the guest, and has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneralProtection;
