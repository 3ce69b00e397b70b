//! The part of the hypervisor on Arm64 that needs no Arm64 processor: all decisions about guests,
//! and their consequences. The operations that need a processor are the functions of [`processor`],
//! which `arch/aarch64` implements.
//!
//! | module | contents |
//! |---|---|
//! | [`processor`] | the operations that need a processor |
//! | [`exits`] | the table of exits, and the meaning of each |
//! | [`vcpu`], [`state`] | a CPU's workspace to run a vCPU, the entry into the guest; a vCPU's private state |
//! | [`system`] | its registers while it is off the CPU |
//! | [`guest`], [`devices`] | the state that vCPUs share; dispatch of device accesses |
//! | [`inject`] | exceptions that the hypervisor injects |
//! | [`stolen_time`] | the time that a vCPU waited for a CPU, as its guest reads it |
//! | [`controls`] | registers that are written before the first guest, and their values |
//! | [`exchanged`] | registers that are switched with the vCPU |
//! | [`wait_loop`] | code that waits for a word in memory |
//! | [`registers`] | emulation of trapped registers |
//! | [`identity`] | the ID registers that a guest sees |
//! | [`debug`] | breakpoints, watchpoints, single step |
//! | [`smmu`], [`mirror`] | the driver of SMMUs; the tables by which they translate for a guest |
//! | [`translations`] | when those tables change |
//! | [`lines`] | interrupts of PCI functions that guests own |
//! | [`loaded`] | the address space that a CPU has loaded |
//! | [`load_store`] | accesses of two registers, or with write-back |
//! | [`step`] | continuing after an instruction; instructions whose condition fails |
//! | [`audit`], [`auditor`] | registers and stale translations that an entering vCPU would use, in the image for tests |
//! | [`abort`], [`serror`] | the syndrome of a stage-2 fault; asynchronous aborts |

pub mod abort;
pub mod audit;
#[macro_use]
pub mod controls;
pub mod debug;
pub mod devices;
#[macro_use]
pub mod exchanged;
pub mod auditor;
pub mod exits;
pub mod guest;
pub mod identity;
pub mod inject;
pub mod lines;
pub mod load_store;
pub mod loaded;
#[cfg(test)]
mod made;
pub mod mirror;
#[cfg(any(test, all(target_os = "none", target_arch = "aarch64")))]
pub(crate) mod offer;
pub mod processor;
pub mod registers;
pub mod serror;
pub mod smmu;
pub mod state;
pub mod step;
pub mod stolen_time;
pub mod system;
pub mod translations;
pub mod vcpu;
pub mod wait_loop;
