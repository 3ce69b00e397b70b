//! The hypervisor on AMD64 with SVM.
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
