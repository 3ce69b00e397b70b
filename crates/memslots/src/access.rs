//! Reading and writing guest memory by guest physical address.

use core::fmt;

use paging::{Gpa, Level, PhysAddr};

use crate::generation::Generation;
use crate::raw::{Pattern, Rmw, Window, Word};
use crate::slot::{ListStamp, Slot, SlotList};
use crate::snapshots::Pin;

/// Why an access to guest memory was refused. Nothing was copied then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// No slot has the address.
    Unmapped {
        /// The first address of the access for which that is so.
        gpa: Gpa,
    },
    /// The slot is read-only.
    ReadOnly {
        /// The first address of the access for which that is so.
        gpa: Gpa,
    },
    /// An atomic access that is not naturally aligned.
    Unaligned {
        /// Its address.
        gpa: Gpa,
    },
}

impl AccessError {
    /// The address at fault.
    pub fn gpa(&self) -> Gpa {
        match *self {
            Self::Unmapped { gpa } | Self::ReadOnly { gpa } | Self::Unaligned { gpa } => gpa,
        }
    }
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmapped { gpa } => write!(f, "no guest memory at {gpa}"),
            Self::ReadOnly { gpa } => write!(f, "guest memory at {gpa} is read-only"),
            Self::Unaligned { gpa } => write!(f, "atomic access to guest memory at {gpa} is not aligned"),
        }
    }
}

impl core::error::Error for AccessError {}

/// What is at a guest physical address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Memory.
    Ram {
        /// The slot it is in.
        slot: Slot,
        /// The byte behind the address.
        host: PhysAddr,
        /// The largest page around the address that nested tables can map.
        level: Level,
    },
    /// No slot: a device's registers, or nothing.
    Mmio,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// The guest's memory by the slots that were current when this was [made](crate::Memslots::memory).
///
/// Accesses go across the border between adjacent slots. One that touches an address without memory, or
/// that writes to a read-only slot, fails as a whole. Values are little-endian. Aligned values of up to
/// 8 bytes are read and written in one access.
#[derive(Debug)]
pub struct GuestMemory<'a> {
    slots: Pin<'a, SlotList>,
    generation: Generation,
}

impl<'a> GuestMemory<'a> {
    pub(crate) fn new(slots: Pin<'a, SlotList>, generation: Generation) -> Self {
        Self { slots, generation }
    }

    /// The generation to keep with what is derived from these slots, if it is not in progress.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The slot that has `gpa`.
    pub fn find(&self, gpa: Gpa) -> Option<Slot> {
        self.slots.read(|slots| slots.find(gpa).copied())
    }

    /// Calls `visit` with each slot, in ascending order.
    pub fn for_each(&self, mut visit: impl FnMut(&Slot)) {
        self.slots.read(|slots| slots.as_slice().iter().for_each(&mut visit));
    }

    /// What is at `gpa`, for a nested page fault. Keep the pin until the translation is installed.
    pub fn resolve(&self, gpa: Gpa) -> Resolution {
        let Some(slot) = self.find(gpa) else { return Resolution::Mmio };
        let Some(host) = slot.offset(gpa).and_then(|offset| slot.host.checked_add(offset)) else {
            return Resolution::Mmio;
        };
        Resolution::Ram { slot, host, level: slot.level(gpa, host) }
    }

    /// Copies guest memory from `gpa` on into `bytes`.
    ///
    /// # Errors
    ///
    /// [`AccessError::Unmapped`].
    #[inline]
    pub fn read(&self, gpa: Gpa, bytes: &mut [u8]) -> Result<(), AccessError> {
        let in_one_slot = self.slots.read(|slots| {
            let located = Located::find(slots, gpa, bytes.len()).ok()?;
            // SAFETY: found in the list that is pinned, and gone with this call.
            let window = unsafe { located.window() };
            let is_done = match bytes.as_chunks_mut() {
                // What hypercalls read: whole words.
                (words, []) => window.read_words(words),
                _ => false,
            };
            if !is_done {
                window.read(bytes);
            }
            Some(())
        });
        if in_one_slot.is_some() {
            return Ok(());
        }
        self.read_across(gpa, bytes)
    }

    /// The long way, across the border of slots.
    #[cold]
    fn read_across(&self, gpa: Gpa, bytes: &mut [u8]) -> Result<(), AccessError> {
        let mut rest = bytes;
        self.for_each_window(gpa, rest.len(), Access::Read, |window| {
            let (now, later) = core::mem::take(&mut rest).split_at_mut(window.len());
            window.read(now);
            rest = later;
        })
    }

