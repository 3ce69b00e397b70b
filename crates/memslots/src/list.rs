//! The slots of one address space at one point in time.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;
use paging::{Gpa, Level};

use crate::dirty::DirtyLog;
use crate::slot::{SLOTS_MAX, Slot, SlotError, SlotFlags, SlotId};

/// Identifies the contents of a list: lists with the same stamp hold the same slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListStamp(u64);

impl ListStamp {
    /// A stamp that no list has had, in any address space. 64 bits do not wrap.
    fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Relaxed) + 1)
    }
}

/// Slots in ascending order, without overlap.
#[derive(Debug, Default)]
pub(crate) struct SlotList {
    slots: ArrayVec<Slot, SLOTS_MAX>,
    /// The log of the slot with the same index: present if and only if that slot has
    /// [`SlotFlags::LOG_DIRTY`]. Stored separately, so that the slots that a lookup scans are close
    /// together.
    logs: ArrayVec<Option<DirtyLog>, SLOTS_MAX>,
    /// Changes with the slots; that of the empty list is 0.
    stamp: ListStamp,
}

impl Clone for SlotList {
    fn clone(&self) -> Self {
        let mut list = Self::default();
        list.clone_from(self);
        list
    }

    /// In place: a list is large for a hypervisor's stack.
    fn clone_from(&mut self, source: &Self) {
        let Self { slots, logs, stamp } = source;
        self.slots.clone_from(slots);
        self.logs.clone_from(logs);
        self.stamp = *stamp;
    }
}

impl SlotList {
    /// The slot that contains `gpa`. The first slot, where a guest's kernel and its tables usually
    /// are, is checked first.
    #[inline]
    pub(crate) fn find(&self, gpa: Gpa) -> Option<&Slot> {
        match self.slots.first() {
            Some(first) if first.contains(gpa) => Some(first),
            _ => self.find_by_search(gpa),
        }
    }

    /// The same, if there is memory that software may access.
    #[inline]
    pub(crate) fn find_memory(&self, gpa: Gpa) -> Option<&Slot> {
        self.find(gpa).filter(|slot| !slot.is_device())
    }

    fn find_by_search(&self, gpa: Gpa) -> Option<&Slot> {
        let above = self.slots.partition_point(|slot| slot.gpa <= gpa);
        self.slots.get(above.checked_sub(1)?).filter(|slot| slot.contains(gpa))
    }

    /// The slot with this name, and its log.
    pub(crate) fn get(&self, id: SlotId) -> Option<(&Slot, Option<&DirtyLog>)> {
        let index = self.index_of(id)?;
        Some((self.slots.get(index)?, self.logs.get(index)?.as_ref()))
    }

    /// The log of a slot of this list.
    #[cold]
    pub(crate) fn log_of(&self, slot: &Slot) -> Option<&DirtyLog> {
        let index = self.slots.binary_search_by_key(&slot.gpa, |slot| slot.gpa).ok()?;
        self.logs.get(index)?.as_ref()
    }

    pub(crate) fn as_slice(&self) -> &[Slot] {
        &self.slots
    }

