//! Tests of the slots, grouped by the errors that they catch.

mod access;
mod arena;
mod audit;
mod backing;
mod devices;
mod log;
mod mmio;
mod model;
mod shadow;
mod slots;
mod space;
mod spaces;
mod stage2;
mod sweep;
mod treatment;
mod update;
mod updates;

use self::backing::Backing;
use crate::support::{PAGE, receipt, slot, stamp};
use crate::{Generation, Memslots, Quiesced, Slot, SpaceId, Update};

/// Slots whose memory is never touched.
fn untouched(slots: &[Slot]) -> Memslots {
    // SAFETY: the test only looks slots up.
    unsafe { with(48, slots) }
}

/// Slots of a guest of so many bits.
///
/// # Safety
///
/// As [`Memslots::add`].
unsafe fn with(bits: u32, slots: &[Slot]) -> Memslots {
    let mut memslots = Memslots::new(bits);
    for slot in slots {
        // SAFETY: the caller's promise.
        unsafe { memslots.add(*slot) }.unwrap();
    }
    memslots
}

/// Publishes an update whose old slots have no reader, and declares its translations removed.
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

/// A receipt of a flush that was issued too early.
struct Stale;

// SAFETY: it never claims anything.
unsafe impl paging::FlushReceipt for Stale {
    fn covers(&self, _: paging::Stamp) -> bool {
        false
    }
}

/// Carries out an update.
fn edit<const SPACES: usize>(
    memslots: &Memslots<SPACES>,
    edit: impl FnOnce(&mut Update<'_, SPACES>),
) -> Generation {
    let mut update = memslots.begin_update().unwrap();
    edit(&mut update);
    finish(update)
}