    /// Copies `bytes` into guest memory from `gpa` on.
    ///
    /// # Errors
    ///
    /// [`AccessError::Unmapped`] and [`AccessError::ReadOnly`].
    pub fn write(&self, gpa: Gpa, bytes: &[u8]) -> Result<(), AccessError> {
        let mut rest = bytes;
        self.for_each_window(gpa, rest.len(), Access::Write, |window| {
            let (now, later) = rest.split_at(window.len());
            window.write(now);
            rest = later;
        })
    }

    /// Reads 4 bytes.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[inline]
    pub fn read_u32(&self, gpa: Gpa) -> Result<u32, AccessError> {
        if let Some(value) = self.load::<u32>(gpa) {
            return Ok(u32::from_le(value));
        }
        let mut bytes = [0; 4];
        self.read(gpa, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Reads 8 bytes.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[inline]
    pub fn read_u64(&self, gpa: Gpa) -> Result<u64, AccessError> {
        if let Some(value) = self.load::<u64>(gpa) {
            return Ok(u64::from_le(value));
        }
        let mut bytes = [0; 8];
        self.read(gpa, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The short way for what is aligned and in one slot.
    #[inline]
    fn load<T: Word>(&self, gpa: Gpa) -> Option<T> {
        self.slots.read(|slots| {
            let located = Located::find(slots, gpa, size_of::<T>()).ok()?;
            // SAFETY: found in the list that is pinned, and gone with this call.
            unsafe { located.window() }.load()
        })
    }

    /// Finds where `len` bytes from `gpa` on are, for [`has_at`](Self::has_at).
    ///
    /// # Errors
    ///
    /// [`AccessError::Unmapped`], also if the bytes are not all in one slot.
    pub fn locate(&self, gpa: Gpa, len: usize) -> Result<Located, AccessError> {
        self.slots.read(|slots| Located::find(slots, gpa, len))
    }

    /// Opens what was located, if that was by the same slots.
    #[inline]
    fn open(&self, located: &Located) -> Option<Window<'_>> {
        let is_same = self.slots.read(SlotList::stamp) == located.stamp;
        // SAFETY: lists with one stamp hold the same slots, so the place is in a slot of the list that is pinned, and
        // the window does not outlive the pin.
        is_same.then(|| unsafe { located.window() })
    }

    /// A record without words, which is [unchanged](Self::is_unchanged) as long as the slots are.
    pub fn record<const N: usize>(&self) -> Record<N> {
        Record { stamp: self.slots.read(SlotList::stamp), words: [(PhysAddr(0), 0); N], count: 0 }
    }

    /// Reads the 8 bytes at an aligned address and adds them to `record`, which begins anew if it was made with
    /// other slots.
    ///
    /// # Errors
    ///
    /// [`AccessError::Unmapped`], [`AccessError::Unaligned`]; also the latter if the record is full.
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
        if self.slots.read(SlotList::stamp) != record.stamp {
            return false;
        }
        // All of them without a branch, which is less work than to stop at the first that differs.
        record.count == 0
            || record.words.iter().fold(0, |difference, &(host, value)| {
                // SAFETY: as in `open`. Every element is a word that was read, at an aligned address.
                difference | (unsafe { Window::new(host, size_of::<u64>()).load_aligned() } ^ value)
            }) == 0
    }

    /// Whether `pattern` is at `offset` in what was [located](Self::locate); false if it does not all lie in it, or
    /// the slots have changed since.
    #[inline]
    pub fn has_at(&self, located: &Located, offset: usize, pattern: &Pattern) -> bool {
        self.open(located).is_some_and(|window| window.has_at(offset, pattern))
    }

    /// Writes 4 bytes.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn write_u32(&self, gpa: Gpa, value: u32) -> Result<(), AccessError> {
        self.write(gpa, &value.to_le_bytes())
    }

    /// Writes 8 bytes.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn write_u64(&self, gpa: Gpa, value: u64) -> Result<(), AccessError> {
        self.write(gpa, &value.to_le_bytes())
    }

