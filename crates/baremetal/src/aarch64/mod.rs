//! The parts for Arm64, at EL1.
//!
//! Manuals: Arm Architecture Reference Manual for A-profile (DDI 0487 M.b), Generic Interrupt
//! Controller Architecture Specification (IHI 0069H), PrimeCell UART PL011 (DDI 0183), Power State
//! Coordination Interface (DEN 0022F), SMC Calling Convention (DEN 0028), Semihosting for AArch32
//! and AArch64; the Linux kernel's Documentation/arch/arm64/booting.rst.

pub mod boot;
pub mod clock;
pub mod gic;
pub mod guarded;
pub mod info;
pub mod interrupts;
pub mod pci;
pub mod power;
pub mod processors;
pub mod serial;
pub mod tables;
