//! Where the messages of a function go: entries of an interrupt remapping table.

use core::sync::atomic::{AtomicU64, Ordering};
use iommu::amd::table::{InterruptEntry, InterruptTable};
use iommu::vtd::interrupt as vtd;
use iommu::{Command, DeviceId, Stuck};
use pci::msix::Message;

use super::ring::{self, Commands};
use super::vtd::{part, put};
use crate::pages::Pages;

/// Where a function writes to interrupt. The other bits of one that is remapped are in its entry.
pub(crate) const INTERRUPTS_AT: u64 = 0xfee0_0000;

/// Log2 of the number of entries of a function's own table: 512, of which the first 256 can be
/// used, because the other bits of a message's data are its delivery mode.
const ORDER: u8 = 9;

/// A function's entries.
pub(super) enum Remaps {
    /// A table of its own, by AMD-Vi.
    Table(Pages),
    /// Some of the table that all functions behind an IOMMU have, by VT-d: these words, of which
    /// the first entry has this number. No other function can use them.
    Block { words: &'static [AtomicU64], first: u16, source: DeviceId, apics: vtd::LocalApics },
    /// There is no place for any.
    Nowhere,
}

/// A table was changed: its IOMMU is to be told. One that is told first keeps a former entry.
#[derive(Debug)]
#[must_use = "the IOMMU does not know of it"]
pub struct Rewritten(());

/// The proof that an IOMMU uses no interrupt of a device that is not in its table any more.
/// `Rewritten::forgotten` alone makes it, so vectors are not freed before:
///
/// ```compile_fail,E0603
/// let proof = hypervisor::iommu::remaps::Forgotten(iommu::DeviceId(8));
/// ```
#[derive(Debug)]
pub struct Forgotten(DeviceId);

impl Remaps {
    /// A table without interrupts.
    pub(super) fn table() -> Self {
        Self::Table(Pages::new(1))
    }

    /// The function's own table.
    pub(super) const fn own(&self) -> Option<InterruptTable> {
        match self {
            Self::Table(pages) => Some(InterruptTable { address: pages.start(), order: ORDER }),
            Self::Block { .. } | Self::Nowhere => None,
        }
    }

    /// A message interrupts the CPU with this APIC id, by this vector. `None` if there is no such
    /// number.
    pub(super) fn set(&self, number: u16, apic_id: u8, vector: u8) -> Option<Rewritten> {
        match self {
            Self::Table(pages) => {
                let InterruptEntry(entry) = InterruptEntry::fixed(apic_id, vector);
                let word = pages.words().get(usize::from(number) / 2)?;
                let shift = u32::from(number) % 2 * 32;
                let others = word.load(Ordering::Relaxed) & !(0xffff_ffff << shift);
                // Relaxed: the doorbell of the command that tells the IOMMU orders it, as below.
                word.store(others | u64::from(entry) << shift, Ordering::Relaxed);
            }
            Self::Block { words, source, apics, .. } => {
                let place = part(words, 1, number.into())?;
                put(place, vtd::InterruptEntry::fixed(*apics, apic_id, vector, *source).0, [1, 0]);
            }
            Self::Nowhere => return None,
        }
        Some(Rewritten(()))
    }

    /// No interrupt passes any more.
    pub(super) fn clear(&self) -> Rewritten {
        let words = match self {
            Self::Table(pages) => pages.words(),
            Self::Block { words, .. } => words,
            Self::Nowhere => &[],
        };
        words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        Rewritten(())
    }

    /// What the real function writes for a message: the number of its entry.
    pub(super) const fn message(&self, number: u16) -> Message {
        match self {
            Self::Block { first, .. } => Message { address: vtd::message_address(*first | number), data: 0 },
            Self::Table(_) | Self::Nowhere => Message { address: INTERRUPTS_AT, data: number as u32 },
        }
    }
}

impl Rewritten {
    /// Has the IOMMU drop what it keeps of a device's entries, by this command, and waits.
    pub(super) fn forgotten(self, of: DeviceId, queue: &Commands, by: Command) -> Result<Forgotten, Stuck> {
        ring::demand(queue, [by])?;
        Ok(Forgotten(of))
    }

    #[cfg(test)]
    pub(crate) const fn made() -> Self {
        Self(())
    }
}

impl Forgotten {
    /// The device.
    pub const fn device(&self) -> DeviceId {
        self.0
    }

    #[cfg(test)]
    pub(crate) const fn made(device: DeviceId) -> Self {
        Self(device)
    }
}
