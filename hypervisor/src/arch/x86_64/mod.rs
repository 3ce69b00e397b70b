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
//! | `offer` | what all of this is to the core and to [`crate::amd64`]: their traits |
//! | `svm` | VMRUN and the world switch, single translations, vector registers, what SVM offers |
//!
//! What takes no instruction is in [`crate::amd64`].

mod apic;
mod boot;
pub(super) mod clock;
pub(crate) mod console;
pub(crate) mod cpu;
mod firmware;
mod interrupts;
mod offer;
mod start;
mod svm;
mod tables;
mod translation;
