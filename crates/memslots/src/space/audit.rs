//! Comparing the nested page table with the slots.

use core::ops::Range;

use paging::{Format, TableMemory};

use super::{GuestSpace, Turn};
use crate::{Discrepancy, SlotError};

/// The result of an audit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Translations that were checked.
    pub leaf_count: u64,
    /// Wrong translations.
    pub wrong_count: u64,
    /// The first wrong one.
    pub first: Option<Discrepancy>,
}

impl<F: Format, M: TableMemory> GuestSpace<F, M> {
    /// Compares the nested page table with the result of removing all translations and letting
    /// every fault happen again: each translation must lead to the memory that the slots define and
    /// allow no more than they do.
    ///
    /// Faults may be served meanwhile, since they install correct translations; jobs may not run.
    ///
    /// # Errors
    ///
    /// [`SlotError::Busy`] while there is a job, or if one was never finished.
    pub fn audit(&self) -> Result<Audit, SlotError> {
        let _turn = Turn::take(&self.has_job)?;
        let memory = self.slots.memory();
        if memory.generation().is_in_progress() {
            return Err(SlotError::Busy);
        }
        let mut audit = Audit::default();
        self.tables.for_each(0..u64::MAX, |Range { start, end }, leaf| {
            audit.leaf_count += 1;
            let is_right = memory.audit(start..end, leaf.pa, leaf.permissions);
            if let Err(discrepancy) = is_right {
                audit.wrong_count += 1;
                audit.first.get_or_insert(discrepancy);
            }
        });
        Ok(audit)
    }
}
