//! Tests of the slots, by what they catch.

mod access;
mod backing;
mod log;
mod mmio;
mod model;
mod slots;
mod space;
mod spaces;
mod treatment;
mod update;

use paging::{Amd64Nested, Entries, NeverWalked, PageTable, PhysAddr, Stamp, TableMemory};

use crate::{Generation, Gpa, Memslots, Quiesced, Retired, Slot, SlotFlags, SlotId, SpaceId, Update};

const PAGE: u64 = 4096;

/// A slot of pages, named by a number.
fn slot(id: u16, gpa_page: u64, page_count: u64, host: u64) -> Slot {
    Slot {
        id: SlotId(id),
        gpa: Gpa(gpa_page * PAGE),
        size: page_count * PAGE,
        host: PhysAddr(host),
        flags: SlotFlags::empty(),
    }
}

/// Slots whose memory is never touched.
fn untouched(slots: &[Slot]) -> Memslots {
    let mut memslots = Memslots::new(48);
    for slot in slots {
        // SAFETY: the test only looks slots up.
        unsafe { memslots.add(*slot) }.unwrap();
    }
    memslots
}

/// Memory for one table, the root.
#[derive(Clone)]
struct OneTable;

// SAFETY: each page table that a test makes has a root only, which is never read.
unsafe impl TableMemory for OneTable {
    fn allocate(&self) -> Option<PhysAddr> {
        Some(PhysAddr(PAGE))
    }
    unsafe fn free(&self, _: PhysAddr) {}
    unsafe fn entries(&self, _: PhysAddr) -> &Entries {
        unreachable!("the table is never walked")
    }
}

/// Some stamp.
fn stamp() -> Stamp {
    PageTable::<Amd64Nested, _>::new(OneTable).unwrap().stamp()
}

/// A receipt for slots without translations.
fn receipt() -> NeverWalked {
    // SAFETY: there is no table, so no processor walks it.
    unsafe { NeverWalked::new() }
}

/// Publishes an update whose old slots nobody uses, and says that all its translations are gone.
fn settle<const SPACES: usize>(update: Update<'_, SPACES>) -> Quiesced<'_, SPACES> {
    let mut quiesced = update.publish().wait(|| false).unwrap();
    for space in (0..SPACES).map(|index| SpaceId(index as u8)) {
        assert!(quiesced.settle(space, &receipt(), stamp()));
    }
    quiesced
}

/// Finishes such an update.
fn finish<const SPACES: usize>(update: Update<'_, SPACES>) -> Generation {
    settle(update).finish(|_| ()).unwrap()
}

/// The slots whose memory an update gives back.
fn freed<const SPACES: usize>(update: Update<'_, SPACES>) -> Vec<Slot> {
    let mut freed = Vec::new();
    let free = |retired| {
        if let Retired::Memory { slot, .. } = retired {
            freed.push(slot);
        }
    };
    settle(update).finish(free).unwrap();
    freed
}
