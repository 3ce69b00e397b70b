//! AMD64 guests with SVM: everything that needs no instruction of the processor. It compiles for
//! the host and is tested there with a mock processor.
//!
//! | module | contents |
//! |---|---|
//! | `audit`, `auditor` | the auditor of entries, and a vCPU's part of it |
//! | `checks` | the checks that a processor makes before it executes an intercepted instruction |
//! | `code_path` | a vCPU's last walks to its code |
//! | `cpuid` | the CPUID that a guest is shown |
//! | `debug` | breakpoint addresses |
//! | `deliver` | delivery of interrupt messages to vCPUs |
//! | `enter` | preparation before VMRUN, and clean-up afterwards |
//! | `event` | events in the VMCB's format |
//! | `exits` | the meaning of each exit |
//! | `features` | SVM features |
//! | `flush` | services for hypercalls |
//! | `fpu` | floating-point and vector state |
//! | `guest` | the state that vCPUs share |
//! | `inject` | injection of events into the guest |
//! | `instruction` | the instruction that caused an exit, and the translation of its addresses |
//! | `intercepts` | the events that a guest exits on |
//! | `iommu` | the driver of AMD-Vi |
//! | `messages` | interrupts of the machine's PCI functions that guests own |
//! | `msr` | model-specific registers |
//! | `nmi`, `step` | NMIs, and the step over the IRET that ends their handler |
//! | `overlay` | pages that overlay guest memory |
//! | `processor` | the trait of processor operations that all of this is generic over |
//! | `registers` | general registers |
//! | `rom` | the memory behind the guest's expansion ROM |
//! | `routes` | where those interrupts go: from the machine's vector to the guest's message |
//! | `signals` | a vCPU's external events: signals, vectors, timers |
//! | `state` | a vCPU's private state |
//! | `vectors` | the real machine's vectors |
//! | `vmcb` | the control block |
//!
//! Sections are those of the AMD64 APM volume 2 (24593, rev. 3.42) unless noted otherwise.

pub mod audit;
pub mod auditor;
pub mod checks;
pub mod code_path;
pub mod cpuid;
pub mod debug;
pub mod deliver;
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
pub mod iommu;
pub mod messages;
pub mod msr;
pub mod nmi;
#[cfg(any(test, all(target_os = "none", target_arch = "x86_64")))]
pub(crate) mod offer;
pub mod overlay;
pub mod processor;
pub mod registers;
pub mod rom;
pub mod routes;
pub mod signals;
pub mod state;
pub mod step;
pub mod vectors;
pub mod vmcb;

#[cfg(test)]
mod tests;

pub use processor::Amd64;

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
