//! The stand-in for the hypervisor: it connects the crates under test like the real one, and can be
//! told to make [mistakes](crate::bug::Bug).

mod cpu;
mod device;
mod fault;
mod flush;
mod guest;
mod guest_flush;
mod guest_tables;
mod host;
mod life;
mod migrate;
mod mirror;
mod processor;
mod ring;
mod vm;

pub(crate) use cpu::run_cpu;
pub(crate) use device::{Behind, all as all_devices, run_device};
pub(crate) use host::run_host;
pub(crate) use life::{Row, check_end};
pub(crate) use ring::{Ring, run_iommu};
pub(crate) use vm::{Architecture, Heritage};
