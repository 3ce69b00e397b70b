//! The machine-independent parts of the guest: the commands, the pace of stores to memory, and the
//! findings of processors.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod command;
pub mod line;
pub mod pace;
pub mod watch;
