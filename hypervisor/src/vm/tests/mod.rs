//! The core on a mock architecture, on a mock [board](super::mock): vCPUs execute programs of a few
//! operations.

mod control;
mod creation;
mod frames;
mod generation;
mod guests;
mod histories;
mod hostile_stream;
mod interrupts;
mod memory;
pub(crate) mod migration;
mod random;
mod requests;
mod reset;
mod scheduling;
mod slowed;
mod states;

use crate::vm::mock::processor::{Op, run_to};
