//! The core on an architecture that is made up, on a [board](super::made) that is made up: vCPUs
//! execute programs of a few operations.

mod control;
mod creation;
mod memory;
mod processor;
mod reset;
mod scheduling;

use processor::{Op, run_to};
