//! Quell, a small type-1 hypervisor built around TLB coherence.
//!
//! The library holds two kinds of code. Everything outside `arch` is plain state with effects returned
//! as values: it compiles for the host and is tested there. `arch` and `vm` are the bare-metal program: what
//! differs per architecture, and what does not.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod amd64;
#[macro_use]
pub mod arm64;
#[cfg(target_os = "none")]
pub mod arch;
pub mod bringup;
pub mod devices;
pub mod emulator;
pub mod free_memory;
pub mod hyperv;
pub mod loader;
pub mod page_pool;
pub mod quota;
pub mod sched;
#[cfg(target_os = "none")]
mod vm;
