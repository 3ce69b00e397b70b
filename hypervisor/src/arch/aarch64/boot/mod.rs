//! The way up, and what each CPU has.

pub(crate) mod cpu;
pub(super) mod features;
mod header;
mod start;
