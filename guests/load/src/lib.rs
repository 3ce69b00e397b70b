//! The parts of the guest that need no machine: the commands, the rate at which memory is written
//! to, and what processors find.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod command;
pub mod line;
pub mod pace;
pub mod watch;
