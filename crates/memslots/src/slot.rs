//! One slot, its names and its properties.

use core::fmt;
use core::ops::Range;

use paging::{Gpa, Level, Permissions, PhysAddr};

/// The most slots of one address space. The model checker's threads have small stacks.
pub const SLOTS_MAX: usize = if cfg!(loom) { 4 } else { 64 };

/// Names a guest physical address space: its index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub u8);

impl SpaceId {
    /// The space that always exists.
    pub const FIRST: Self = Self(0);

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Names a slot of an address space for as long as it exists; who adds the slot chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u16);

bitflags::bitflags! {
    /// Properties of a slot.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SlotFlags: u8 {
        /// The guest may not write: its writes are emulated, or an error.
        const READ_ONLY = 1 << 0;
        /// Stores are recorded in the slot's [`DirtyLog`](crate::DirtyLog). Set exactly while it
        /// has one.
        const LOG_DIRTY = 1 << 1;
        /// While stores are recorded, leaves allow no store until the first store to their page has
        /// faulted. Without this flag the processor's dirty bits report stores.
        const LOG_BY_FAULTS = 1 << 2;
        /// While stores are recorded, processors list the pages whose dirty bits they set, and the
        /// hypervisor [marks](crate::GuestMemory::mark_dirty) these.
        const LOG_BY_LISTS = 1 << 4;
        /// Registers of a device that the guest owns, instead of memory. vCPUs reach them uncached,
        /// and do not execute from them. Software does not reach them: an access on the guest's
        /// behalf finds no memory there. Stores to them are not logged.
        const DEVICE = 1 << 3;
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
    /// First byte of the memory behind it. The hypervisor maps memory one to one, so this is also
    /// the address of a pointer to it.
    pub host: PhysAddr,
    /// Properties.
    pub flags: SlotFlags,
}

impl Slot {
    /// Whether the guest may only read.
    pub fn is_read_only(&self) -> bool {
        self.flags.contains(SlotFlags::READ_ONLY)
    }

    /// Whether a device's registers are behind it.
    #[inline]
    pub fn is_device(&self) -> bool {
        self.flags.contains(SlotFlags::DEVICE)
    }

    /// The permissions of leaves while stores are not recorded.
    pub(crate) fn rights(&self) -> Permissions {
        match (self.is_device(), self.is_read_only()) {
            (true, true) => Permissions::R | Permissions::DEVICE,
            (true, false) => Permissions::RW | Permissions::DEVICE,
            (false, true) => Permissions::RX,
            (false, false) => Permissions::RWX,
        }
    }

    /// Whether stores are recorded.
    #[inline]
    pub fn is_logged(&self) -> bool {
        self.flags.contains(SlotFlags::LOG_DIRTY)
    }

    /// Whether stores are recorded, and detected by write faults.
    pub fn is_logged_by_faults(&self) -> bool {
        self.flags.contains(SlotFlags::LOG_DIRTY | SlotFlags::LOG_BY_FAULTS)
    }

    /// Whether stores are recorded, and the log alone says which pages to look at.
    pub(crate) fn is_logged_by_marks(&self) -> bool {
        self.is_logged() && self.flags.intersects(SlotFlags::LOG_BY_FAULTS | SlotFlags::LOG_BY_LISTS)
    }

    /// Its guest physical addresses. Slots in a list never wrap.
    pub fn range(&self) -> Range<u64> {
        self.gpa.0..self.gpa.0.wrapping_add(self.size)
    }

    /// Last guest physical address. Slots in a list never wrap.
    pub fn last(&self) -> Gpa {
        Gpa(self.gpa.0.wrapping_add(self.size.wrapping_sub(1)))
    }

    /// Whether the slot contains `gpa`.
    #[inline]
    pub fn contains(&self, gpa: Gpa) -> bool {
        self.offset(gpa).is_some()
    }

    /// Offset of `gpa` in the slot, below its size.
    #[inline]
    pub(crate) fn offset(&self, gpa: Gpa) -> Option<u64> {
        gpa.0.checked_sub(self.gpa.0).filter(|&offset| offset < self.size)
    }

    /// The largest page around `gpa` that the slot contains as a whole and that nested tables can
    /// map, which requires equal alignment of guest and host address. Recorded stores use the
    /// smallest page size.
    pub(crate) fn level(&self, gpa: Gpa, host: PhysAddr) -> Level {
        if self.is_logged() {
            return Level::Page4K;
        }
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
#[non_exhaustive]
pub enum SlotError {
    /// Size 0.
    Empty,
    /// An address or the size is not a multiple of 4 KiB.
    Unaligned,
    /// It ends beyond the guest's physical address width, or the backing beyond the machine's.
    TooHigh,
    /// It overlaps this slot.
    Overlap(SlotId),
    /// A slot with this name exists.
    DuplicateId,
    /// No slot has this name.
    UnknownId,
    /// There are [`SLOTS_MAX`] slots already.
    Full,
    /// Another update is in progress, or one was never finished.
    Busy,
    /// There is no such address space.
    UnknownSpace,
    /// [`SlotFlags::LOG_DIRTY`] differs from whether the slot has a log, or the requested log does
    /// not exist.
    NoLog,
    /// The slot already has a log.
    HasLog,
    /// The log has less than one bit for each page of the slot.
    LogTooShort,
    /// The slot is a device's, and its stores cannot be logged.
    Device,
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
            Self::UnknownSpace => f.write_str("no such guest physical address space"),
            Self::NoLog => f.write_str("a memory slot without a dirty log"),
            Self::HasLog => f.write_str("stores to the memory slot are logged already"),
            Self::Device => f.write_str("a memory slot of a device, whose stores cannot be logged"),
            Self::LogTooShort => f.write_str("a dirty log that is too short for the memory slot"),
        }
    }
}

impl core::error::Error for SlotError {}
