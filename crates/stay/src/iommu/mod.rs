//! Devices with DMA: what an IOMMU keeps of a machine's translations, and how it drops it.
//!
//! The devices of a machine are one *domain* of the IOMMU, and its number is the tag of what the
//! IOMMU keeps. A device with ATS keeps translations itself.
//!
//! | module | translations of devices |
//! |---|---|
//! | [`nested`] | by the machine's nested tables |
//! | [`smmu`] | by tables of their own, which follow the machine's slots: [`mirror`] |
//!
//! ```text
//! changing processor                            IOMMU and devices
//! A  entries changed                            P  walk the tables, keep what was found
//! B  begin: pages of the domain, a sync         Q  the IOMMU drops them; accesses by them complete
//! C  begin: pages of devices with ATS, a sync   R  the devices drop them
//! D  finish: the last sync is complete          S  report the sync
//! E  free what was unmapped
//! ```
//!
//! * A before B: a walk after Q finds the change. `iommu::Port::set_tail` orders them.
//! * Q before R: until Q the IOMMU may answer a device with what is stale. The sync between B and C
//!   holds the commands behind it back, so no processor waits for it.
//! * S before D before E: `coherence::DeviceTlbs`, which a hypervisor implements by `begin` and
//!   [`finish`].
//!
//! A machine's devices are taken away in this order: their entries of the device table block DMA;
//! `detach`; then the tables may be returned, and the domain may be given to another machine.

pub mod mirror;
pub mod nested;
pub mod smmu;

use ::iommu::{DeviceId, DomainId, Entry, Port, Queue, Stuck, Ticket};

use crate::{Mistake, Mistakes};

/// A device behind the IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub id: DeviceId,
    /// It uses ATS, with this queue depth in its ATS capability.
    pub ats: Option<u8>,
}

/// The devices of one machine. Their entries of the device table name the tables by which they
/// translate, and this domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain<'a> {
    /// Its number. No other machine has it before `detach` has returned.
    pub id: DomainId,
    /// The devices that are attached, or that were since the last `detach`.
    pub devices: &'a [Device],
}

/// Commands that the IOMMU was given, and that are waited for by [`finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "nothing may be freed before it is finished"]
pub struct Begun(Option<Ticket>);

impl Begun {
    /// Nothing was to be dropped.
    pub const NOTHING: Self = Self(None);

    /// For an IOMMU with other commands, which were put in by [`Queue::issue`].
    pub const fn with(ticket: Ticket) -> Self {
        Self(Some(ticket))
    }
}

/// Waits until what was begun is complete: nothing stale is used any more, and accesses by it are
/// visible.
///
/// # Errors
/// [`Stuck`] if the IOMMU does not go on. Nothing may be freed then.
pub fn finish<P: Port + Mistakes, E: AsRef<[Entry]>>(
    queue: &Queue<P, E>,
    Begun(ticket): Begun,
) -> Result<(), Stuck> {
    match ticket {
        Some(ticket) if !queue.port().makes(Mistake::IommuNotWaited) => queue.wait(ticket),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
