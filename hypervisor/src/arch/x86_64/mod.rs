//! The hypervisor on AMD64 with SVM.
//!
//! | module | contents |
//! |---|---|
//! | `boot` | entry code of the first CPU and of the others |
//! | `start` | the start-up sequence |
//! | `translation` | the hypervisor's own page tables |
//! | `tables` | the stacks on which gates of the IDT run |
//! | `interrupts` | vectors and their handlers |
//! | `clock` | TSC calibration, the one-shot timer |
//! | `console` | the log's port, the real serial ports behind the guest's |
//! | `cpu` | the CPU itself: waiting, stacks, the end of the run |
//! | `cx16` | the exchange of 16 bytes |
//! | `fpu` | floating-point and vector registers |
//! | `offer` | implements the traits of the core and of [`crate::svm`] |
//! | `pci` | the machine's PCI bus and its IOMMUs |
//! | `svm` | VMRUN and the world switch, single translations, vector registers, SVM features |
//!
//! Code that needs no special instruction is in [`crate::svm`]. Entry code, descriptor tables,
//! interrupt stubs, APICs, ACPI and serial ports are [`baremetal`]'s.

mod boot;
pub(super) mod clock;
pub(crate) mod console;
pub(crate) mod cpu;
mod cx16;
mod fpu;
mod interrupts;
mod offer;
mod pci;
mod start;
mod svm;
mod tables;
mod translation;

use baremetal::x86_64::apic;
