//! The times when a frame was in use.

use std::collections::VecDeque;

/// Lives of a frame that are remembered.
const LIVES_MAX: usize = 8;

/// Whether a frame was in use at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// In use, in its life with this number.
    Alive(u32),
    Free,
    /// Too long ago.
    Unknown,
}

/// The times from when to when a frame was in use.
#[derive(Debug, Default)]
pub(super) struct Lives {
    /// The last few, each with the time after its end.
    spans: VecDeque<(u64, u64)>,
    count: u32,
}

impl Lives {
    pub(super) fn begin(&mut self, time: u64) {
        if self.spans.len() == LIVES_MAX {
            self.spans.pop_front();
        }
        self.spans.push_back((time, u64::MAX));
        self.count += 1;
    }

    /// Ends a life; false if it has ended already.
    pub(super) fn end(&mut self, time: u64) -> bool {
        match self.spans.back_mut() {
            Some((_, end)) if *end == u64::MAX => {
                *end = time;
                true
            }
            _ => false,
        }
    }

    pub(super) fn at(&self, time: u64) -> Presence {
        for (age, &(begin, end)) in (0u32..).zip(self.spans.iter().rev()) {
            if time >= end {
                return Presence::Free;
            }
            if time >= begin {
                return Presence::Alive(self.count - age);
            }
        }
        if self.count as usize > self.spans.len() { Presence::Unknown } else { Presence::Free }
    }

    /// Whether it was never in use.
    pub(super) fn has_none(&self) -> bool {
        self.count == 0
    }
}
