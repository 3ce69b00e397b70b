//! VMX: the kind of processor that runs guests by a VMCS, with EPT and VPIDs.
//!
//! Sections are those of Intel's SDM, volume 3 (325384), chapters 25 to 31.

pub mod active;
mod apic;
#[cfg(any(test, feature = "audit"))]
mod audit;
pub mod block;
pub mod capabilities;
pub mod controls;
mod copies;
mod exits;
pub mod fields;
pub mod intercepts;
mod list;
pub mod processor;
mod refusal;
pub mod run;
pub mod soft_state;
pub mod switch;
pub mod table;
pub mod tlb;
pub mod vmcs;

#[cfg(test)]
pub(crate) mod tests;
