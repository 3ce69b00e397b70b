//! The hypervisor on AMD64 with SVM.
//!
//! | module | what it holds |
//! |---|---|
//! | `boot` | entry code of the first CPU and of the others |
//! | `start` | the order in which everything is brought up |
//! | `memory` | RAM regions, heap, the hypervisor's own page tables |
//! | `firmware` | what ACPI says: CPUs, interrupt controllers, timer |
//! | `flush` | flush hypercalls through the engine |
//! | `percpu` | the block of each CPU: stacks with guard pages, per-CPU data |
//! | `tables` | GDT, TSS, IDT |
//! | `interrupts` | vectors and their handlers |
//! | `apic` | local APIC and I/O APIC of the real machine |
//! | `clock` | TSC calibration, the one-shot timer |
//! | `control` | requests of the host tool |
//! | `console` | log output, the real serial ports behind the guest's |
//! | `overlay` | pages laid over guest memory |
//! | `panic` | the report and how the run ends |
//! | `rom` | the memory behind the guest's expansion ROM |
//! | `slot_memory` | the memory behind slots that come and go |
//! | `space` | changes of the guest's memory |
//! | `svm` | VMCB, entry and exit |
//! | `machine` | the one virtual machine and everything shared by its vCPUs |
//! | `run` | the loop that each CPU runs for ever |

mod apic;
mod boot;
mod clock;
mod console;
mod control;
mod firmware;
mod flush;
mod interrupts;
mod machine;
mod memory;
mod overlay;
mod panic;
mod percpu;
mod rom;
mod run;
mod slot_memory;
mod space;
mod start;
mod svm;
mod tables;
