//! Updates of the slots, step by step.

use core::fmt;

use paging::{FlushReceipt, Gpa, Stamp};

use crate::dirty::DirtyLog;
use crate::generation::{Generation, InProgress};
use crate::list::SlotList;
use crate::memslots::Memslots;
use crate::slot::{Slot, SlotError, SlotFlags, SlotId, SpaceId};
use crate::snapshots::{Draft, Drain};
use crate::treatment::SlotChange;

/// An update that is not visible yet. Dropping it leaves everything unchanged.
///
/// Slots are matched by name: a slot that is added under the name and with the memory of a slot
/// that the same update removes continues it.
#[must_use = "an update that is not published changes nothing"]
pub struct Update<'a, const SPACES: usize = 1> {
    // Dropped in this order: the drafts are dropped before the mark.
    drafts: [Option<Draft<'a, SlotList>>; SPACES],
    memslots: &'a Memslots<SPACES>,
    mark: InProgress<'a>,
}

impl<'a, const SPACES: usize> Update<'a, SPACES> {
    pub(crate) fn new(memslots: &'a Memslots<SPACES>, mark: InProgress<'a>) -> Self {
        Self { drafts: [const { None }; SPACES], memslots, mark }
    }

    /// Opens the slots of an address space for changes.
    ///
    /// # Errors
    ///
    /// [`SlotError::UnknownSpace`].
    pub fn space(&mut self, space: SpaceId) -> Result<Edit<'_, 'a>, SlotError> {
        let draft = self.drafts.get_mut(space.index()).ok_or(SlotError::UnknownSpace)?;
        let snapshots = self.memslots.spaces.get(space.index()).ok_or(SlotError::UnknownSpace)?;
        let draft = draft.get_or_insert_with(|| {
            // SAFETY: the mark "in progress" of the generation is the lock: one update has it at a
            // time. It is removed only when the update is dropped unpublished, with its drafts, or
            // has drained and is finished; and each space gets one draft.
            unsafe { snapshots.begin() }
        });
        Ok(Edit { draft, physical_bits: self.memslots.physical_bits() })
    }

    /// [`Edit::add`] in the first space.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Safety
    ///
    /// As there.
    pub unsafe fn add(&mut self, slot: Slot) -> Result<(), SlotError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.space(SpaceId::FIRST)?.add(slot) }
    }

    /// [`Edit::remove`] in the first space.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn remove(&mut self, id: SlotId) -> Result<(), SlotError> {
        self.space(SpaceId::FIRST)?.remove(id)
    }

    /// [`Edit::move_to`] in the first space.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn move_to(&mut self, id: SlotId, gpa: Gpa) -> Result<(), SlotError> {
        self.space(SpaceId::FIRST)?.move_to(id, gpa)
    }

    /// [`Edit::set_flags`] in the first space.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn set_flags(&mut self, id: SlotId, flags: SlotFlags) -> Result<(), SlotError> {
        self.space(SpaceId::FIRST)?.set_flags(id, flags)
    }

    /// [`Edit::set_log`] in the first space.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Safety
    ///
    /// As there.
    pub unsafe fn set_log(&mut self, id: SlotId, log: Option<DirtyLog>) -> Result<(), SlotError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.space(SpaceId::FIRST)?.set_log(id, log) }
    }

    /// Publishes the new slots of all spaces to readers.
    pub fn publish(self) -> Published<'a, SPACES> {
        let Self { drafts, memslots: _, mut mark } = self;
        mark.make_permanent();
        Published { drains: drafts.map(|draft| draft.map(Draft::publish)), mark }
    }
}

/// Changes the slots of one address space in an [`Update`]. If a change is refused, the update is
/// unchanged.
#[derive(Debug)]
pub struct Edit<'u, 'a> {
    draft: &'u mut Draft<'a, SlotList>,
    physical_bits: u32,
}

impl Edit<'_, '_> {
    /// Adds a slot without a dirty log.
    ///
    /// # Errors
    ///
    /// See [`SlotError`].
    ///
    /// # Safety
    ///
    /// From now until [`Quiesced::finish`] returns the slot's memory, `slot.size` bytes starting at
    /// `slot.host` are mapped one to one, readable and writable, with exposed provenance. The
    /// hypervisor holds no reference into them and keeps nothing there that its own safety depends
    /// on: guest and hypervisor change them at any time.
    pub unsafe fn add(&mut self, slot: Slot) -> Result<(), SlotError> {
        self.draft.edit(|slots| slots.add(slot, self.physical_bits))
    }

