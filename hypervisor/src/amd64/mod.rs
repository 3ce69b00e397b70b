//! What AMD64's manuals say of events, of privileges and of intercepts, as plain values: `arch::x86_64::svm` does what comes out here.
//!
//! Sections are those of the AMD64 APM volume 2 (24593, rev. 3.42) if nothing else is said.

pub mod audit;
pub mod checks;
pub mod event;
pub mod intercepts;
pub mod nmi;

/// CR0.PE: protected mode.
pub const CR0_PE: u64 = 1;
/// EFER.LMA: long mode.
pub const EFER_LMA: u64 = 1 << 10;
/// RFLAGS.NT: the task is nested, IRET goes back to the one before.
pub const RFLAGS_NT: u64 = 1 << 14;
/// RFLAGS.RF: no breakpoint at the next instruction.
pub const RFLAGS_RF: u64 = 1 << 16;
/// RFLAGS.VM: virtual-8086 mode.
pub const RFLAGS_VM: u64 = 1 << 17;
