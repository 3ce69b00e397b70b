//! Reading and writing guest memory by guest physical address.

use core::ops::Range;

use paging::{Gpa, Level, PhysAddr};

use crate::error::AccessError;
use crate::generation::Generation;
use crate::list::{ListStamp, SlotList};
use crate::raw::{Rmw, Window, Word};
use crate::slot::{Slot, SlotId};
use crate::snapshots::Pin;

/// The target of a guest physical address.
///
/// Exhaustive: an address has memory, or it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Memory.
    Ram {
        /// The slot that contains the address.
        slot: Slot,
        /// The byte of memory behind the address.
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

/// The location of a piece of guest memory, by the slots at one point in time. It gives access only
/// through a [`GuestMemory`] with the same slots.
#[derive(Clone, Copy, Debug)]
pub struct Located {
    pub(crate) host: PhysAddr,
    len: usize,
    pub(crate) stamp: ListStamp,
}

impl Located {
    #[inline]
    pub(crate) fn find(slots: &SlotList, gpa: Gpa, len: usize) -> Result<Self, AccessError> {
        let unmapped = AccessError::Unmapped { gpa };
        let slot = slots.find_memory(gpa).ok_or(unmapped)?;
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
        // the memory behind it can be accessed until the slot is returned, which does not happen
        // before the list's pins are dropped.
        unsafe { Window::new(self.host, self.len) }
    }
}

/// The guest's memory, through the slots that were current when this was
/// [made](crate::Memslots::memory).
///
/// Accesses may cross the boundary between adjacent slots. An access that touches an address
/// without memory, or that writes to a read-only slot, fails as a whole. Values are little-endian.
/// Aligned values of up to 8 bytes are read and written in one access.
#[derive(Debug)]
pub struct GuestMemory<'a> {
    slots: Pin<'a, SlotList>,
    generation: Generation,
}

impl<'a> GuestMemory<'a> {
    pub(crate) fn new(slots: Pin<'a, SlotList>, generation: Generation) -> Self {
        Self { slots, generation }
    }

    /// Reads the pinned list.
    #[inline]
    pub(crate) fn with_list<R>(&self, read: impl FnOnce(&SlotList) -> R) -> R {
        self.slots.read(read)
    }

    /// The generation to store with data derived from these slots, unless it is in progress.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The slot that contains `gpa`.
    pub fn find(&self, gpa: Gpa) -> Option<Slot> {
        self.slots.read(|slots| slots.find(gpa).copied())
    }

    /// The slot with this name.
    pub fn get(&self, id: SlotId) -> Option<Slot> {
        self.slots.read(|slots| slots.get(id).map(|(slot, _)| *slot))
    }

    /// Calls `visit` with each slot, in ascending order.
    pub fn for_each(&self, mut visit: impl FnMut(&Slot)) {
        self.slots.read(|slots| slots.as_slice().iter().for_each(&mut visit));
    }

    /// The first slot with memory that ends behind `gpa`. Slots of devices have none.
    pub fn next_memory(&self, gpa: Gpa) -> Option<Slot> {
        self.slots.read(|slots| {
            slots.as_slice().iter().find(|slot| !slot.is_device() && slot.last() >= gpa).copied()
        })
    }

    /// The target of `gpa`, for a nested page fault. Keep the pin until the translation is
    /// installed.
    pub fn resolve(&self, gpa: Gpa) -> Resolution {
        let Some(slot) = self.find(gpa) else { return Resolution::Mmio };
        let Some(host) = slot.offset(gpa).and_then(|offset| slot.host.checked_add(offset)) else {
            return Resolution::Mmio;
        };
        Resolution::Ram { slot, host, level: slot.level(gpa, host) }
    }

