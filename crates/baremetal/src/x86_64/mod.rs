//! The parts for x86-64.

pub mod apic;
pub mod boot;
pub mod clock;
mod efi;
pub mod firmware;
pub mod guarded;
pub mod hypercall;
pub mod info;
pub mod interrupts;
pub mod keyboard;
#[doc(hidden)]
pub mod linux;
pub mod pci;
pub mod power;
pub mod processors;
pub mod screen;
pub mod serial;
pub mod tables;
