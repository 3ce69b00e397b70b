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
//! | [`queue`] | the ring, for all of them alike, and the order of its events |
//! | [`scope`] | which devices are behind an IOMMU |
//! | [`amd`] | AMD-Vi: registers, commands, ranges, device table, page-table entries, event log |
//! | [`smmu`] | SMMUv3: registers and start, commands, ranges, stream table, context descriptors, events |
//! | [`vtd`] | VT-d: the same for Intel's, in legacy mode |
//!
//! Nothing here accesses a device: [`Port`] is the device's side, which the caller implements. The
//! crate neither allocates nor contains unsafe code.
#![no_std]
// The model makes promises to the flush engine, by traits that are unsafe to implement.
#![cfg_attr(not(loom), forbid(unsafe_code))]
#![cfg_attr(loom, deny(unsafe_code))]

#[cfg(any(test, loom))]
extern crate std;

use core::ops::Range;

pub mod amd;
mod blocks;
mod bytes;
#[cfg(all(test, loom))]
mod model;
pub mod queue;
pub mod scope;
pub mod smmu;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;
pub mod vtd;

/// A device: segment-local bus, device and function, as in PCI's requester id. An SMMU's stream is
/// one of these from a first number on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceId(pub u16);

/// The tag of the translations of devices that share a page table: AMD-Vi's domain, an SMMU's ASID.
/// 0 is not used: entries without translation have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainId(pub u16);

/// The commands of an IOMMU that goes by the processors' own nested tables.
pub trait Invalidations {
    /// The device's entry of the device table has changed; the former one, if it was no block, had
    /// this domain.
    fn device(&self, device: DeviceId, former: DomainId) -> Command;

    /// The commands that drop a domain's translations of `range`, a range of device-visible
    /// addresses in bytes; none if it is empty. Its ends are widened to pages of 4 KiB.
    ///
    /// There are at most `commands_max` of them, and one at least. As many as are needed to name no
    /// other page if they suffice, otherwise one for the smallest block around the range.
    fn pages(
        &self,
        domain: DomainId,
        depth: Depth,
        range: Range<u64>,
        commands_max: usize,
    ) -> impl Iterator<Item = Command>;

    /// The command that drops the translations of `range` in the device itself; `None` if it is
    /// empty. For a device that uses ATS, after the completion of [`pages`](Self::pages): until
    /// then the IOMMU may answer the device with what is stale. `queue_depth` is from the device's
    /// ATS capability.
    ///
    /// It is one command for the smallest block around the range, since a device answers each.
    fn device_pages(&self, device: DeviceId, queue_depth: u8, range: Range<u64>) -> Option<Command>;
}

pub use blocks::Depth;
pub use queue::{Command, Entry, Port, Queue, Stuck, Ticket};
