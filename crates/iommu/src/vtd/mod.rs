//! VT-d in legacy mode: descriptors, the root and context tables, interrupt remapping, faults.
//!
//! ```text
//! pages(domain, depth, range, commands_max)   descriptors for what a change left stale
//!   Queue::issue(descriptors)                 with one wait descriptor behind them
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`registers`] | offsets and bits of registers |
//! | [`capability`] | what an IOMMU must be able to do, and what it can besides |
//! | [`command`] | descriptors of the invalidation queue |
//! | [`table`] | entries of the root and context tables |
//! | [`interrupt`] | entries of the interrupt remapping table, and the messages that name them |
//! | [`fault`] | the fault recording registers |
//! | [`dmar`] | the ACPI table: where IOMMUs are, and which devices are behind them |
//!
//! The processor's extended page tables are the IOMMU's second level as well: rights to read and to
//! write, the bit of a large page and the address are at the same places, and each ignores what
//! only the other one reads. There is one difference: an entry that allows stores alone is a
//! misconfiguration to the processor, and a translation to the IOMMU. So tables that an IOMMU walks
//! have none.
//!
//! Scalable mode, PASIDs, page requests, posted interrupts and tables of the first level are not
//! used.
//!
//! Source: Intel Virtualization Technology for Directed I/O, Architecture Specification, D51397,
//! revision 4.1: chapters 3 "DMA Remapping", 5 "Interrupt Remapping", 6 "Caching Translation
//! Information", 7 "Translation Faults", 8 "BIOS Considerations", 9 "Translation Structure
//! Formats", 11 "Register Descriptions".

pub mod capability;
pub mod command;
pub mod dmar;
pub mod fault;
pub mod interrupt;
pub mod registers;
pub mod table;

#[cfg(all(test, not(loom)))]
mod tests;

pub use capability::{Capabilities, Unusable};
pub use command::Commands;
pub use fault::Fault;