    /// Removes a slot. The memory behind it and its log stay in use until the update is finished.
    ///
    /// # Errors
    ///
    /// [`SlotError::UnknownId`].
    pub fn remove(&mut self, id: SlotId) -> Result<(), SlotError> {
        self.draft.edit(|slots| slots.remove(id))
    }

    /// Moves a slot, with its memory and its log, to another guest physical address.
    ///
    /// # Errors
    ///
    /// [`SlotError::UnknownId`], and as for a slot that is added there. It may overlap its former
    /// range.
    pub fn move_to(&mut self, id: SlotId, gpa: Gpa) -> Result<(), SlotError> {
        self.draft.edit(|slots| slots.move_to(id, gpa, self.physical_bits))
    }

    /// Replaces a slot's flags. [`SlotFlags::LOG_DIRTY`] must be as before: it follows the log.
    ///
    /// # Errors
    ///
    /// [`SlotError::UnknownId`]; [`SlotError::NoLog`] if `flags` has that flag and the slot has no
    /// log, or the reverse.
    pub fn set_flags(&mut self, id: SlotId, flags: SlotFlags) -> Result<(), SlotError> {
        self.draft.edit(|slots| slots.set_flags(id, flags))
    }

    /// Begins to log a slot's dirty pages, or stops. Marks in a former log are not carried over.
    ///
    /// # Errors
    ///
    /// [`SlotError::UnknownId`] and [`SlotError::LogTooShort`].
    ///
    /// # Safety
    ///
    /// From now until [`Quiesced::finish`] returns the log, its words exist, and are accessed as
    /// atomics only.
    pub unsafe fn set_log(&mut self, id: SlotId, log: Option<DirtyLog>) -> Result<(), SlotError> {
        self.draft.edit(|slots| slots.set_log(id, log))
    }
}

/// An update that is visible, while readers may still use the old slots.
///
/// Dropping it leaves the update in progress permanently: nothing is cached, and no update starts.
/// That is wasteful but safe.
#[must_use = "an update must be finished"]
pub struct Published<'a, const SPACES: usize = 1> {
    drains: [Option<Drain<'a, SlotList>>; SPACES],
    mark: InProgress<'a>,
}

impl<'a, const SPACES: usize> Published<'a, SPACES> {
    /// Waits until no reader uses the old slots of any space. `relax` is called after each check
    /// and returns whether to continue; it should serve requests that other CPUs may be waiting
    /// for.
    ///
    /// # Errors
    ///
    /// The update itself, if `relax` gave up.
    pub fn wait(self, mut relax: impl FnMut() -> bool) -> Result<Quiesced<'a, SPACES>, Self> {
        // No new reader pins a former copy, so a drained one stays drained.
        for drain in self.drains.iter().flatten() {
            while !drain.is_drained() {
                if !relax() {
                    return Err(self);
                }
            }
        }
        let mut update = Quiesced {
            drains: self.drains,
            mark: self.mark,
            needs_receipt: [false; SPACES],
            is_settled: [false; SPACES],
            first: None,
            change_count: 0,
        };
        update.survey();
        Ok(update)
    }
}

/// An update whose old slots no reader uses any more, except through translations still in use.
/// Dropping it is like dropping [`Published`].
#[must_use = "an update must be finished"]
pub struct Quiesced<'a, const SPACES: usize = 1> {
    drains: [Option<Drain<'a, SlotList>>; SPACES],
    mark: InProgress<'a>,
    /// The spaces with changes that need a receipt, and those for which there was one.
    needs_receipt: [bool; SPACES],
    is_settled: [bool; SPACES],
    /// The first change, which is usually the only one.
    first: Option<SlotChange>,
    /// Without it each caller would search all slots for a change after the last.
    change_count: usize,
}

