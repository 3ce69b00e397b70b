//! Locations in guest memory that are looked up once and read often.

use paging::{Gpa, PhysAddr};

use crate::access::{GuestMemory, Located};
use crate::error::AccessError;
use crate::list::{ListStamp, SlotList};
use crate::raw::{Pattern, Window};

/// Words of guest memory and the values read from them, at most `N`.
#[derive(Clone, Debug)]
pub struct Record<const N: usize> {
    stamp: ListStamp,
    /// The aligned location of each word in the slots with the stamp, and its value. The last one
    /// is repeated to fill the array.
    words: [(PhysAddr, u64); N],
    count: usize,
}

impl GuestMemory<'_> {
    /// Locates `len` bytes starting at `gpa`, for [`has_at`](Self::has_at).
    ///
    /// # Errors
    ///
    /// [`AccessError::Unmapped`], also if the bytes are not all in one slot.
    pub fn locate(&self, gpa: Gpa, len: usize) -> Result<Located, AccessError> {
        self.with_list(|slots| Located::find(slots, gpa, len))
    }

    /// Whether all bytes of a located piece are zero; `None` if the slots are others by now.
    pub fn is_zero(&self, located: &Located) -> Option<bool> {
        self.open(located).map(|window| window.is_zero())
    }

    /// Copies a located piece out: as [`read`](Self::read), but quick for many bytes. False, and
    /// nothing is copied, if the slots are others by now.
    pub fn copy(&self, located: &Located, bytes: &mut [u8]) -> bool {
        self.open(located).map(|window| window.read(bytes)).is_some()
    }

    /// Opens a located piece, if the slots are the same.
    #[inline]
    fn open(&self, located: &Located) -> Option<Window<'_>> {
        let is_same = self.with_list(SlotList::stamp) == located.stamp;
        // SAFETY: lists with the same stamp hold the same slots, so the location is in a slot of
        // the pinned list, and the window does not outlive the pin.
        is_same.then(|| unsafe { located.window() })
    }

    /// A record without words, which is [unchanged](Self::is_unchanged) as long as the slots are.
    pub fn record<const N: usize>(&self) -> Record<N> {
        Record { stamp: self.with_list(SlotList::stamp), words: [(PhysAddr(0), 0); N], count: 0 }
    }

    /// Reads the 8 bytes at an aligned address and adds them to `record`, which is cleared first if
    /// it was made with other slots.
    ///
    /// # Errors
    ///
    /// [`AccessError::Unmapped`]; [`AccessError::Unaligned`], also for a record that is full.
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

    /// Whether all words of `record` still have their values, and the slots are the same.
    #[inline]
    pub fn is_unchanged<const N: usize>(&self, record: &Record<N>) -> bool {
        if self.with_list(SlotList::stamp) != record.stamp {
            return false;
        }
        // All of them without a branch, which is cheaper than stopping at the first difference.
        record.count == 0
            || record.words.iter().fold(0, |difference, &(host, value)| {
                // SAFETY: as in `open`. Every element is a word that was read, at an aligned
                // address.
                difference | (unsafe { Window::new(host, size_of::<u64>()).load_aligned() } ^ value)
            }) == 0
    }

    /// Whether `pattern` is at `offset` in the [located](Self::locate) piece; false if the pattern
    /// does not fit in it, or if the slots have changed since.
    #[inline]
    pub fn has_at(&self, located: &Located, offset: usize, pattern: &Pattern) -> bool {
        self.open(located).is_some_and(|window| window.has_at(offset, pattern))
    }
}
