//! The devices of an x86-64 guest.
//!
//! | module | device | owner |
//! |---|---|---|
//! | [`lapic`] | one local APIC | the CPU that runs the vCPU |
//! | [`inbox`] | other CPUs' posts to a vCPU's local APIC | shared, lock-free |
//! | [`message`] | interrupt messages between local APICs and I/O APIC | values |
//! | [`platform`] | the ports and the I/O APIC of one VM, combined | the VM, under a lock |
//! | [`ioapic`], [`pci`], [`cmos`], [`pit`], [`power`] | the parts of [`platform`] | |
//! | [`acpi`] | the tables that describe all of this to the guest | built once |
//! | [`apic_ids`] | the APIC ids of vCPUs | constant |

pub mod acpi;
pub mod apic_ids;
pub mod cmos;
pub mod inbox;
pub mod ioapic;
pub mod lapic;
pub mod message;
pub mod pci;
pub mod pit;
pub mod platform;
pub mod power;
