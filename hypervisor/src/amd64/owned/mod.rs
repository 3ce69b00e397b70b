//! Functions of the real machine's PCI that guests own.
//!
//! | module | contents |
//! |---|---|
//! | `machine` | all functions and IOMMUs, and who owns what |
//! | `routes` | interrupts of owned functions: from the machine's vector to the guest's message |
//! | `domains` | the IOMMUs of one guest's functions |
//! | `functions` | one guest's functions: what the guest wants, and what the real ones do |
//! | `slots` | their registers among the guest's memory slots |
//! | `trapped` | accesses to registers that are not mapped |
//! | `life` | reset, attachment, return |
//!
//! The guest sees [`pci::Function`]s on its own bus (`devices/pc/pci`). After each of its writes
//! the real functions are made to follow.

mod domains;
mod functions;
mod life;
mod machine;
mod routes;
mod slots;
mod trapped;

pub use domains::Domains;
pub use functions::{Claim, Functions};
pub use machine::{Bus, MachineDevices, Refused};
pub use routes::{Deliver, VECTORS};
