//! SVM: the control block, and everything that depends on its format. It compiles for the host and
//! is tested there with a mock processor.
//!
//! Sections are those of the AMD64 APM volume 2 (24593, rev. 3.42) unless noted otherwise.

pub mod audit;
pub mod block;
pub mod features;
pub mod intercepts;
mod loaded;
mod nested;
pub mod processor;
pub mod step;
pub mod table;
pub mod vendor;
pub mod vmcb;

#[cfg(test)]
pub(crate) mod tests;

pub use processor::Amd64;
