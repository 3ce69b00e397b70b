//! The parts of the guest that need no machine: the commands, and the rate at which memory is written to.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod command;
pub mod line;
pub mod pace;