    /// Each slot with its log.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Slot, Option<&DirtyLog>)> {
        self.slots.iter().zip(self.logs.iter().map(Option::as_ref))
    }

    pub(crate) const fn stamp(&self) -> ListStamp {
        self.stamp
    }

    /// Adds a slot without a log.
    pub(crate) fn add(&mut self, slot: Slot, physical_bits: u32) -> Result<(), SlotError> {
        if slot.is_logged() {
            return Err(SlotError::NoLog);
        }
        check(&slot, physical_bits)?;
        if self.index_of(slot.id).is_some() {
            return Err(SlotError::DuplicateId);
        }
        self.check_overlap(&slot)?;
        if self.slots.is_full() {
            return Err(SlotError::Full);
        }
        self.insert(slot, None);
        Ok(())
    }

    pub(crate) fn remove(&mut self, id: SlotId) -> Result<(), SlotError> {
        let index = self.index_of(id).ok_or(SlotError::UnknownId)?;
        self.take(index).ok_or(SlotError::UnknownId)?;
        Ok(())
    }

    pub(crate) fn move_to(&mut self, id: SlotId, gpa: Gpa, physical_bits: u32) -> Result<(), SlotError> {
        let index = self.index_of(id).ok_or(SlotError::UnknownId)?;
        let moved = Slot { gpa, ..*self.slots.get(index).ok_or(SlotError::UnknownId)? };
        check(&moved, physical_bits)?;
        self.check_overlap(&moved)?;
        let (_, log) = self.take(index).ok_or(SlotError::UnknownId)?;
        self.insert(moved, log);
        Ok(())
    }

    pub(crate) fn set_flags(&mut self, id: SlotId, flags: SlotFlags) -> Result<(), SlotError> {
        let index = self.index_of(id).ok_or(SlotError::UnknownId)?;
        let slot = self.slots.get_mut(index).ok_or(SlotError::UnknownId)?;
        if slot.flags.symmetric_difference(flags).contains(SlotFlags::LOG_DIRTY) {
            return Err(SlotError::NoLog);
        }
        slot.flags = flags;
        self.stamp = ListStamp::next();
        Ok(())
    }

    pub(crate) fn set_log(&mut self, id: SlotId, log: Option<DirtyLog>) -> Result<(), SlotError> {
        let index = self.index_of(id).ok_or(SlotError::UnknownId)?;
        let slot = self.slots.get_mut(index).ok_or(SlotError::UnknownId)?;
        if log.is_some_and(|log| !log.covers(slot.size)) {
            return Err(SlotError::LogTooShort);
        }
        slot.flags.set(SlotFlags::LOG_DIRTY, log.is_some());
        *self.logs.get_mut(index).ok_or(SlotError::UnknownId)? = log;
        self.stamp = ListStamp::next();
        Ok(())
    }

    fn index_of(&self, id: SlotId) -> Option<usize> {
        self.slots.iter().position(|slot| slot.id == id)
    }

    /// Whether a slot does not overlap those with other names.
    fn check_overlap(&self, slot: &Slot) -> Result<(), SlotError> {
        let overlaps = |other: &&Slot| other.gpa <= slot.last() && slot.gpa <= other.last();
        match self.slots.iter().filter(|other| other.id != slot.id).find(overlaps) {
            Some(other) => Err(SlotError::Overlap(other.id)),
            None => Ok(()),
        }
    }

    /// The caller has checked that there is room and no overlap.
    fn insert(&mut self, slot: Slot, log: Option<DirtyLog>) {
        let index = self.slots.partition_point(|other| other.gpa < slot.gpa);
        self.slots.insert(index, slot);
        self.logs.insert(index, log);
        self.stamp = ListStamp::next();
    }

    fn take(&mut self, index: usize) -> Option<(Slot, Option<DirtyLog>)> {
        self.stamp = ListStamp::next();
        Some((self.slots.pop_at(index)?, self.logs.pop_at(index)?))
    }
}

/// Checks the conditions on a slot that do not depend on others.
fn check(slot: &Slot, physical_bits: u32) -> Result<(), SlotError> {
    if slot.size == 0 {
        return Err(SlotError::Empty);
    }
    if (slot.gpa.0 | slot.size | slot.host.0) & Level::Page4K.offset_mask() != 0 {
        return Err(SlotError::Unaligned);
    }
    let last = slot.gpa.checked_add(slot.size - 1).ok_or(SlotError::TooHigh)?;
    if last.0.checked_shr(physical_bits).unwrap_or(0) != 0 {
        return Err(SlotError::TooHigh);
    }
    let host_last = slot.host.checked_add(slot.size - 1).ok_or(SlotError::TooHigh)?;
    usize::try_from(host_last.0).map_err(|_| SlotError::TooHigh)?;
    Ok(())
}
