//! The machine-independent parts: commands, the pace of stores, and the findings of processors.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod command;
pub mod line;
pub mod pace;
pub mod ring;
pub mod watch;
