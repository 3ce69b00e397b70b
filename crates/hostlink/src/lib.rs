//! The interface between the hypervisor and the host tool: the [bundle] that contains the guests,
//! their [configuration](config), the [exit codes](exit) that are returned, the [counters] that the
//! host reads from shared memory while the hypervisor runs, the [guests] there with their consoles,
//! the [requests](ctl) that the host may send meanwhile, and the [trace] of the CPUs' work.
//! Programs in guests share the contents of the [ROM](rom). Instructions are counted by
//! [phases](phase).
//!
//! Everything here is plain data without allocation, so that both ends use the same definitions.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod architecture;
pub mod bundle;
pub mod bzimage;
pub mod config;
pub mod counters;
pub mod cpus;
pub mod ctl;
pub mod defect;
pub mod exit;
pub mod guests;
pub mod name;
pub mod phase;
pub mod ring;
pub mod rom;
pub mod trace;
mod words;
