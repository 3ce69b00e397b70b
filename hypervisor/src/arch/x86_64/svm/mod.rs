//! SVM: the control block, entering and leaving the guest, and what each exit means.
//!
//! Source for all of it: AMD64 APM volume 2 (24593, rev. 3.42), chapter 15 and appendices B and C.

mod auditor;
mod code_path;
pub(super) mod cpuid;
mod cx16;
mod debug;
mod enter;
pub(super) mod entry;
pub(super) mod exits;
pub(super) mod features;
pub(super) mod fpu;
pub(super) mod inject;
pub(super) mod instruction;
pub(super) mod invalidate;
mod mmio;
pub(super) mod msr;
pub(super) mod nested;
pub(super) mod state;
pub(super) mod step;
pub(super) mod string_port;
pub(super) mod vmcb;
