//! The interrupt remapping table of a function.

use core::sync::atomic::Ordering;
use iommu::amd::table::{InterruptEntry, InterruptTable};

use crate::pages::Pages;

/// Log2 of its number of entries: 512, of which the first 256 can be used, because the other bits
/// of a message's data are its delivery mode.
const ORDER: u8 = 9;

/// The table.
pub(super) struct Remaps(Pages);

/// A table was changed: its IOMMU is to be told. One that is told first keeps a former entry.
#[derive(Debug)]
#[must_use = "the IOMMU does not know of it"]
pub struct Rewritten(());

impl Remaps {
    /// Without interrupts.
    pub(super) fn new() -> Self {
        Self(Pages::new(1))
    }

    pub(super) const fn table(&self) -> InterruptTable {
        InterruptTable { address: self.0.start(), order: ORDER }
    }

    /// `None` if there is no such number.
    pub(super) fn set(&self, number: u16, InterruptEntry(entry): InterruptEntry) -> Option<Rewritten> {
        let word = self.0.words().get(usize::from(number) / 2)?;
        let shift = u32::from(number) % 2 * 32;
        let others = word.load(Ordering::Relaxed) & !(0xffff_ffff << shift);
        // Relaxed: the doorbell of the command that tells the IOMMU orders it, as below.
        word.store(others | u64::from(entry) << shift, Ordering::Relaxed);
        Some(Rewritten(()))
    }

    /// No interrupt passes any more.
    pub(super) fn clear(&self) -> Rewritten {
        self.0.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        Rewritten(())
    }
}

#[cfg(test)]
impl Rewritten {
    pub(crate) const fn made() -> Self {
        Self(())
    }
}
