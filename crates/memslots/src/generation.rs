//! Generations of the slots.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sync::AtomicU64;

/// A generation of the slots, with a mark while an update is in progress.
///
/// Data derived from the slots, such as the knowledge that an address is MMIO, may be kept with the
/// generation that was read **before** the lookup, unless that was [in
/// progress](Self::is_in_progress). It may be used again while
/// [`Memslots::generation`](crate::Memslots::generation) returns the same.
///
/// A number is never used twice: after the last one of 63 bits, the slots stay in progress
/// permanently. One generation covers all address spaces, so none of them can wrap unnoticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u64);

impl Generation {
    const IN_PROGRESS: u64 = 1 << 63;
    /// The last number that 63 bits hold.
    pub(crate) const LAST: u64 = Self::IN_PROGRESS - 1;
    /// A generation that no usable slots have.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    pub(crate) const fn new(number: u64) -> Self {
        Self(number & !Self::IN_PROGRESS)
    }

    /// Whether an update is in progress. Nothing derived from the slots may be kept then.
    #[inline]
    pub const fn is_in_progress(self) -> bool {
        self.0 & Self::IN_PROGRESS != 0
    }

    /// The number, without the mark: below 2^63.
    #[inline]
    pub const fn number(self) -> u64 {
        self.0 & !Self::IN_PROGRESS
    }

    const fn in_progress(self) -> Self {
        Self(self.0 | Self::IN_PROGRESS)
    }

    /// The generation before this one's update.
    const fn aborted(self) -> Self {
        Self(self.number())
    }
}

/// The range of generations. In tests it may be small.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// After this one the slots stay in progress.
    last: u64,
    /// Restarts at 0 instead: the bug that the wide number avoids.
    #[cfg(any(test, feature = "testing"))]
    wraps: bool,
}

impl Numbers {
    /// As many as 63 bits allow.
    pub(crate) const ALL: Self = Self {
        last: Generation::LAST,
        #[cfg(any(test, feature = "testing"))]
        wraps: false,
    };

    /// As many as `bits` allow, at most 63.
    #[cfg(any(test, feature = "testing"))]
    pub const fn of_bits(bits: u32) -> Self {
        Self { last: if bits < 63 { (1 << bits) - 1 } else { Generation::LAST }, wraps: false }
    }

    /// As many as `bits` allow, repeating: data kept with an old generation becomes valid again.
    #[cfg(any(test, feature = "testing"))]
    pub const fn of_bits_that_wrap(bits: u32) -> Self {
        Self { wraps: true, ..Self::of_bits(bits) }
    }

    /// The generation after an update.
    const fn after(self, during: Generation) -> Generation {
        let number = during.number();
        #[cfg(any(test, feature = "testing"))]
        if self.wraps && number >= self.last {
            return Generation(0);
        }
        if number >= self.last { during } else { Generation(number + 1) }
    }
}

/// The current generation. Its in-progress mark is the lock of the only updater.
#[derive(Debug)]
pub(crate) struct Current {
    word: AtomicU64,
    numbers: Numbers,
}

impl Current {
    pub(crate) fn new(first: Generation, numbers: Numbers) -> Self {
        Self { word: AtomicU64::new(first.0), numbers }
    }

    #[inline]
    pub(crate) fn load(&self) -> Generation {
        // Pairs with `end`.
        Generation(self.word.load(Acquire))
    }

    /// Marks it as in progress; `None` if it already is.
    pub(crate) fn begin(&self) -> Option<InProgress<'_>> {
        let idle = self.load().aborted();
        // Acquire: pairs with the store that ended or aborted the previous update.
        self.word.compare_exchange(idle.0, idle.in_progress().0, Acquire, Relaxed).ok()?;
        Some(InProgress { current: self, is_revocable: true })
    }
}

/// The in-progress mark. Dropping it removes the mark with the generation unchanged, unless the
/// mark was made permanent.
#[derive(Debug)]
pub(crate) struct InProgress<'a> {
    current: &'a Current,
    is_revocable: bool,
}

impl InProgress<'_> {
    /// Makes the mark stay until [`end`](Self::end).
    pub(crate) fn make_permanent(&mut self) {
        self.is_revocable = false;
    }

    /// Begins the next generation.
    pub(crate) fn end(mut self) -> Generation {
        self.make_permanent();
        let next = self.current.numbers.after(self.current.load());
        // Pairs with `load` and `begin`.
        self.current.word.store(next.0, Release);
        next
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        if self.is_revocable {
            // Pairs with `load` and `begin`.
            self.current.word.store(self.current.load().aborted().0, Release);
        }
    }
}
