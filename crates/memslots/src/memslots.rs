//! The slots of a guest's address spaces.

use core::array;

use crate::access::GuestMemory;
use crate::generation::{Current, Generation, Numbers};
use crate::list::SlotList;
use crate::slot::{Slot, SlotError, SpaceId};
use crate::snapshots::Snapshots;
use crate::update::Update;

/// Widest guest physical address that the AMD64 and Arm64 formats can express.
pub const PHYSICAL_BITS_MAX: u32 = 52;

/// The slots of `SPACES` guest physical address spaces: one, unless a guest sees different memory
/// in some modes.
///
/// Any CPU [reads](Self::memory) them without waiting while another updates them. An update has
/// four steps, each a type that only the previous step returns:
///
/// 1. [`begin_update`](Self::begin_update) marks the generation as in progress. From here on
///    nothing derived from the slots is kept.
/// 2. [`Update::publish`] publishes the new slots of all spaces that it changes.
///    [`Published::wait`](crate::Published::wait) waits until no reader uses the old ones, so that
///    no fault handler can still install a translation that it looked up in them.
/// 3. The caller [treats](crate::Quiesced::for_each_change) the translations of changed slots, and
///    flushes.
/// 4. [`Quiesced::finish`](crate::Quiesced::finish), given the flush's receipt, returns the memory
///    behind removed slots and ends the update with a new generation.
///
/// There is one generation for all spaces. Its order relative to the slots is as follows; the table
/// at [`snapshots`](crate::snapshots) explains how the slots themselves are published.
///
/// | reader that keeps a result | updater |
/// |---|---|
/// | a: load the generation (Acquire) | A: compare-exchange it to in progress (Acquire) |
/// | b: pin the slots of a space, look up | B: publish the new slots of each space |
/// | c: keep the result with a's generation | C: invalidate; receipt |
/// | d: load the generation, use the result if equal | D: store the next generation (Release) |
///
/// If a reads D or later, B is before b: the lookup saw the new slots. If a reads a value from
/// before A, the result carries a number that no load at or after A returns: d discards it. In
/// between, the mark that a reads forbids c.
#[derive(Debug)]
#[repr(C)] // For the first field, see `Snapshots`.
pub struct Memslots<const SPACES: usize = 1> {
    pub(crate) spaces: [Snapshots<SlotList>; SPACES],
    pub(crate) current: Current,
    physical_bits: u32,
}

impl Memslots {
    /// One address space without slots, for a guest with `physical_bits` bits of physical address,
    /// at most [`PHYSICAL_BITS_MAX`].
    pub fn new(physical_bits: u32) -> Self {
        Self::with_spaces(physical_bits)
    }
}

impl<const SPACES: usize> Memslots<SPACES> {
    /// As [`new`](Memslots::new), with any number of address spaces from 1 to 256.
    pub fn with_spaces(physical_bits: u32) -> Self {
        Self::with_generation(physical_bits, Generation::new(0), Numbers::ALL)
    }

    /// With other [generations](Numbers).
    #[cfg(feature = "testing")]
    pub fn with_numbers(physical_bits: u32, numbers: Numbers) -> Self {
        Self::with_generation(physical_bits, Generation::new(0), numbers)
    }

    pub(crate) fn with_generation(physical_bits: u32, first: Generation, numbers: Numbers) -> Self {
        const { assert!(SPACES >= 1 && SPACES <= 256, "spaces are named by a byte") };
        Self {
            spaces: array::from_fn(|_| Snapshots::new(SlotList::default())),
            current: Current::new(first, numbers),
            physical_bits: physical_bits.min(PHYSICAL_BITS_MAX),
        }
    }

    /// Adds a slot to the first space while the slots have no other user.
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
        quiesced.finish(|_| ()).map(|_| ()).map_err(|_| SlotError::Busy)
    }

    /// Whether a slot could be added to the first space now.
    ///
    /// # Errors
    ///
    /// The reason why not, as [`Update::add`] would return it.
    pub fn would_add(&self, slot: &Slot) -> Result<(), SlotError> {
        self.memory().with_list(|slots| slots.clone().add(*slot, self.physical_bits))
    }

    /// Starts an update.
    ///
    /// # Errors
    ///
    /// [`SlotError::Busy`] if there is one already, or if one was published and never finished.
    pub fn begin_update(&self) -> Result<Update<'_, SPACES>, SlotError> {
        let mark = self.current.begin().ok_or(SlotError::Busy)?;
        Ok(Update::new(self, mark))
    }

    /// The current generation.
    #[inline]
    pub fn generation(&self) -> Generation {
        self.current.load()
    }

    /// The guest's memory through the current slots of the first space; see
    /// [`memory_of`](Self::memory_of).
    #[inline]
    pub fn memory(&self) -> GuestMemory<'_> {
        self.memory_of(SpaceId::FIRST)
    }

    /// The guest's memory through the current slots of a space, pinned as long as the value lives.
    /// Wait-free.
    ///
    /// Keep it from a lookup to the end of the work that depends on it, such as installing the
    /// translation, and no longer, since an update waits for it. A caller that waits for an update
    /// must not hold one.
    ///
    /// # Panics
    ///
    /// If there is no such space. A guest can only choose a space that its hypervisor created.
    #[inline]
    pub fn memory_of(&self, space: SpaceId) -> GuestMemory<'_> {
        // Before the pin, see the table above.
        let generation = self.generation();
        GuestMemory::new(self.spaces[space.index()].pin(), generation)
    }

    /// The names of the spaces.
    pub fn spaces(&self) -> impl Iterator<Item = SpaceId> + use<SPACES> {
        // At most 256, see `with_generation`.
        (0..SPACES).map(|index| SpaceId(index as u8))
    }

    /// Width of guest physical addresses in bits.
    pub fn physical_bits(&self) -> u32 {
        self.physical_bits
    }
}
