//! Guests of the x86-64 instruction set, whatever virtualizes the processor: what they are shown,
//! what their instructions do, the Hyper-V interface.
//!
//! Sections are those of the AMD64 APM volume 2 (24593, rev. 3.42) unless noted otherwise.

#[cfg(not(loom))]
pub mod arch_impl;
#[cfg(not(loom))]
pub mod cpuid;
pub mod emulator;
#[cfg(not(loom))]
pub mod enter;
#[cfg(not(loom))]
pub mod exits;
#[cfg(not(loom))]
pub mod guest;
pub mod hyperv;
#[cfg(not(loom))]
pub mod processor;
#[cfg(test)]
mod tests;
#[cfg(not(loom))]
pub mod vcpu;
#[cfg(not(loom))]
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
/// EFER.SCE: SYSCALL and SYSRET.
pub const EFER_SCE: u64 = 1;
/// EFER.LME: long mode once paging is on.
pub const EFER_LME: u64 = 1 << 8;
/// EFER.NXE: pages without execution.
pub const EFER_NXE: u64 = 1 << 11;
/// EFER.FFXSR: faster FXSAVE.
pub const EFER_FFXSR: u64 = 1 << 14;
/// CR4.PSE: pages of 4 MiB.
pub const CR4_PSE: u64 = 1 << 4;
/// CR4.PAE: entries of 64 bits.
pub const CR4_PAE: u64 = 1 << 5;
/// CR4.PCIDE: address spaces have identifiers.
pub const CR4_PCIDE: u64 = 1 << 17;
/// CR0.PG: paging.
pub const CR0_PG: u64 = 1 << 31;
/// CR0's bits that are not reserved: PE, MP, EM, TS, ET, NE; WP, AM; NW, CD, PG.
pub const CR0_DEFINED: u64 = 0xe005_003f;
/// RFLAGS.TF: single step.
pub const RFLAGS_TF: u64 = 1 << 8;
/// RFLAGS.IF: interrupts are taken.
pub const RFLAGS_IF: u64 = 1 << 9;

/// DR6: a breakpoint of DR0 to DR3 was hit.
pub const DR6_BREAKPOINTS: u64 = 0xf;
/// DR6: single step.
pub const DR6_SINGLE_STEP: u64 = 1 << 14;
