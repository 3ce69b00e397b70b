//! The machine-independent parts of the guest.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod allowed;
pub mod attacks;
pub mod latency;
pub mod orders;