    /// Clears the bits that are not in `mask`, atomically, and returns the value from before. For `u32`
    /// and `u64`; Acquire and Release.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write), and [`AccessError::Unaligned`].
    pub fn fetch_and<T: Word>(&self, gpa: Gpa, mask: T) -> Result<T, AccessError> {
        self.read_modify_write(gpa, Rmw::And(mask))
    }

    /// Sets the bits in `mask`, atomically, and returns the value from before. As
    /// [`fetch_and`](Self::fetch_and) otherwise.
    ///
    /// # Errors
    ///
    /// As [`fetch_and`](Self::fetch_and).
    pub fn fetch_or<T: Word>(&self, gpa: Gpa, mask: T) -> Result<T, AccessError> {
        self.read_modify_write(gpa, Rmw::Or(mask))
    }

    /// Replaces the value by `new` if it is `current`, atomically, and returns the value from before.
    /// As [`fetch_and`](Self::fetch_and) otherwise.
    ///
    /// # Errors
    ///
    /// As [`fetch_and`](Self::fetch_and).
    pub fn compare_exchange<T: Word>(&self, gpa: Gpa, current: T, new: T) -> Result<T, AccessError> {
        self.read_modify_write(gpa, Rmw::CompareExchange { current, new })
    }

    fn read_modify_write<T: Word>(&self, gpa: Gpa, op: Rmw<T>) -> Result<T, AccessError> {
        if !gpa.0.is_multiple_of(size_of::<T>() as u64) {
            return Err(AccessError::Unaligned { gpa });
        }
        // Aligned, so it is in one page, so in one slot and one window.
        let mut before = None;
        self.for_each_window(gpa, size_of::<T>(), Access::Write, |window| before = T::rmw(&window, op))?;
        before.ok_or(AccessError::Unaligned { gpa })
    }

    /// Calls `act` with one window per slot that `len` bytes from `gpa` on touch, after checking all.
    fn for_each_window(
        &self,
        gpa: Gpa,
        len: usize,
        access: Access,
        mut act: impl FnMut(Window<'_>),
    ) -> Result<(), AccessError> {
        self.slots.read(|slots| {
            windows(slots, gpa, len, access, |_| ())?;
            windows(slots, gpa, len, access, &mut act)
        })
    }
}

/// Where a piece of guest memory is, by the slots at one time. It gives access only through a [`GuestMemory`] with
/// the same slots.
#[derive(Clone, Copy, Debug)]
pub struct Located {
    host: PhysAddr,
    len: usize,
    stamp: ListStamp,
}

impl Located {
    #[inline]
    fn find(slots: &SlotList, gpa: Gpa, len: usize) -> Result<Self, AccessError> {
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
    unsafe fn window<'a>(&self) -> Window<'a> {
        // SAFETY: the bytes are in a slot of the list; whoever added the slot promised that the memory behind it can
        // be accessed until the slot is handed back, which is not before the list's pins are gone.
        unsafe { Window::new(self.host, self.len) }
    }
}

/// Words of guest memory and the values that were read there, at most `N`.
#[derive(Clone, Debug)]
pub struct Record<const N: usize> {
    stamp: ListStamp,
    /// Where each is in the slots with the stamp, aligned; and what it was. Behind the last it is repeated.
    words: [(PhysAddr, u64); N],
    count: usize,
}

/// One step per slot: each goes to the slot's end at least.
fn windows(
    slots: &SlotList,
    gpa: Gpa,
    len: usize,
    access: Access,
    mut act: impl FnMut(Window<'_>),
) -> Result<(), AccessError> {
    let (mut gpa, mut left) = (gpa, len);
    while left != 0 {
        let unmapped = AccessError::Unmapped { gpa };
        let slot = slots.find(gpa).ok_or(unmapped)?;
        if access == Access::Write && slot.is_read_only() {
            return Err(AccessError::ReadOnly { gpa });
        }
        let offset = slot.offset(gpa).ok_or(unmapped)?;
        let take = usize::try_from(slot.size - offset).unwrap_or(usize::MAX).min(left);
        let host = slot.host.checked_add(offset).ok_or(unmapped)?;
        // SAFETY: `offset + take` is at most the slot's size, and whoever added the slot promised that
        // the memory behind it can be accessed until the slot is handed back, which is not before the
        // pin on `slots` is gone; the window does not outlive this step.
        act(unsafe { Window::new(host, take) });
        gpa = gpa.checked_add(take as u64).ok_or(unmapped)?;
        left -= take;
    }
    Ok(())
}
