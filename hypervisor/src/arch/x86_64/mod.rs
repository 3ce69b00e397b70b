//! The hypervisor on AMD64 with SVM.
//!
//! | module | what it holds |
//! |---|---|
//! | `boot` | entry code of the first CPU and of the others |
//! | `start` | the order in which everything is brought up |
//! | `translation` | the hypervisor's own page tables |
//! | `firmware` | what ACPI says: CPUs, interrupt controllers, timer |
//! | `tables` | GDT, TSS, IDT |
//! | `interrupts` | vectors and their handlers |
//! | `apic` | local APIC and I/O APIC of the real machine |
//! | `clock` | TSC calibration, the one-shot timer |
//! | `console` | the log's port, the real serial ports behind the guest's |
//! | `cpu` | the CPU itself: waiting, stacks, the end of the run |
//! | `guest` | what the vCPUs share |
//! | `offer` | what all of this is to the core: its traits |
//! | `flush` | flush hypercalls and changes of guest memory through the engine |
//! | `overlay` | pages laid over guest memory |
//! | `rom` | the memory behind the guest's expansion ROM |
//! | `svm` | VMCB, entry and exit |
//! | `vcpu` | what a CPU needs to run a vCPU, and what comes to one from outside |

mod apic;
mod boot;
mod clock;
pub(crate) mod console;
pub(crate) mod cpu;
mod firmware;
mod flush;
mod guest;
mod interrupts;
mod offer;
mod overlay;
mod rom;
mod start;
mod svm;
mod tables;
mod translation;
mod vcpu;

pub(crate) use offer::Local;

/// One of the core's vCPUs.
type Vcpu = crate::vm::Vcpu<Local>;
/// A change of a guest's memory.
type SpaceJob<'a> = crate::vm::space::SpaceJob<'a, Local>;
