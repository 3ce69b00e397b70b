//! Whether existing translations match those that faults would install with the current slots.

use core::fmt;
use core::ops::Range;

use paging::{Gpa, Level, Permissions, PhysAddr};

use crate::access::{GuestMemory, Resolution};

/// A fault of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Discrepancy {
    /// Its page is not contained in one slot.
    NoSlot {
        /// Start of the page.
        gpa: Gpa,
    },
    /// It leads to a different page than the slot's.
    Elsewhere {
        /// Start of the page.
        gpa: Gpa,
        /// The address it leads to.
        pa: PhysAddr,
        /// The address it should lead to.
        expected: PhysAddr,
    },
    /// The slot is read-only, but the leaf is writable.
    Writable {
        /// Start of the page.
        gpa: Gpa,
    },
    /// The slot is a device's and the leaf is cached, or the reverse.
    Cached {
        /// Start of the page.
        gpa: Gpa,
    },
    /// Stores are recorded by pages of 4 KiB, but the leaf's page is larger.
    TooLarge {
        /// Start of the page.
        gpa: Gpa,
    },
}

impl fmt::Display for Discrepancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSlot { gpa } => write!(f, "the page at {gpa} is mapped and lies in no memory slot"),
            Self::Elsewhere { gpa, pa, expected } => {
                write!(f, "the page at {gpa} is mapped to {pa} instead of {expected}")
            }
            Self::Writable { gpa } => {
                write!(f, "the page at {gpa} is writable, and its memory slot read-only")
            }
            Self::Cached { gpa } => {
                write!(f, "the page at {gpa} is cached unlike its memory slot")
            }
            Self::TooLarge { gpa } => write!(f, "the page at {gpa} is too large for a dirty log"),
        }
    }
}

impl core::error::Error for Discrepancy {}

impl GuestMemory<'_> {
    /// Compares a leaf of the nested tables with the slots: whether full removal and new faults
    /// could result in the same translation, or in a piece or a larger page of it. `gpas` are the
    /// guest physical addresses of its page, `pa` is the start of the memory that it maps.
    ///
    /// Between the publication of an update and its end there may be leaves of the former slots.
    ///
    /// # Errors
    ///
    /// The fault of the leaf.
    pub fn audit(&self, gpas: Range<u64>, pa: PhysAddr, permissions: Permissions) -> Result<(), Discrepancy> {
        let gpa = Gpa(gpas.start);
        let Resolution::Ram { slot, host, .. } = self.resolve(gpa) else {
            return Err(Discrepancy::NoSlot { gpa });
        };
        if gpas.end > slot.range().end {
            return Err(Discrepancy::NoSlot { gpa });
        }
        if pa != host {
            return Err(Discrepancy::Elsewhere { gpa, pa, expected: host });
        }
        if slot.is_read_only() && permissions.contains(Permissions::WRITE) {
            return Err(Discrepancy::Writable { gpa });
        }
        if slot.is_device() != permissions.contains(Permissions::DEVICE) {
            return Err(Discrepancy::Cached { gpa });
        }
        if slot.is_logged() && gpas.end.wrapping_sub(gpas.start) > Level::Page4K.size() {
            return Err(Discrepancy::TooLarge { gpa });
        }
        Ok(())
    }

    /// Whether a store to the page of `gpa` is in a log already. This is true for a writable leaf
    /// of a logged slot whose dirty bit the processor does not set, unless the fault that made it
    /// writable is still being handled.
    pub fn is_marked(&self, gpa: Gpa) -> bool {
        self.with_list(|slots| {
            let Some((slot, log)) = slots.find(gpa).and_then(|slot| Some((slot, slots.log_of(slot)?))) else {
                return false;
            };
            // SAFETY: the log is in the list, which stays pinned meanwhile.
            let marks = unsafe { log.marks() };
            slot.offset(gpa).is_some_and(|offset| marks.has(offset >> Level::Page4K.shift()))
        })
    }
}
