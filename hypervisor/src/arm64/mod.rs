//! The part of the hypervisor on Arm64 that needs no Arm64 processor: all decisions about guests,
//! and their consequences. The operations that need a processor are the functions of [`processor`],
//! which `arch/aarch64` implements.

#[macro_use]
pub mod controls;
#[macro_use]
pub mod vcpu;
pub mod arch_impl;
pub mod audit;
pub mod el2_stage1;
pub mod exits;
pub mod guest;
#[cfg(test)]
mod mock;
pub mod processor;
