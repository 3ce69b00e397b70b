//! IOMMUs, as one more place that keeps translations: their command queues, and the encodings of
//! their commands, tables and events.
//!
//! A device with an IOMMU translates its DMA by a page table, and the IOMMU keeps the translations
//! that it has used (the IOTLB). Memory that was unmapped may be reused when the processors *and*
//! every IOMMU have forgotten it. An IOMMU forgets when it is told so by a command in a ring in
//! memory, and says when it has, also by a command. [`Queue`] is that ring: any number of CPUs put
//! commands in, one completion serves all that were put in before it, and whoever need not wait
//! does not.
//!
//! | module | contents |
//! |---|---|
//! | [`queue`] | the ring, for AMD-Vi and SMMUv3 alike, and the order of its events |
//! | [`amd`] | AMD-Vi: registers, commands, ranges, device table, page-table entries, event log |
//! | [`smmu`] | SMMUv3: registers and start, commands, ranges, stream table, context descriptors, events |
//!
//! Nothing here accesses a device: [`Port`] is the device's side, which the caller implements. The
//! crate neither allocates nor contains unsafe code.
#![no_std]
// The model makes promises to the flush engine, by traits that are unsafe to implement.
#![cfg_attr(not(loom), forbid(unsafe_code))]
#![cfg_attr(loom, deny(unsafe_code))]

#[cfg(any(test, loom))]
extern crate std;

pub mod amd;
mod blocks;
mod bytes;
#[cfg(all(test, loom))]
mod model;
pub mod queue;
pub mod scope;
pub mod smmu;
mod sync;

/// A device: segment-local bus, device and function, as in PCI's requester id. An SMMU's stream is
/// one of these from a first number on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceId(pub u16);

/// The tag of the translations of devices that share a page table: AMD-Vi's domain, an SMMU's ASID.
/// 0 is not used: entries without translation have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainId(pub u16);

pub use queue::{Command, Entry, Port, Queue, Stuck, Ticket};
