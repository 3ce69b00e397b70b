//! Functions of the real machine's PCI that guests own.
//!
//! | module | contents |
//! |---|---|
//! | `machine` | all functions and IOMMUs, and who owns what |
//! | `domains` | the IOMMUs of one guest's functions |
//! | `faults` | what IOMMUs report of functions |
//! | `platform` | what differs between architectures: IOMMUs and interrupts |
//! | `functions` | one guest's functions: what the guest wants, and what the real ones do |
//! | `registers` | which of their registers the hypervisor maps for itself |
//! | `slots` | their registers among the guest's memory slots |
//! | `tables` | memory that IOMMUs read and write |
//! | `trapped` | accesses to registers that are not mapped |
//! | `life` | reset, attachment, return |
//! | `shared` | functions that are made up, for memory that guests share |
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
mod shared;
mod slots;
pub(crate) mod tables;
mod trapped;

pub use crate::vm::refused::Refused;
pub use domains::Domains;
#[cfg(test)]
pub(crate) use faults::Verdict;
pub use functions::{Claim, Functions};
pub use machine::{Bus, DOMAINS_MAX, Given, MachineDevices, buses, nodes};
pub use platform::{DeviceOwner, Interrupts, Iommu, NotAttached, OwnedFunctions, Platform, Translations};
pub use registers::{hypervisors_pages, merged};
pub use slots::{Busy, Followed};
