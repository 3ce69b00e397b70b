//! Functions of the real machine's PCI that guests own.
//!
//! The guest sees [`pci::Function`]s on its own bus (`devices/pc/pci`, `devices/virt/pci`). After
//! each of its writes the real functions are made to follow.

mod domains;
mod faults;
mod functions;
mod life;
mod machine;
mod platform;
mod registers;
mod slots;
pub(crate) mod tables;
#[cfg(test)]
mod tests;
mod trapped;

pub use crate::vm::refused::Refused;
pub use domains::Domains;
#[cfg(test)]
pub(crate) use faults::Verdict;
pub use functions::{Claim, Functions};
pub use machine::{Bus, DOMAINS_MAX, Given, MachineDevices, buses, nodes};
pub use platform::{
    DeviceOwner, Holding, Interrupts, Iommu, NotAttached, OwnedFunctions, Platform, Translations,
};
pub use registers::{hypervisors_pages, merged};
pub use slots::{Busy, Followed};
