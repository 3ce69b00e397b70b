//! The start-up, and each CPU's own setup.

pub(crate) mod cpu;
pub(super) mod features;
mod header;
mod start;
