//! SVM: the control block, and everything that depends on its format. It compiles for the host and
//! is tested there with a mock processor.
//!
//! | module | contents |
//! |---|---|
//! | [`audit`] | the auditor of entries, and a vCPU's part of it |
//! | [`enter`] | preparation before VMRUN, and clean-up afterwards |
//! | [`event`] | events in the VMCB's format |
//! | [`features`] | SVM features |
//! | [`intercepts`] | the events that a guest exits on |
//! | `offer` | the core's traits on top of the processor's operations |
//! | [`processor`] | the trait of processor operations that all of this is generic over |
//! | [`step`] | the step over the IRET that ends an NMI's handler |
//! | [`table`] | the table of exits |
//! | [`vmcb`] | the control block |
//!
//! Sections are those of the AMD64 APM volume 2 (24593, rev. 3.42) unless noted otherwise.

pub mod audit;
pub mod enter;
pub mod event;
pub mod features;
pub mod intercepts;
#[cfg(any(test, all(target_os = "none", target_arch = "x86_64")))]
pub(crate) mod offer;
pub mod processor;
pub mod step;
pub mod table;
pub mod vmcb;

#[cfg(test)]
mod tests;

pub use processor::Amd64;
