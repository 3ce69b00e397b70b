//! The parts of the guest that need no machine.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod allowed;
pub mod orders;
