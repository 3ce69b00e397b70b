//! The hypervisor on Arm64, as far as it needs no Arm64 processor: everything that is decided about
//! guests, and what follows from it. What only a processor can do are the functions of
//! [`processor`], which `arch/aarch64` implements.
//!
//! | module | what it holds |
//! |---|---|
//! | [`processor`] | what only a processor can do |
//! | [`exits`] | the table of exits, and what each means |
//! | [`vcpu`], [`state`] | what a CPU needs to run a vCPU, the way into the guest; a vCPU's private state |
//! | [`system`] | its registers while it is off the CPU |
//! | [`guest`], [`devices`] | what the vCPUs share; where an access to a device goes |
//! | [`inject`] | exceptions that the guest gets from us |
//! | [`controls`] | registers that are written before the first guest, and with what |
//! | [`exchanged`] | registers that a vCPU takes along |
//! | [`wait_loop`] | code that waits for a word in memory |
//! | [`registers`] | what trapped registers do |
//! | [`identity`] | the ID registers as a guest sees them |
//! | [`debug`] | breakpoints, watchpoints, single step |
//! | [`load_store`] | accesses of two registers, or with write-back |
//! | [`step`] | going on behind an instruction; instructions whose condition fails |
//! | [`audit`], [`auditor`] | what a vCPU could meet that enters, in the image for tests |
//! | [`abort`], [`serror`] | what a stage-2 fault says of the access; asynchronous aborts |

pub mod abort;
pub mod audit;
pub mod auditor;
#[macro_use]
pub mod controls;
pub mod debug;
pub mod devices;
#[macro_use]
pub mod exchanged;
pub mod exits;
pub mod guest;
pub mod identity;
pub mod inject;
pub mod load_store;
#[cfg(test)]
mod made;
#[cfg(any(test, all(target_os = "none", target_arch = "aarch64")))]
pub(crate) mod offer;
pub mod processor;
pub mod registers;
pub mod serror;
pub mod state;
pub mod step;
pub mod system;
pub mod vcpu;
pub mod wait_loop;
