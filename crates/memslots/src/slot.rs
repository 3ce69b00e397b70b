//! One slot, and the sorted list of them.

use core::fmt;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;
use paging::{Gpa, Level, PhysAddr};

/// Most slots of one address space.
pub const SLOTS_MAX: usize = 64;

/// Names a slot for as long as it exists; chosen by whoever adds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u16);

bitflags::bitflags! {
    /// Properties of a slot.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SlotFlags: u8 {
        /// The guest may not write: its writes are emulated, or an error.
        const READ_ONLY = 1 << 0;
    }
}

/// A range of guest physical addresses with memory behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its name.
    pub id: SlotId,
    /// First guest physical address.
    pub gpa: Gpa,
    /// Length in bytes.
    pub size: u64,
    /// First byte of the memory behind it. The hypervisor maps memory one to one, so this is also the
    /// address of a pointer to it.
    pub host: PhysAddr,
    /// Properties.
    pub flags: SlotFlags,
}

impl Slot {
    /// Whether the guest may only read.
    pub fn is_read_only(&self) -> bool {
        self.flags.contains(SlotFlags::READ_ONLY)
    }

    /// Last guest physical address. Slots in a list never wrap.
    pub fn last(&self) -> Gpa {
        Gpa(self.gpa.0.wrapping_add(self.size.wrapping_sub(1)))
    }

    /// Whether `gpa` lies in the slot.
    #[inline]
    pub fn contains(&self, gpa: Gpa) -> bool {
        self.offset(gpa).is_some()
    }

    /// Offset of `gpa` in the slot, below its size.
    #[inline]
    pub(crate) fn offset(&self, gpa: Gpa) -> Option<u64> {
        gpa.0.checked_sub(self.gpa.0).filter(|&offset| offset < self.size)
    }

    /// The largest page around `gpa` that lies in the slot as a whole and that nested tables can map,
    /// guest and host address being aligned alike.
    pub(crate) fn level(&self, gpa: Gpa, host: PhysAddr) -> Level {
        let fits = |level: Level| {
            let first = gpa.align_down(level);
            let last = Gpa(first.0 | level.offset_mask());
            (gpa.0 ^ host.0) & level.offset_mask() == 0 && self.contains(first) && self.contains(last)
        };
        [Level::Page1G, Level::Page2M].into_iter().find(|&level| fits(level)).unwrap_or(Level::Page4K)
    }
}

/// Why a change of the slots was refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotError {
    /// Size 0.
    Empty,
    /// An address or the size is not a multiple of 4 KiB.
    Unaligned,
    /// It ends beyond the guest's physical address width, or the backing beyond the machine's.
    TooHigh,
    /// It overlaps this slot.
    Overlap(SlotId),
    /// There is a slot of this name.
    DuplicateId,
    /// There is no slot of this name.
    UnknownId,
    /// There are [`SLOTS_MAX`] slots already.
    Full,
    /// Another update is in progress, or one was never finished.
    Busy,
}

impl fmt::Display for SlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a memory slot of size 0"),
            Self::Unaligned => f.write_str("a memory slot that is not aligned to pages"),
            Self::TooHigh => f.write_str("a memory slot beyond the physical address width"),
            Self::Overlap(SlotId(id)) => write!(f, "a memory slot that overlaps slot {id}"),
            Self::DuplicateId => f.write_str("a memory slot of this name exists"),
            Self::UnknownId => f.write_str("no memory slot of this name"),
            Self::Full => f.write_str("no room for another memory slot"),
            Self::Busy => f.write_str("another update of the memory slots is in progress"),
        }
    }
}

impl core::error::Error for SlotError {}

/// Names the contents of a list: lists with one stamp hold the same slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListStamp(u64);

impl ListStamp {
    /// One that no list has had, in any address space. 64 bits do not wrap.
    fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Relaxed) + 1)
    }
}

/// Slots in ascending order, without overlap.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotList {
    slots: ArrayVec<Slot, SLOTS_MAX>,
    /// Changes with the slots; that of the empty list is 0.
    stamp: ListStamp,
}

impl SlotList {
    /// The slot that has `gpa`. The first one, where a guest's kernel and its tables usually are, is found at once.
    #[inline]
    pub(crate) fn find(&self, gpa: Gpa) -> Option<&Slot> {
        match self.slots.first() {
            Some(first) if first.contains(gpa) => Some(first),
            _ => self.find_by_search(gpa),
        }
    }

    fn find_by_search(&self, gpa: Gpa) -> Option<&Slot> {
        let above = self.slots.partition_point(|slot| slot.gpa <= gpa);
        self.slots.get(above.checked_sub(1)?).filter(|slot| slot.contains(gpa))
    }

    pub(crate) fn as_slice(&self) -> &[Slot] {
        &self.slots
    }

    pub(crate) const fn stamp(&self) -> ListStamp {
        self.stamp
    }

    pub(crate) fn add(&mut self, slot: Slot, physical_bits: u32) -> Result<(), SlotError> {
        check(&slot, physical_bits)?;
        if self.slots.iter().any(|other| other.id == slot.id) {
            return Err(SlotError::DuplicateId);
        }
        let index = self.slots.partition_point(|other| other.gpa <= slot.gpa);
        let before = index.checked_sub(1).and_then(|before| self.slots.get(before));
        if let Some(before) = before.filter(|before| before.last() >= slot.gpa) {
            return Err(SlotError::Overlap(before.id));
        }
        if let Some(after) = self.slots.get(index).filter(|after| slot.last() >= after.gpa) {
            return Err(SlotError::Overlap(after.id));
        }
        self.slots.try_insert(index, slot).map_err(|_| SlotError::Full)?;
        self.stamp = ListStamp::next();
        Ok(())
    }

    pub(crate) fn remove(&mut self, id: SlotId) -> Result<Slot, SlotError> {
        let index = self.slots.iter().position(|slot| slot.id == id).ok_or(SlotError::UnknownId)?;
        let removed = self.slots.pop_at(index).ok_or(SlotError::UnknownId)?;
        self.stamp = ListStamp::next();
        Ok(removed)
    }
}

/// Checks what a slot must satisfy by itself.
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
