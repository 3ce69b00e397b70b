//! The slots of an address space, and their update.

use core::fmt;
use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use paging::{FlushReceipt, Stamp};

use crate::access::GuestMemory;
use crate::generation::Generation;
use crate::slot::{Slot, SlotError, SlotId, SlotList};
use crate::snapshots::{Draft, Drain, Snapshots};
use crate::sync::AtomicU64;

/// Widest guest physical address: what the AMD64 and Arm64 formats can express.
pub const PHYSICAL_BITS_MAX: u32 = 52;

/// The slots of one guest physical address space.
///
/// Any CPU [reads](Self::memory) them without waiting, while another updates them. An update goes through
/// four steps, each a type that only the step before yields:
///
/// 1. [`begin_update`](Self::begin_update) marks the generation as in progress. From here on nothing
///    derived from the slots is kept.
/// 2. [`Update::publish`] shows the new slots, and [`Published::wait`] waits until nobody uses the old
///    ones, so that no fault handler still installs a translation that it looked up in them.
/// 3. The caller removes the translations of the [removed](Quiesced::removed) ranges, and flushes.
/// 4. [`Quiesced::finish`], in exchange for the flush's receipt, gives the memory behind removed slots
///    back and ends the update with a new generation.
///
/// The generation orders with the slots as follows; how the slots themselves are published, the table in `snapshots.rs` says.
///
/// | reader that keeps something | updater |
/// |---|---|
/// | a: load the generation (Acquire) | A: compare-exchange it to in progress (Acquire) |
/// | b: pin the slots, look up | B: publish the new slots |
/// | c: keep the result with a's generation | C: invalidate; receipt |
/// | d: load the generation, use the result if equal | D: store the next generation (Release) |
///
/// If a reads D or later, B is before b: the lookup saw the new slots. If a reads a value from before A,
/// the result carries a number that no load at or after A returns: d discards it. In between, a's mark
/// forbids c.
#[derive(Debug)]
pub struct Memslots {
    slots: Snapshots<SlotList>,
    generation: AtomicU64,
    physical_bits: u32,
}

impl Memslots {
    /// No slots yet, for a guest whose physical addresses have `physical_bits` bits, at most
    /// [`PHYSICAL_BITS_MAX`].
    pub fn new(physical_bits: u32) -> Self {
        Self::with_generation(physical_bits, Generation::from_word(0))
    }

    pub(crate) fn with_generation(physical_bits: u32, generation: Generation) -> Self {
        Self {
            slots: Snapshots::new(SlotList::default()),
            generation: AtomicU64::new(generation.word()),
            physical_bits: physical_bits.min(PHYSICAL_BITS_MAX),
        }
    }

    /// Adds a slot while nobody else uses the slots.
    ///
    /// # Errors
    ///
    /// See [`SlotError`]. Nothing has changed then.
    ///
    /// # Safety
    ///
    /// As for [`Update::add`].
    pub unsafe fn add(&mut self, slot: Slot) -> Result<(), SlotError> {
        let mut update = self.begin_update()?;
        // SAFETY: the caller's promise is the same.
        unsafe { update.add(slot) }?;
        // Exclusive access: there are no readers to wait for, and nothing is removed.
        let quiesced = update.publish().wait(|| false).map_err(|_| SlotError::Busy)?;
        quiesced.finish_added().map(|_| ()).map_err(|_| SlotError::Busy)
    }

    /// Starts an update.
    ///
    /// # Errors
    ///
    /// [`SlotError::Busy`] if there is one already, or one was published and never finished.
    pub fn begin_update(&self) -> Result<Update<'_>, SlotError> {
        let idle = Generation::from_word(self.generation.load(Acquire)).aborted();
        // Acquire: pairs with the store that ended or took back the update before.
        self.generation
            .compare_exchange(idle.word(), idle.in_progress().word(), Acquire, Relaxed)
            .map_err(|_| SlotError::Busy)?;
        // SAFETY: the mark is the lock. It is released when an update is dropped unpublished, or has
        // drained and is finished, and not otherwise.
        let draft = unsafe { self.slots.begin() };
        Ok(Update { lock: UpdateLock { memslots: self, is_held: true }, draft })
    }

    /// The current generation.
    #[inline]
    pub fn generation(&self) -> Generation {
        Generation::from_word(self.generation.load(Acquire))
    }

    /// The guest's memory by its current slots, pinned as long as the value lives. Wait-free.
    ///
    /// Keep it from a lookup to the end of what depends on it, such as installing the translation; and
    /// no longer, since an update waits for it. Whoever waits for an update must not hold one.
    #[inline]
    pub fn memory(&self) -> GuestMemory<'_> {
        // Before the pin, see the table above.
        let generation = self.generation();
        GuestMemory::new(self.slots.pin(), generation)
    }

    /// Width of guest physical addresses in bits.
    pub fn physical_bits(&self) -> u32 {
        self.physical_bits
    }
}

/// The in-progress mark, which is the lock of the one writer. Dropping it takes the mark away with the
/// generation unchanged, unless it was made permanent.
struct UpdateLock<'a> {
    memslots: &'a Memslots,
    is_held: bool,
}

