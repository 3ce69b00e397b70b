//! Generations of the slots.

/// A generation of the slots, with a mark while an update is in progress.
///
/// What was derived from the slots, such as the knowledge that an address is MMIO, may be kept with the
/// generation that was read **before** the lookup, unless that was [in progress](Self::is_in_progress),
/// and used again while [`Memslots::generation`](crate::Memslots::generation) returns the same.
///
/// A number is never used twice: after the last one of 63 bits, the slots stay in progress for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u64);

impl Generation {
    const IN_PROGRESS: u64 = 1 << 63;
    pub(crate) const LAST: Self = Self(Self::IN_PROGRESS - 1);

    pub(crate) const fn from_word(word: u64) -> Self {
        Self(word)
    }

    pub(crate) const fn word(self) -> u64 {
        self.0
    }

    /// Whether an update is in progress. Nothing derived from the slots may be kept.
    pub const fn is_in_progress(self) -> bool {
        self.0 & Self::IN_PROGRESS != 0
    }

    /// The number, without the mark.
    pub const fn number(self) -> u64 {
        self.0 & !Self::IN_PROGRESS
    }

    pub(crate) const fn in_progress(self) -> Self {
        Self(self.0 | Self::IN_PROGRESS)
    }

    /// The generation that this one's update leads to.
    pub(crate) const fn finished(self) -> Self {
        let number = self.number();
        if number == Self::LAST.0 { self.in_progress() } else { Self(number + 1) }
    }

    /// The generation from before this one's update.
    pub(crate) const fn aborted(self) -> Self {
        Self(self.number())
    }
}
