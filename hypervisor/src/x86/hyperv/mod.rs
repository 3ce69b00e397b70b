//! The Hyper-V-compatible interface of the guest's platform: CPUID leaves, synthetic registers,
//! synthetic timers, lazy end of interrupt, and hypercalls.
//!
//! Everything here is state with effects returned as values. Nothing touches guest memory, the
//! local APIC or a clock: the vCPU loop passes times in, performs the returned effects, and thereby
//! decides about locks and ordering. Times are those of the *partition's TSC*: the value that RDTSC
//! returns on every virtual processor as long as the guest has not written to its TSC. It goes on
//! when the guest moves to another machine; a [`Vp`] knows how far the machine's is behind.
//!
//! The interface is Microsoft's *Hypervisor Top Level Functional Specification* (TLFS); only
//! working features are offered. There is no synthetic interrupt controller, no messages, no VMBus.

pub mod cpuid;
pub mod crash;
#[cfg(any(test, feature = "defects"))]
pub mod defects;
pub mod eoi_assist;
pub mod hypercall;
pub mod msrs;
pub mod partition;
pub mod stimer;
pub mod time;
pub mod vp;

pub use cpuid::{CpuidResult, PartitionTraits};
pub use hypercall::{CallOutcome, Caller, PROFILE, Services};
pub use msrs::{CrashReport, GpFault, MsrEffect, MsrRead, PageMove};
pub use partition::Partition;
pub use vp::Vp;
