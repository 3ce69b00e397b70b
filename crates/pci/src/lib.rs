//! PCI functions that a guest owns.
//!
//! A guest drives a function of the real machine itself. It reaches the function's memory without
//! exits, and the function reaches the guest's memory through an IOMMU. Configuration space is
//! another matter: with it a guest could move the function's memory over that of others, or send
//! interrupts to any vector. So the guest sees a configuration space, and a table of MSI-X, that
//! exist here only. The caller reads from them what the real function must do.
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | addresses of functions, and access to configuration space as a trait |
//! | [`physical`] | a function of the real machine: identity, BARs, capabilities; all buses |
//! | [`group`] | which functions must belong to the same guest |
//! | [`reset`] | how a function is reset, step by step |
//! | [`function`] | the configuration space that the guest sees |
//! | [`msix`] | the table of MSI-X that the guest sees, and entries of the real one |
//!
//! Everything is state: nothing here touches a device, except through [`ConfigSpace`], which the
//! caller implements. The crate neither allocates nor contains unsafe code.
//!
//! # Guarantees
//!
//! * No value that a device or a guest chooses leads to a panic or to a loop without bound.
//! * What a guest writes never changes what its function is: identity, sizes of BARs, list of
//!   capabilities.
//! * [`Function::bars`] names ranges inside the caller's windows only, which do not overlap.
//! * [`Function::vector`] names messages only that the guest has enabled and not masked. Their
//!   addresses and data are the guest's words: the caller translates them, and never gives them to
//!   the real function.
//! * The guest reaches no byte of the real table of MSI-X, if the caller traps
//!   [`Function::trapped`].
//! * The real machine is written to by [`physical::Physical::read`], which sizes BARs and restores
//!   them, [`group::isolate`], [`reset::Reset::step`], and the real interrupts'
//!   [`physical::Msi::send`] and [`physical::Msix::control`]. Everything else only reads.
//!
//! # Sources
//!
//! "PCI" is the PCI Local Bus Specification, revision 3.0; "PCIe" is the PCI Express Base
//! Specification, revision 5.0; "PM" is the PCI Bus Power Management Interface Specification,
//! revision 1.2; "virtio" is Virtual I/O Device, version 1.2.
//!
//! # The library `pci_types`
//!
//! Classes and the bits of the command register come from `pci_types`. Its parsers of headers, BARs
//! and capabilities do not fit, for three reasons. Its access trait consists of unsafe functions,
//! which a crate without unsafe code cannot implement. It follows a list of capabilities that loops
//! for ever. And it sizes BARs while they are decoded.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "mock"))]
extern crate std;

pub mod config;
pub mod function;
pub mod group;
#[cfg(any(test, feature = "mock"))]
pub mod mock;
pub mod msix;
pub mod physical;
pub mod reset;

pub use config::{Address, ConfigSpace};
pub use function::Function;
pub use msix::Message;
pub use physical::Physical;
