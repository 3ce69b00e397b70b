//! AMD-Vi: commands, ranges, the device table, entries of page tables, and the event log.
//!
//! ```text
//! pages(domain, depth, range, commands_max)   commands for what a change left stale
//!   Queue::issue(commands)                    with one COMPLETION_WAIT behind them
//! device_pages(device, range)                 where the device keeps translations (ATS); with a
//!                                             COMPLETION_WAIT of their own, after that of the others;
//!                                             then the event log, for devices that did not answer
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`registers`] | offsets and bits of registers, and what an IOMMU has |
//! | [`command`] | encodings of commands |
//! | [`range`](mod@range) | the commands for ranges of addresses |
//! | [`table`] | entries of the device table and of page tables |
//! | [`event`] | entries of the event log |
//! | [`registers`] | the registers |
//! | [`ivrs`] | the ACPI table: where IOMMUs are, and which devices are behind them |
//!
//! Nested page tables of the processor (AMD64) can be the IOMMU's as well: the bits that only the
//! IOMMU reads are ignored by the processor ([`table::page_bits`]). Then a change is one store for
//! both, and only the invalidations are two.
//!
//! Guest page tables (PASIDs) and peripheral page requests are not used.
//!
//! Source: AMD I/O Virtualization Technology (IOMMU) Specification, 48882, revision 3: 2.2.2
//! "Device Table", 2.2.3 "I/O Page Tables for Host Translations", 2.4 "Commands", 2.5 "Event
//! Logging", 3.4 "IOMMU MMIO Registers". Positions of fields were compared with Linux
//! (`amd_iommu_types.h`) and QEMU (`amd_iommu.c`).

pub mod command;
pub mod event;
pub mod ivrs;
pub mod range;
pub mod registers;
pub mod table;

#[cfg(all(test, not(loom)))]
mod tests;

pub use crate::blocks::Depth;
pub use event::Event;
pub use range::Commands;
