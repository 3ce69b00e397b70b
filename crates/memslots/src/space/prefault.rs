//! Translations before the first access: for devices, which do not fault.

use paging::{Format, Gpa, Progress, TableMemory};

use super::fault::Fault;
use super::{GuestSpace, Turn};
use crate::{Slot, SlotError, SlotId};

impl<F: Format, M: TableMemory> GuestSpace<F, M> {
    /// Begins to install the translations of a slot from an address on, with the rights that a
    /// store gives.
    ///
    /// A device cannot wait for a fault to be served: what it may reach is mapped before it is told
    /// of it. The translations stay until a job removes them.
    ///
    /// # Errors
    ///
    /// [`SlotError::UnknownId`]; [`SlotError::Busy`] while there is a job.
    pub fn prefault(&self, id: SlotId, from: Gpa) -> Result<Prefault<'_, F, M>, SlotError> {
        let turn = Turn::take(&self.has_job)?;
        let slot = self.slot(id)?;
        Ok(Prefault { space: self, next: from, slot, _turn: turn })
    }
}

/// The translations of a slot are being installed. Meanwhile there is no [`Job`](super::Job), so
/// nothing that is walked here is freed. vCPUs' faults are served as always.
#[must_use = "nothing is installed until it is stepped"]
#[derive(Debug)]
pub struct Prefault<'a, F: Format, M: TableMemory> {
    space: &'a GuestSpace<F, M>,
    slot: Slot,
    /// The first address that has not been looked at.
    next: Gpa,
    _turn: Turn<'a>,
}

impl<F: Format, M: TableMemory> Prefault<'_, F, M> {
    /// The first address that has not been looked at: where another one goes on.
    pub const fn next(&self) -> Gpa {
        self.next
    }

    /// Continues for at most `pages_max` pages, of whatever size. [`Progress::OutOfTables`] if
    /// there is no memory for a table: what was installed stays, and the step may be repeated.
    pub fn step(&mut self, pages_max: u32) -> Progress {
        for _ in 0..pages_max {
            if !self.slot.contains(self.next) {
                return Progress::Done;
            }
            let level = match self.space.fault(self.next, !self.slot.is_read_only()) {
                Fault::Installed(level) => level,
                Fault::OutOfTables => return Progress::OutOfTables,
                // It was there, or another CPU has just installed it. `Mmio` and `ReadOnly` are
                // none of this slot's, which stays as it is while this has the turn.
                _ => match self.space.tables.query(self.next.0) {
                    Some(mapping) => mapping.level,
                    // An entry that is being changed: the next look finds it.
                    None => return Progress::Waiting,
                },
            };
            self.next = Gpa((self.next.0 | level.offset_mask()).saturating_add(1));
        }
        if self.slot.contains(self.next) { Progress::More } else { Progress::Done }
    }
}
