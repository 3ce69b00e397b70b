//! A vCPU's cache of addresses without memory.

use paging::{Gpa, Level};

use crate::generation::Generation;

/// No page has this number.
const NONE: u64 = u64::MAX;

/// Pages of one address space that are known to be MMIO: a vCPU's last `N`, so that an exit for one
/// of them needs neither a search of the slots nor a pin.
///
/// All entries are of one generation of the slots, and are dropped when another one is seen.
#[derive(Clone, Debug)]
pub struct MmioCache<const N: usize> {
    pub(crate) generation: Generation,
    pub(crate) pages: [u64; N],
    /// The page to replace next.
    pub(crate) next: usize,
}

impl<const N: usize> MmioCache<N> {
    /// Nothing is known.
    pub const fn new() -> Self {
        Self { generation: Generation::NEVER, pages: [NONE; N], next: 0 }
    }

    /// Whether the page of `gpa` is known to have no memory. `generation` is the [current
    /// one](crate::Memslots::generation).
    #[inline]
    pub fn has(&self, gpa: Gpa, generation: Generation) -> bool {
        self.generation == generation && self.pages.contains(&page(gpa))
    }

    /// Remembers that the page of `gpa` has no memory. `generation` is the one from **before** the
    /// lookup: that of the [memory](crate::GuestMemory::generation) that was searched. Returns
    /// false, and remembers nothing, if it is in progress.
    pub fn insert(&mut self, gpa: Gpa, generation: Generation) -> bool {
        if generation.is_in_progress() {
            return false;
        }
        if self.generation != generation {
            *self = Self { generation, ..Self::new() };
        }
        if !self.pages.contains(&page(gpa))
            && let Some(oldest) = self.pages.get_mut(self.next)
        {
            *oldest = page(gpa);
            self.next = (self.next + 1) % N;
        }
        true
    }
}

impl<const N: usize> Default for MmioCache<N> {
    fn default() -> Self {
        Self::new()
    }
}

const fn page(gpa: Gpa) -> u64 {
    gpa.0 >> Level::Page4K.shift()
}