    /// Copies guest memory starting at `gpa` into `bytes`.
    ///
    /// # Errors
    ///
    /// [`AccessError::Unmapped`].
    #[inline]
    pub fn read(&self, gpa: Gpa, bytes: &mut [u8]) -> Result<(), AccessError> {
        let in_one_slot = self.slots.read(|slots| {
            let located = Located::find(slots, gpa, bytes.len()).ok()?;
            // SAFETY: found in the pinned list, and dropped before this call returns.
            let window = unsafe { located.window() };
            let is_done = match bytes.as_chunks_mut() {
                // Typical for hypercalls: whole words.
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

    /// The slow path, across slot boundaries.
    #[cold]
    fn read_across(&self, gpa: Gpa, bytes: &mut [u8]) -> Result<(), AccessError> {
        let mut rest = bytes;
        self.for_each_window(gpa, rest.len(), Access::Read, |window| {
            let (now, later) = core::mem::take(&mut rest).split_at_mut(window.len());
            window.read(now);
            rest = later;
        })
    }

    /// Copies `bytes` into guest memory starting at `gpa`.
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

    /// The fast path for aligned values in one slot.
    #[inline]
    fn load<T: Word>(&self, gpa: Gpa) -> Option<T> {
        self.slots.read(|slots| {
            let located = Located::find(slots, gpa, size_of::<T>()).ok()?;
            // SAFETY: found in the pinned list, and dropped before this call returns.
            unsafe { located.window() }.load()
        })
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

    /// Clears the bits that are not in `mask`, atomically, and returns the former value. For `u32`
    /// and `u64`; Acquire and Release.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write), and [`AccessError::Unaligned`].
    pub fn fetch_and<T: Word>(&self, gpa: Gpa, mask: T) -> Result<T, AccessError> {
        self.read_modify_write(gpa, Rmw::And(mask))
    }

    /// Sets the bits in `mask`, atomically, and returns the former value. Otherwise like
    /// [`fetch_and`](Self::fetch_and).
    ///
    /// # Errors
    ///
    /// As [`fetch_and`](Self::fetch_and).
    pub fn fetch_or<T: Word>(&self, gpa: Gpa, mask: T) -> Result<T, AccessError> {
        self.read_modify_write(gpa, Rmw::Or(mask))
    }

    /// Replaces the value by `new` if it is `current`, atomically, and returns the former value.
    /// Otherwise like [`fetch_and`](Self::fetch_and).
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

    /// Records that the guest has stored to these addresses, or may do so, in the logs of the slots
    /// that have one. Addresses without memory are skipped.
    ///
    /// A fault handler calls this **after** it has made the leaf writable, through the same slots,
    /// and in the same section for the flush engine; the table in `dirty.rs` explains why. Stores
    /// by a [`GuestMemory`] are already recorded.
    pub fn mark_dirty(&self, gpas: Range<u64>) {
        self.slots.read(|slots| {
            let above = slots.as_slice().partition_point(|slot| slot.last().0 < gpas.start);
            for slot in slots.as_slice().iter().skip(above).take_while(|slot| slot.gpa.0 < gpas.end) {
                let Range { start, end } = slot.range();
                let (first, last) = (gpas.start.max(start), gpas.end.min(end));
                if slot.is_logged() && first < last {
                    mark(slots, slot, first - start, last - first);
                }
            }
        });
    }

    /// The same for the pages at these addresses, which is cheap for neighbours that come together.
    pub fn mark_listed(&self, gpas: impl IntoIterator<Item = u64>) {
        const SPAN: u64 = u64::BITS as u64 * Level::Page4K.size();
        let (mut start, mut pages) = (0, 0);
        for gpa in gpas {
            if start != gpa / SPAN * SPAN {
                self.mark_pages(Gpa(start), core::mem::take(&mut pages));
                start = gpa / SPAN * SPAN;
            }
            pages |= 1 << ((gpa % SPAN) >> Level::Page4K.shift());
        }
        self.mark_pages(Gpa(start), pages);
    }

    /// The same for the `n`th page of 4 KiB starting at `gpa` if bit `n` of `pages` is set.
    pub(crate) fn mark_pages(&self, gpa: Gpa, pages: u64) {
        if pages == 0 {
            return;
        }
        self.slots.read(|slots| {
            let span = (u64::BITS - pages.leading_zeros()).into();
            let slot = slots.find(gpa).filter(|slot| slot.is_logged());
            let first = slot.and_then(|slot| Some((slot.offset(gpa)?, slot.size, slots.log_of(slot)?)));
            match first {
                // All of them are in one slot.
                Some((offset, size, log)) if (size - offset) >> Level::Page4K.shift() >= span => {
                    // SAFETY: the list that has the log is pinned.
                    unsafe { log.marks() }.mark_each(offset >> Level::Page4K.shift(), pages);
                }
                _ => {
                    for index in (0..u64::from(u64::BITS)).filter(|index| pages >> index & 1 != 0) {
                        let start = gpa.0.wrapping_add(index << Level::Page4K.shift());
                        self.mark_dirty(start..start.wrapping_add(Level::Page4K.size()));
                    }
                }
            }
        });
    }

    /// Calls `act` with one window per slot that `len` bytes from `gpa` on touch, after checking
    /// all; records writes in the logs.
    fn for_each_window(
        &self,
        gpa: Gpa,
        len: usize,
        access: Access,
        mut act: impl FnMut(Window<'_>),
    ) -> Result<(), AccessError> {
        self.slots.read(|slots| {
            windows(slots, gpa, len, access, |_, _, _| ())?;
            windows(slots, gpa, len, access, |slot, offset, window| {
                let len = window.len() as u64;
                act(window);
                // After the store (P14), and regardless of whether a compare-exchange has stored,
                // as the processor does.
                if access == Access::Write && slot.is_logged() {
                    mark(slots, slot, offset, len);
                }
            })
        })
    }
}

/// Marks the pages of `len` bytes, at least one, from `offset` in a slot of a list that stays
/// pinned meanwhile.
#[cold]
fn mark(slots: &SlotList, slot: &Slot, offset: u64, len: u64) {
    let Some(log) = slots.log_of(slot) else { return };
    let page = |offset: u64| offset >> Level::Page4K.shift();
    // SAFETY: the log is in the list, which the callers have pinned.
    unsafe { log.marks() }.mark(page(offset), page(offset + (len - 1)));
}

/// One step per slot: each reaches at least the slot's end.
fn windows(
    slots: &SlotList,
    gpa: Gpa,
    len: usize,
    access: Access,
    mut act: impl FnMut(&Slot, u64, Window<'_>),
) -> Result<(), AccessError> {
    let (mut gpa, mut left) = (gpa, len);
    while left != 0 {
        let unmapped = AccessError::Unmapped { gpa };
        let slot = slots.find_memory(gpa).ok_or(unmapped)?;
        if access == Access::Write && slot.is_read_only() {
            return Err(AccessError::ReadOnly { gpa });
        }
        let offset = slot.offset(gpa).ok_or(unmapped)?;
        let take = usize::try_from(slot.size - offset).unwrap_or(usize::MAX).min(left);
        let host = slot.host.checked_add(offset).ok_or(unmapped)?;
        // SAFETY: `offset + take` is at most the slot's size, and the caller that added the slot
        // promised that the memory behind it can be accessed until it is returned, which does not
        // happen before the pin on `slots` is dropped; the window does not outlive this step.
        act(slot, offset, unsafe { Window::new(host, take) });
        gpa = gpa.checked_add(take as u64).ok_or(unmapped)?;
        left -= take;
    }
    Ok(())
}
