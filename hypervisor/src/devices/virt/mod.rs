//! The devices of an Arm64 guest.
//!
//! | module | device | owner |
//! |---|---|---|
//! | [`gic`] | the interrupt controller: per vCPU, inbox, distributor | see there |
//! | [`pl011`], [`pl031`] | serial port and clock | the VM, under a lock |
//! | [`pci`] | functions of the machine that the guest owns | the VM, under a lock |
//! | [`psci`] | power calls, and whether a vCPU is on | shared, lock-free |
//! | [`fdt`], [`map`] | the device tree, and the addresses of the devices | built once; constant |

pub mod fdt;
pub mod gic;
pub mod map;
pub mod pci;
pub mod pl011;
pub mod pl031;
pub mod psci;

#[cfg(test)]
mod tests;
