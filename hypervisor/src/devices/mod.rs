//! The guest's platform devices: plain state, effects returned as values.
//!
//! No device touches hardware, takes a lock or knows which CPU runs it. A register access returns what
//! must happen elsewhere (an interrupt message to deliver, a byte to transmit, a power event, memory to be
//! added or removed); the caller performs it.
//!
//! | module | device | who owns it |
//! |---|---|---|
//! | [`lapic`] | one local APIC | the CPU that runs the vCPU |
//! | [`inbox`] | what others post to a vCPU's local APIC | shared, lock-free |
//! | [`platform`] | the ports and the I/O APIC of one VM, which it puts together | the VM, under a lock |
//! | [`ioapic`], [`uart16550`], [`pci`], [`cmos`], [`pit`], [`power`] | the parts of [`platform`] | |
//! | [`gic`] | Arm64's interrupt controller: per vCPU, inbox, distributor | see there |
//! | [`pl011`], [`pl031`] | Arm64's serial port and clock | the VM, under a lock |
//! | [`wall_clock`] | the date, for the clocks of both | constant |
//! | [`psci`] | Arm64's power calls, and whether a vCPU is on | shared, lock-free |
//! | [`fdt`], [`virt_map`] | Arm64's device tree, and where its devices lie | built once; constant |
//! | [`acpi`] | the tables that describe all of this to the guest | built once |
//! | [`region`] | which addresses are devices' | constant |
//! | [`apic_ids`] | which vCPU has which APIC id | constant |

pub mod acpi;
pub mod apic_ids;
pub mod cmos;
pub mod fdt;
pub mod gic;
pub mod inbox;
pub mod ioapic;
pub mod lapic;
pub mod message;
pub mod pci;
pub mod pit;
pub mod pl011;
pub mod pl031;
pub mod platform;
pub mod power;
pub mod psci;
pub mod region;
pub mod uart16550;
pub mod virt_map;
pub mod wall_clock;

/// The access raises #GP(0) in the guest, and has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneralProtection;
