//! Identification of an Arm64 machine, and operands of its TLB maintenance.

mod operand;
mod processor;

pub use operand::{PAGES_MAX, Range, page};
pub use processor::{Identity, TlbFeatures};
