//! Traversing all of a guest's memory in pieces. Slots of devices are left out.

use core::ops::Range;

use paging::Gpa;

use crate::access::GuestMemory;
use crate::slot::Slot;

/// Traverses a guest's memory in ascending order, in pieces of bounded size. Slots may be added and
/// removed between two pieces; a slot added below the current position is skipped.
#[derive(Debug)]
pub struct Sweep {
    next: u64,
    bytes_max: u64,
}

/// A part of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The slot.
    pub slot: Slot,
    /// Guest physical addresses of the part.
    pub gpas: Range<u64>,
    /// The location of its memory.
    pub host: Range<u64>,
}

impl Sweep {
    /// Starts at the first address, in pieces of at most `bytes_max`, which is a multiple of the
    /// page size and not 0.
    pub const fn new(bytes_max: u64) -> Self {
        Self { next: 0, bytes_max }
    }

    /// The next piece, to be used while `memory` lives; `None` at the end.
    pub fn next(&mut self, memory: &GuestMemory<'_>) -> Option<Piece> {
        let slot = memory.next_memory(Gpa(self.next))?;
        let Range { start, end } = slot.range();
        let start = start.max(self.next);
        let gpas = start..end.min(start + self.bytes_max);
        let host = slot.host.0 + (gpas.start - slot.gpa.0);
        self.next = gpas.end;
        Some(Piece { slot, host: host..host + (gpas.end - gpas.start), gpas })
    }
}
