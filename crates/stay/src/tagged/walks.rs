//! Remembers a vCPU's last walks to its code, so that the next look at an opcode need not walk.
//!
//! A walk of the guest's page tables is a function of the registers that govern it, of the address,
//! and of the entries on its way. [`Walks`] remembers all of these with the result. Before the
//! result is reused, the registers are compared and **the entries are read again from guest
//! memory**: if all are equal, a new walk would end at the same place. It does not keep a
//! translation beyond a change of the tables, so it is not a TLB: no flush has to reach it, and
//! there is nothing to invalidate. Like the walk that it replaces, it must be used in a section.
//! Host addresses are valid for one version of the memory slots, which [`GuestMemory`] checks.

use alloc::boxed::Box;
use memslots::{AccessError, Gpa, GuestMemory, Located, Pattern, Record};
use tlfs::PAGE_SIZE;

use crate::{Mistake, Mistakes};

/// Levels of the longest walk.
const LEVELS_MAX: usize = 4;
/// Pages that are remembered, by the low bits of their number. A guest's exits occur in few places,
/// but two of them, as those of a handler and of what it interrupts, should seldom take turns at
/// one of these.
const WAYS: usize = 64;

/// One walk: its start, the entries that it read, and its end.
struct Walk<R> {
    /// Linear address of the page.
    page: u64,
    regime: R,
    entries: Record<LEVELS_MAX>,
    at: Located,
}

impl<R: Copy + Eq> Walk<R> {
    /// Walks to the page and remembers the walk. `None` for every kind of failure: the caller's own
    /// walk distinguishes them.
    #[cold]
    #[inline(never)]
    fn new(
        page: u64,
        regime: R,
        memory: &GuestMemory<'_>,
        walk: impl FnOnce(u64, &mut dyn FnMut(Gpa) -> Result<u64, AccessError>) -> Option<Gpa>,
    ) -> Option<Self> {
        let mut entries = memory.record();
        let gpa = walk(page, &mut |gpa| memory.read_recorded(gpa, &mut entries))?;
        let at = memory.locate(gpa, PAGE_SIZE).ok()?;
        Some(Self { page, regime, entries, at })
    }

    /// Whether a walk would take the same path now.
    #[inline(always)]
    fn is_current(&self, page: u64, regime: &R, memory: &GuestMemory<'_>, mistakes: &impl Mistakes) -> bool {
        let same_regime = self.regime == *regime || mistakes.makes(Mistake::RegimeIgnored);
        let same_entries = mistakes.makes(Mistake::WalkNotReadAgain) || memory.is_unchanged(&self.entries);
        self.page == page && same_regime && same_entries
    }
}

/// The walks that a vCPU remembers. `R` holds the other inputs of a walk besides address and
/// tables: control registers and privilege level.
pub struct Walks<R>(Box<[Option<Walk<R>>; WAYS]>);

impl<R> Default for Walks<R> {
    fn default() -> Self {
        // Not as an array first, which would be on the stack.
        let ways: Box<[_]> = (0..WAYS).map(|_| None).collect();
        Self(ways.try_into().unwrap_or_else(|_| unreachable!("there are so many")))
    }
}

impl<R> core::fmt::Debug for Walks<R> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Walks({})", self.0.iter().flatten().count())
    }
}

impl<R: Copy + Eq> Walks<R> {
    /// What they take of the heap, in bytes.
    pub const BYTES: usize = size_of::<[Option<Walk<R>>; WAYS]>();

    /// Whether the bytes at `linear` are `usual`. Also false if that cannot be determined: the code
    /// cannot be read, or crosses a page. Call it in a section, with the memory of that section.
    ///
    /// `walk` finds the location of a page, using the entries that it is given.
    #[inline(always)] // Two callers, of which one is seldom and the other on the way of most exits.
    pub fn has_at(
        &mut self,
        linear: u64,
        regime: R,
        memory: &GuestMemory<'_>,
        usual: &Pattern,
        mistakes: &impl Mistakes,
        walk: impl FnOnce(u64, &mut dyn FnMut(Gpa) -> Result<u64, AccessError>) -> Option<Gpa>,
    ) -> bool {
        let page = linear & !(PAGE_SIZE as u64 - 1);
        let way = &mut self.0[linear as usize / PAGE_SIZE % WAYS];
        if !way.as_ref().is_some_and(|known| known.is_current(page, &regime, memory, mistakes)) {
            *way = Walk::new(page, regime, memory, walk);
        }
        let offset = linear as usize % PAGE_SIZE;
        way.as_ref().is_some_and(|known| memory.has_at(&known.at, offset, usual))
    }
}
