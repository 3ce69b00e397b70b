//! Guests of the x86-64 instruction set, whatever virtualizes the processor: what they are shown,
//! what their instructions do, the Hyper-V interface.
//!
//! | module | contents |
//! |---|---|
//! | [`cpuid`] | the CPUID that a guest is shown |
//! | [`emulator`] | instructions that access devices |
//! | [`exits`] | the meaning of each exit |
//! | [`guest`] | the state that vCPUs share: pages that overlay memory, interrupt messages, flushes |
//! | [`hyperv`] | the Hyper-V interface |
//! | [`vcpu`] | the state of a vCPU: registers, events, the instruction that caused an exit |
//! | [`vectors`] | the real machine's vectors |
//!
//! Sections are those of the AMD64 APM volume 2 (24593, rev. 3.42) unless noted otherwise.

#[cfg(not(loom))]
pub mod cpuid;
pub mod emulator;
#[cfg(not(loom))]
pub mod exits;
#[cfg(not(loom))]
pub mod guest;
pub mod hyperv;
#[cfg(not(loom))]
pub mod vcpu;
pub mod vectors;

/// CR0.PE: protected mode.
pub const CR0_PE: u64 = 1;
/// EFER.LMA: long mode.
pub const EFER_LMA: u64 = 1 << 10;
/// RFLAGS.NT: the task is nested, IRET returns to the previous one.
pub const RFLAGS_NT: u64 = 1 << 14;
/// RFLAGS.RF: no breakpoint at the next instruction.
pub const RFLAGS_RF: u64 = 1 << 16;
/// RFLAGS.VM: virtual-8086 mode.
pub const RFLAGS_VM: u64 = 1 << 17;
