//! The virtual machine on bare metal: everything that is the same on all architectures.
//!
//! | module | what it holds |
//! |---|---|
//! | `console` | the log |
//! | `context` | a vCPU on a CPU |
//! | `control` | requests of the host tool |
//! | `files` | what the boot module holds |
//! | `machine` | the one virtual machine and everything shared by its vCPUs |
//! | `memory` | free RAM, the heap, tables from it |
//! | `panic` | the report and how the run ends |
//! | `percpu` | the block of each CPU: stacks with guard pages, per-CPU data |
//! | `run` | the loop that each CPU runs for ever |
//! | `slot_memory` | the memory behind slots that come and go |
//! | `space` | changes of the guest's memory |
//! | `wall` | the date |
//!
//! Nothing here names an instruction or a register: that is for [`arch`](crate::arch), which says what it has to offer.

pub(crate) mod awaited;
pub(crate) mod console;
mod context;
pub(crate) mod control;
pub(crate) mod files;
pub(crate) mod machine;
pub(crate) mod memory;
pub(crate) mod panic;
pub(crate) mod percpu;
pub(crate) mod run;
mod slot_memory;
pub(crate) mod space;
pub(crate) mod wall;

pub(crate) use context::{Context, Next};
pub(crate) use files::{CreateError, Files};
pub(crate) use machine::{Machine, increase};
pub(crate) use percpu::PerCpu;
