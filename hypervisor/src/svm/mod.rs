//! SVM: the control block, and everything that depends on its format. It compiles for the host and
//! is tested there with a mock processor.
//!
//! | module | contents |
//! |---|---|
//! | [`audit`] | the auditor of entries, and a vCPU's part of it |
//! | [`block`] | the VMCB as a control block |
//! | [`features`] | SVM features |
//! | [`intercepts`] | the events that a guest exits on |
//! | `loaded` | the processor with a vCPU's state: VMRUN, tags |
//! | [`processor`] | the trait of processor operations that all of this is generic over |
//! | [`step`] | the step over the IRET that ends an NMI's handler |
//! | [`table`] | the table of exits |
//! | [`vendor`] | SVM as a kind of processor |
//! | [`vmcb`] | the control block |
//!
//! Sections are those of the AMD64 APM volume 2 (24593, rev. 3.42) unless noted otherwise.

pub mod audit;
pub mod block;
pub mod features;
pub mod intercepts;
mod loaded;
pub mod processor;
pub mod step;
pub mod table;
pub mod vendor;
pub mod vmcb;

#[cfg(test)]
pub(crate) mod tests;

pub use processor::Amd64;
