//! Memory of the hypervisor's own that a guest may read, and the hypervisor writes: a slot that
//! exists as long as the guest.

use baremetal::pages::PAGE;
use core::sync::atomic::AtomicU64;
use memslots::{Gpa, Memslots, PhysAddr, Slot, SlotError, SlotFlags, SlotId};

use crate::pages::Pages;

/// The slot of a device. RAM and added memory have lower ids.
pub const DEVICE_SLOT: SlotId = SlotId(u16::MAX);

/// Pages that are zero at first, and their place in the guest's physical address space. They are
/// freed with the guest, after its slots.
#[derive(Debug)]
pub struct ShownMemory {
    pages: Pages,
    slot: Slot,
}

impl ShownMemory {
    /// As many pages as these bytes need. The guest sees them from the page-aligned address `gpa`
    /// on.
    pub fn new(gpa: Gpa, bytes: u64) -> Self {
        let size = bytes.next_multiple_of(PAGE);
        let pages = Pages::new((size / PAGE) as usize);
        let host = PhysAddr(pages.start());
        Self { slot: Slot { id: DEVICE_SLOT, gpa, size, host, flags: SlotFlags::READ_ONLY }, pages }
    }

    /// Adds the slot.
    ///
    /// # Errors
    ///
    /// If other memory is there.
    pub fn add_to(&self, slots: &mut Memslots) -> Result<(), SlotError> {
        // SAFETY: the pages come from the heap, are mapped one to one, and are freed with the
        // guest, whose slots are gone then. The hypervisor's safety depends on nothing in them.
        unsafe { slots.add(self.slot) }
    }

    /// The memory, by words.
    pub fn words(&self) -> &[AtomicU64] {
        self.pages.words()
    }
}
