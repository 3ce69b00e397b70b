//! Places in guest memory that are found once and looked at often.

use paging::{Gpa, PhysAddr};

use crate::access::GuestMemory;
use crate::error::AccessError;
use crate::list::{ListStamp, SlotList};
use crate::raw::{Pattern, Window};

/// Where a piece of guest memory is, by the slots at one time. It gives access only through a
/// [`GuestMemory`] with the same slots.
#[derive(Clone, Copy, Debug)]
pub struct Located {
    host: PhysAddr,
    len: usize,
    stamp: ListStamp,
}

impl Located {
    #[inline]
    pub(crate) fn find(slots: &SlotList, gpa: Gpa, len: usize) -> Result<Self, AccessError> {
        let unmapped = AccessError::Unmapped { gpa };
        let slot = slots.find(gpa).ok_or(unmapped)?;
        let offset = slot.offset(gpa).ok_or(unmapped)?;
        if slot.size - offset < len as u64 {
            return Err(AccessError::Unmapped { gpa: Gpa(slot.last().0.wrapping_add(1)) });
        }
        let host = slot.host.checked_add(offset).ok_or(unmapped)?;
        Ok(Self { host, len, stamp: slots.stamp() })
    }

    /// # Safety
    ///
    /// For the lifetime `'a`, a list with this stamp is pinned.
    #[inline]
    pub(crate) unsafe fn window<'a>(&self) -> Window<'a> {
        // SAFETY: the bytes are in a slot of the list; the caller that added the slot promised that
        // the memory behind it can be accessed until the slot is handed back, which is not before
        // the list's pins are gone.
        unsafe { Window::new(self.host, self.len) }
    }
}

/// Words of guest memory and the values that were read there, at most `N`.
#[derive(Clone, Debug)]
pub struct Record<const N: usize> {
    stamp: ListStamp,
    /// Where each is in the slots with the stamp, aligned; and what it was. Behind the last it is
    /// repeated.
    words: [(PhysAddr, u64); N],
    count: usize,
}

impl GuestMemory<'_> {
    /// Finds where `len` bytes from `gpa` on are, for [`has_at`](Self::has_at).
    ///
    /// # Errors
    ///
    /// [`AccessError::Unmapped`], also if the bytes are not all in one slot.
    pub fn locate(&self, gpa: Gpa, len: usize) -> Result<Located, AccessError> {
        self.with_list(|slots| Located::find(slots, gpa, len))
    }

    /// Opens what was located, if that was by the same slots.
    #[inline]
    fn open(&self, located: &Located) -> Option<Window<'_>> {
        let is_same = self.with_list(SlotList::stamp) == located.stamp;
        // SAFETY: lists with one stamp hold the same slots, so the place is in a slot of the list
        // that is pinned, and the window does not outlive the pin.
        is_same.then(|| unsafe { located.window() })
    }

    /// A record without words, which is [unchanged](Self::is_unchanged) as long as the slots are.
    pub fn record<const N: usize>(&self) -> Record<N> {
        Record { stamp: self.with_list(SlotList::stamp), words: [(PhysAddr(0), 0); N], count: 0 }
    }

    /// Reads the 8 bytes at an aligned address and adds them to `record`, which begins anew if it
    /// was made with other slots.
    ///
    /// # Errors
    ///
    /// [`AccessError::Unmapped`], [`AccessError::Unaligned`]; also the latter if the record is
    /// full.
    pub fn read_recorded<const N: usize>(
        &self,
        gpa: Gpa,
        record: &mut Record<N>,
    ) -> Result<u64, AccessError> {
        let unaligned = AccessError::Unaligned { gpa };
        let located = self.locate(gpa, size_of::<u64>())?;
        let value: u64 = self.open(&located).and_then(|window| window.load()).ok_or(unaligned)?;
        if record.stamp != located.stamp {
            *record = self.record();
        }
        record
            .words
            .get_mut(record.count..)
            .filter(|rest| !rest.is_empty())
            .ok_or(unaligned)?
            .fill((located.host, value));
        record.count += 1;
        Ok(u64::from_le(value))
    }

    /// Whether all words of `record` have their values still, and the slots are the same.
    #[inline]
    pub fn is_unchanged<const N: usize>(&self, record: &Record<N>) -> bool {
        if self.with_list(SlotList::stamp) != record.stamp {
            return false;
        }
        // All of them without a branch, which is less work than to stop at the first that differs.
        record.count == 0
            || record.words.iter().fold(0, |difference, &(host, value)| {
                // SAFETY: as in `open`. Every element is a word that was read, at an aligned
                // address.
                difference | (unsafe { Window::new(host, size_of::<u64>()).load_aligned() } ^ value)
            }) == 0
    }

    /// Whether `pattern` is at `offset` in what was [located](Self::locate); false if it does not
    /// all lie in it, or the slots have changed since.
    #[inline]
    pub fn has_at(&self, located: &Located, offset: usize, pattern: &Pattern) -> bool {
        self.open(located).is_some_and(|window| window.has_at(offset, pattern))
    }
}