/// Memory or a log that an update removes from use, returned by [`Quiesced::finish`].
///
/// Exhaustive: a caller that overlooks one leaks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retired {
    /// The memory behind a removed slot.
    Memory {
        /// Its address space.
        space: SpaceId,
        /// The former slot.
        slot: Slot,
    },
    /// The log of a slot that was removed, or that now has another log or none.
    Log {
        /// Its address space.
        space: SpaceId,
        /// The former slot.
        slot: Slot,
        /// Its log.
        log: DirtyLog,
    },
}

impl<const SPACES: usize> Quiesced<'_, SPACES> {
    /// Calls `visit` with each slot that was removed or has changed, in ascending order of their
    /// former addresses in each space. Added slots are not included: no translation was made with
    /// them.
    pub fn for_each_change(&self, mut visit: impl FnMut(&SlotChange)) {
        self.for_each(|change, _| visit(&change));
    }

    /// The changes one by one, for a caller that treats them in steps; `None` after the last.
    pub fn change(&self, index: usize) -> Option<SlotChange> {
        if index >= self.change_count {
            return None;
        }
        if index == 0 {
            return self.first;
        }
        let (mut found, mut count) = (None, 0);
        self.for_each(|change, _| {
            if count == index {
                found = Some(change);
            }
            count += 1;
        });
        found
    }

    /// Whether a space has changes for whose flush [`settle`](Self::settle) was not called yet.
    pub fn needs_receipt(&self, space: SpaceId) -> bool {
        let is = |spaces: &[bool; SPACES]| spaces.get(space.index()).is_some_and(|&is| is);
        is(&self.needs_receipt) && !is(&self.is_settled)
    }

    /// Examines the changes once.
    fn survey(&mut self) {
        let (mut needs_receipt, mut first, mut change_count) = ([false; SPACES], None, 0);
        self.for_each(|change, _| {
            if let Some(needs_receipt) = needs_receipt.get_mut(change.space.index()) {
                *needs_receipt |= change.treatment.needs_receipt();
            }
            first.get_or_insert(change);
            change_count += 1;
        });
        (self.needs_receipt, self.first, self.change_count) = (needs_receipt, first, change_count);
    }

    /// Records that the translations of a space have been treated and flushed; false if the receipt
    /// does not prove it. `last` is the stamp of the space's page table after the treatment.
    #[must_use = "without a receipt the update cannot be finished"]
    pub fn settle(&mut self, space: SpaceId, receipt: &(impl FlushReceipt + ?Sized), last: Stamp) -> bool {
        let Some(is_settled) = self.is_settled.get_mut(space.index()) else { return false };
        *is_settled |= receipt.covers(last);
        *is_settled
    }

    /// Ends the update, and passes the memory and logs removed from use to `free`, which may reuse
    /// them.
    ///
    /// # Errors
    ///
    /// The update itself, if a space [needs a receipt](Self::needs_receipt).
    pub fn finish(self, mut free: impl FnMut(Retired)) -> Result<Generation, Self> {
        if (0..SPACES).any(|space| self.needs_receipt(SpaceId(space as u8))) {
            return Err(self);
        }
        self.for_each(|change, log| {
            let SlotChange { space, former: slot, .. } = change;
            if !change.keeps_memory() {
                free(Retired::Memory { space, slot });
            }
            if let Some(&log) = log.filter(|_| !change.keeps_log) {
                free(Retired::Log { space, slot, log });
            }
        });
        Ok(self.mark.end())
    }

    /// Slots of the former copies that the current ones lack or have changed, with their logs.
    fn for_each(&self, mut visit: impl FnMut(SlotChange, Option<&DirtyLog>)) {
        for (index, drain) in self.drains.iter().enumerate() {
            let Some(drain) = drain else { continue };
            drain.read(|former, current| {
                for (slot, log) in former.iter() {
                    let change = SlotChange::of(SpaceId(index as u8), (slot, log), current.get(slot.id));
                    if let Some(change) = change {
                        visit(change, log);
                    }
                }
            });
        }
    }
}

impl<const SPACES: usize> fmt::Debug for Update<'_, SPACES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Update")
    }
}

impl<const SPACES: usize> fmt::Debug for Published<'_, SPACES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Published")
    }
}

impl<const SPACES: usize> fmt::Debug for Quiesced<'_, SPACES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Quiesced")
    }
}
