//! The part of the hypervisor on Arm64 that needs no Arm64 processor: all decisions about guests,
//! and their consequences. The operations that need a processor are the functions of [`processor`],
//! which `arch/aarch64` implements.
//!
//! | module | contents |
//! |---|---|
//! | [`processor`] | the operations that need a processor |
//! | [`exits`] | the table of exits, and the meaning of each |
//! | [`vcpu`] | a CPU's workspace to run a vCPU, the entry into the guest, a vCPU's private state |
//! | [`guest`] | the state that vCPUs share: devices, ID registers, translations of owned functions |
//! | [`controls`] | registers that are written before the first guest, and their values |
//! | [`audit`] | registers and stale translations that an entering vCPU would use, in the image for tests |

#[macro_use]
pub mod controls;
#[macro_use]
pub mod vcpu;
pub mod audit;
pub mod exits;
pub mod guest;
#[cfg(test)]
mod mock;
pub mod offer;
pub mod processor;