impl UpdateLock<'_> {
    /// From here on the mark stays, until [`end`](Self::end).
    fn make_permanent(&mut self) {
        self.is_held = false;
    }

    fn end(&mut self) -> Generation {
        let next = self.memslots.generation().finished();
        self.memslots.generation.store(next.word(), Release);
        next
    }
}

impl Drop for UpdateLock<'_> {
    fn drop(&mut self) {
        if self.is_held {
            let before = self.memslots.generation().aborted();
            self.memslots.generation.store(before.word(), Release);
        }
    }
}

/// An update that nobody sees yet. Dropping it leaves everything as it was.
#[must_use = "an update that is not published changes nothing"]
pub struct Update<'a> {
    // Dropped in this order: the draft is gone when the lock opens.
    draft: Draft<'a, SlotList>,
    lock: UpdateLock<'a>,
}

impl<'a> Update<'a> {
    /// Adds a slot.
    ///
    /// # Errors
    ///
    /// See [`SlotError`]. The update is then as before the call.
    ///
    /// # Safety
    ///
    /// From now until the slot is handed back by [`Quiesced::finish`], `slot.size` bytes from
    /// `slot.host` are mapped one to one, readable and writable, with exposed provenance; and the
    /// hypervisor holds no reference into them and keeps nothing there that its own safety rests on:
    /// guest and hypervisor change them at any time.
    pub unsafe fn add(&mut self, slot: Slot) -> Result<(), SlotError> {
        let physical_bits = self.lock.memslots.physical_bits;
        self.draft.edit(|slots| slots.add(slot, physical_bits))
    }

    /// Removes a slot. The memory behind it stays in use until the update is finished.
    ///
    /// # Errors
    ///
    /// [`SlotError::UnknownId`].
    pub fn remove(&mut self, id: SlotId) -> Result<(), SlotError> {
        self.draft.edit(|slots| slots.remove(id)).map(|_| ())
    }

    /// Shows the new slots to readers.
    pub fn publish(self) -> Published<'a> {
        let Self { draft, mut lock } = self;
        lock.make_permanent();
        Published { drain: draft.publish(), lock }
    }
}

/// An update that is visible, while readers of the old slots may still be under way.
///
/// Dropping it leaves the update in progress for good: nothing is cached, and no update starts. That is
/// wasteful but safe.
#[must_use = "an update must be finished"]
pub struct Published<'a> {
    drain: Drain<'a, SlotList>,
    lock: UpdateLock<'a>,
}

impl<'a> Published<'a> {
    /// Waits until nobody uses the old slots. `relax` is called after each look and says whether to go
    /// on; it should serve what other CPUs may be waiting for.
    ///
    /// # Errors
    ///
    /// The update itself, if `relax` gave up.
    pub fn wait(self, mut relax: impl FnMut() -> bool) -> Result<Quiesced<'a>, Self> {
        while !self.drain.is_drained() {
            if !relax() {
                return Err(self);
            }
        }
        Ok(Quiesced { drain: self.drain, lock: self.lock })
    }
}

/// An update whose old slots nobody uses any more, except by translations that are still in use. To drop
/// it is as to drop [`Published`].
#[must_use = "an update must be finished"]
pub struct Quiesced<'a> {
    drain: Drain<'a, SlotList>,
    lock: UpdateLock<'a>,
}

impl Quiesced<'_> {
    /// Calls `visit` with the guest physical addresses of each removed slot: what must be zapped.
    pub fn removed(&self, mut visit: impl FnMut(Range<u64>)) {
        self.for_each_removed(|slot| visit(slot.gpa.0..slot.gpa.0 + slot.size));
    }

    /// Ends the update, and gives back the removed slots: `free` may reuse the memory behind them.
    /// `last` is the page table's stamp after the removed ranges were zapped.
    ///
    /// # Errors
    ///
    /// The update itself, if the receipt does not cover `last`.
    pub fn finish(
        mut self,
        receipt: &impl FlushReceipt,
        last: Stamp,
        free: impl FnMut(Slot),
    ) -> Result<Generation, Self> {
        if !receipt.covers(last) {
            return Err(self);
        }
        self.for_each_removed(free);
        Ok(self.lock.end())
    }

    /// Ends an update that has removed nothing.
    ///
    /// # Errors
    ///
    /// The update itself, if it has.
    pub fn finish_added(mut self) -> Result<Generation, Self> {
        let mut removed_count = 0;
        self.for_each_removed(|_| removed_count += 1);
        if removed_count != 0 {
            return Err(self);
        }
        Ok(self.lock.end())
    }

    /// Slots of the former copy that the current one lacks or has changed.
    fn for_each_removed(&self, mut visit: impl FnMut(Slot)) {
        self.drain.read(|former, current| {
            let current = current.as_slice();
            former.as_slice().iter().filter(|slot| !current.contains(slot)).copied().for_each(&mut visit);
        });
    }
}

impl fmt::Debug for Update<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Update")
    }
}

impl fmt::Debug for Published<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Published")
    }
}

impl fmt::Debug for Quiesced<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Quiesced")
    }
}
