//! VMX, as far as five exits: a sketch that keeps [`x86`](crate::x86) free of SVM's formats. It
//! runs on a mock processor alone; what it lacks is said where it is missing.
//!
//! | module | contents |
//! |---|---|
//! | [`vmcs`] | a vCPU's part of the VMCS, as a control block |
//! | [`processor`] | the operations that only a processor with VMX can do, and VMX as a kind of processor |
//! | [`table`] | the table of exits |
//!
//! Sections are those of Intel's SDM, volume 3 (325384), chapters 25 to 28.

pub mod processor;
pub mod table;
pub mod vmcs;

#[cfg(test)]
mod tests;
