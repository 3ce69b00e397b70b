//! The hypervisor on x86-64, with SVM or VMX.
//!
//! Code that needs no special instruction is in [`crate::svm`] and [`crate::vmx`]. Entry code,
//! descriptor tables, interrupt stubs, APICs, ACPI and serial ports are [`baremetal`]'s.

mod boot;
pub(super) mod clock;
pub(crate) mod console;
mod cost;
pub(crate) mod cpu;
mod cx16;
mod features;
mod fpu;
mod general;
mod interrupts;
mod ops;
mod pci;
mod start;
mod svm;
mod tables;
mod translation;
mod vmx;

use baremetal::x86_64::apic;

use crate::image::Processor;
use crate::svm::vendor::OnSvm;
use crate::vmx::processor::OnVmx;

// Where it does not matter, there is none.
impl crate::image::Kind for Processor {}
crate::image::kinds!(OnSvm<Processor>, OnVmx<Processor>);
