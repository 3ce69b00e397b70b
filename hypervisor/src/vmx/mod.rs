//! VMX. It runs on a mock processor alone so far; what it lacks is said where it is missing.
//!
//! Sections are those of Intel's SDM, volume 3 (325384), chapters 25 to 28.

pub mod active;
pub mod block;
pub mod capabilities;
pub mod controls;
mod copies;
mod exits;
pub mod fields;
pub mod intercepts;
pub mod outside;
pub mod processor;
mod refusal;
pub mod run;
pub mod switch;
pub mod table;
pub mod vmcs;

#[cfg(test)]
mod tests;
