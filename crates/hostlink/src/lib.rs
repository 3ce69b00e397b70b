//! What the hypervisor and the host tool agree on: the [bundle] that carries a guest in, the
//! [configuration](config) in it, the [exit codes](exit) that come back, the [counters] that the
//! host reads out of shared memory while the hypervisor runs, and the [requests](ctl) that it may
//! send meanwhile, and the [trace](trace) of what its CPUs do. Programs in guests share the contents of the [ROM](rom). What counts
//! instructions goes by [phases](phase).
//!
//! Everything here is plain data without allocation, so that both ends use the same definitions.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod bundle;
pub mod bzimage;
pub mod config;
pub mod counters;
pub mod ctl;
pub mod defect;
pub mod exit;
pub mod phase;
pub mod rom;
pub mod trace;
mod words;
