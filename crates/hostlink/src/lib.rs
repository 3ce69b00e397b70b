//! What the hypervisor and the host tool agree on: the [bundle] that carries a guest in, the
//! [configuration](config) in it, the [exit codes](exit) that come back, and the [counters]
//! that the host reads out of shared memory while the hypervisor runs.
//!
//! Everything here is plain data without allocation, so that both ends use the same definitions.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod bundle;
pub mod config;
pub mod counters;
pub mod exit;
