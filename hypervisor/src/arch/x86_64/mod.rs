//! The hypervisor on AMD64 with SVM.
//!
//! | module | what it holds |
//! |---|---|
//! | `boot` | entry code of the first CPU and of the others |
//! | `start` | the order in which everything is brought up |
//! | `translation` | the hypervisor's own page tables |
//! | `tables` | the stacks on which gates of the IDT run |
//! | `interrupts` | vectors and their handlers |
//! | `clock` | TSC calibration, the one-shot timer |
//! | `console` | the log's port, the real serial ports behind the guest's |
//! | `cpu` | the CPU itself: waiting, stacks, the end of the run |
//! | `offer` | what all of this is to the core and to [`crate::amd64`]: their traits |
//! | `svm` | VMRUN and the world switch, single translations, vector registers, what SVM offers |
//!
//! What takes no instruction is in [`crate::amd64`]. Entry code, descriptor tables, interrupt
//! stubs, APICs, ACPI and serial ports are [`baremetal`]'s.

mod boot;
pub(super) mod clock;
pub(crate) mod console;
pub(crate) mod cpu;
mod interrupts;
mod offer;
mod start;
mod svm;
mod tables;
mod translation;

use baremetal::x86_64::apic;
