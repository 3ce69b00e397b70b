//! AMD64 guests with SVM: everything that takes no instruction of a processor, so that it compiles
//! for the host and is tested there with a processor that is made up.
//!
//! | module | what it holds |
//! |---|---|
//! | `audit`, `auditor` | the auditor of entries, and a vCPU's part of it |
//! | `checks` | what a processor checks before it executes an instruction that is intercepted |
//! | `code_path` | a vCPU's last walks to its code |
//! | `cpuid` | what a guest is shown of the processor |
//! | `debug` | breakpoint addresses |
//! | `enter` | what is prepared before VMRUN, and what is put in order afterwards |
//! | `event` | events as the VMCB holds them |
//! | `exits` | what each exit means |
//! | `features` | what SVM offers |
//! | `flush` | what hypercalls ask for |
//! | `fpu` | floating-point and vector state |
//! | `guest` | what the vCPUs share |
//! | `inject` | how events get into the guest |
//! | `instruction` | the instruction that caused an exit, and where its addresses lead |
//! | `intercepts` | what a guest exits on |
//! | `msr` | model-specific registers |
//! | `nmi`, `step` | NMIs, and the step over the IRET that ends their handler |
//! | `overlay` | pages laid over guest memory |
//! | `processor` | what only a processor can do: the trait that all of this is generic over |
//! | `registers` | general registers |
//! | `rom` | the memory behind the guest's expansion ROM |
//! | `signals` | what comes to a vCPU from outside: signals, vectors, timers |
//! | `state` | a vCPU's private state |
//! | `vmcb` | the control block |
//!
//! Sections are those of the AMD64 APM volume 2 (24593, rev. 3.42) if nothing else is said.

pub mod audit;
pub mod auditor;
pub mod checks;
pub mod code_path;
pub mod cpuid;
pub mod debug;
pub mod enter;
pub mod event;
pub mod exits;
pub mod features;
pub mod flush;
pub mod fpu;
pub mod guest;
pub mod inject;
pub mod instruction;
pub mod intercepts;
pub mod msr;
pub mod nmi;
#[cfg(any(test, all(target_os = "none", target_arch = "x86_64")))]
pub(crate) mod offer;
pub mod overlay;
pub mod processor;
pub mod registers;
pub mod rom;
pub mod signals;
pub mod state;
pub mod step;
pub mod vmcb;

#[cfg(test)]
mod tests;

pub use processor::Amd64;

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
