//! VMX, as far as five exits: a sketch that keeps [`x86`](crate::x86) free of SVM's formats. It
//! runs on a mock processor alone; what it lacks is said where it is missing.
//!
//! Sections are those of Intel's SDM, volume 3 (325384), chapters 25 to 28.

pub mod processor;
pub mod table;
pub mod vmcs;

#[cfg(test)]
mod tests;
