//! The slots of a guest's address spaces.

use core::array;

use crate::access::GuestMemory;
use crate::generation::{Current, Generation, Numbers};
use crate::list::SlotList;
use crate::slot::{Slot, SlotError, SpaceId};
use crate::snapshots::Snapshots;
use crate::update::Update;

/// Widest guest physical address: what the AMD64 and Arm64 formats can express.
pub const PHYSICAL_BITS_MAX: u32 = 52;

/// The slots of `SPACES` guest physical address spaces: one, unless a guest sees other memory in
/// some modes.
///
/// Any CPU [reads](Self::memory) them without waiting, while another updates them. An update goes
/// through four steps, each a type that only the step before yields:
///
/// 1. [`begin_update`](Self::begin_update) marks the generation as in progress. From here on
///    nothing derived from the slots is kept.
/// 2. [`Update::publish`] shows the new slots of all spaces that it changes, and
///    [`Published::wait`](crate::Published::wait) waits until nobody uses the old ones, so that no
///    fault handler still installs a translation that it looked up in them.
/// 3. The caller [treats](crate::Quiesced::for_each_change) the translations of what has changed,
///    and flushes.
/// 4. [`Quiesced::finish`](crate::Quiesced::finish), once it has the flush's receipt, gives the
///    memory behind removed slots back and ends the update with a new generation.
///
/// There is one generation for all spaces. It orders with the slots as follows; how the slots
/// themselves are published, the table at [`snapshots`](crate::snapshots) says.
///
/// | reader that keeps something | updater |
/// |---|---|
/// | a: load the generation (Acquire) | A: compare-exchange it to in progress (Acquire) |
/// | b: pin the slots of a space, look up | B: publish the new slots of each space |
/// | c: keep the result with a's generation | C: invalidate; receipt |
/// | d: load the generation, use the result if equal | D: store the next generation (Release) |
///
/// If a reads D or later, B is before b: the lookup saw the new slots. If a reads a value from
/// before A, the result carries a number that no load at or after A returns: d discards it. In
/// between, a's mark forbids c.
#[derive(Debug)]
#[repr(C)] // For the first field, see `Snapshots`.
pub struct Memslots<const SPACES: usize = 1> {
    pub(crate) spaces: [Snapshots<SlotList>; SPACES],
    pub(crate) current: Current,
    physical_bits: u32,
}

impl Memslots {
    /// One address space without slots, for a guest whose physical addresses have `physical_bits`
    /// bits, at most [`PHYSICAL_BITS_MAX`].
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

    /// Adds a slot to the first space while nobody else uses the slots.
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
    /// Why not, as [`Update::add`] would say.
    pub fn would_add(&self, slot: &Slot) -> Result<(), SlotError> {
        self.memory().with_list(|slots| slots.clone().add(*slot, self.physical_bits))
    }

    /// Starts an update.
    ///
    /// # Errors
    ///
    /// [`SlotError::Busy`] if there is one already, or one was published and never finished.
    pub fn begin_update(&self) -> Result<Update<'_, SPACES>, SlotError> {
        let mark = self.current.begin().ok_or(SlotError::Busy)?;
        Ok(Update::new(self, mark))
    }

    /// The current generation.
    #[inline]
    pub fn generation(&self) -> Generation {
        self.current.load()
    }

    /// The guest's memory by the current slots of the first space; see
    /// [`memory_of`](Self::memory_of).
    #[inline]
    pub fn memory(&self) -> GuestMemory<'_> {
        self.memory_of(SpaceId::FIRST)
    }

    /// The guest's memory by the current slots of a space, pinned as long as the value lives.
    /// Wait-free.
    ///
    /// Keep it from a lookup to the end of what depends on it, such as installing the translation;
    /// and no longer, since an update waits for it. A caller that waits for an update must not hold
    /// one.
    ///
    /// # Panics
    ///
    /// If there is no such space. No guest chooses one that its hypervisor did not make.
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
