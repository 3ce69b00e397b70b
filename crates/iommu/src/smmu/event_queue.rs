//! The reader's end of the event queue (IHI 0070, 3.5 and 7.4).
//!
//! The SMMU writes records and moves EVENTQ_PROD behind them; the reader copies them and moves
//! EVENTQ_CONS. Both registers have an index, above it a bit that changes with each round, and in
//! bit 31 one that changes when events are lost because the queue is full: no more are lost without
//! notice when the reader has acknowledged it.

/// Bytes of a record.
pub const RECORD_BYTES: u64 = 32;

const OVERFLOW: u32 = 1 << 31;

/// The reader: one at a time, of a queue that began with both registers 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// Binary logarithm of the number of records, 0 to 19.
    order: u32,
    /// EVENTQ_CONS.
    cons: u32,
}

/// What [`Reader::advance`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the SMMU does not know yet that there is room"]
pub struct Advance {
    /// To be written to EVENTQ_CONS, after the records were copied (a barrier comes before).
    pub cons: u32,
    /// Events were lost since the last time.
    pub has_lost: bool,
}

impl Reader {
    /// For a queue of `2^order` records; `order` is at most 19, as the register is.
    pub const fn new(order: u32) -> Self {
        let order = if order < 19 { order } else { 19 };
        Self { order, cons: 0 }
    }

    /// Whether it has read and acknowledged all, when EVENTQ_PROD was `prod`.
    pub const fn is_at(self, prod: u32) -> bool {
        self.position(prod) == self.cons
    }

    /// What EVENTQ_CONS is when all has been read.
    const fn position(self, prod: u32) -> u32 {
        prod & (OVERFLOW | (2 * self.len() - 1))
    }

    const fn len(self) -> u32 {
        1 << self.order
    }

    /// Indexes of the records that were written, but not read yet, when EVENTQ_PROD was `prod`; in
    /// order. After the register a load barrier comes before the records.
    ///
    /// They are no more than the queue has, whatever the register says.
    pub fn unread(self, prod: u32) -> impl Iterator<Item = u32> {
        let count = prod.wrapping_sub(self.cons) & (2 * self.len() - 1);
        (0..count.min(self.len())).map(move |index| self.cons.wrapping_add(index) & (self.len() - 1))
    }

    /// All of them were copied.
    pub const fn advance(&mut self, prod: u32) -> Advance {
        let has_lost = (prod ^ self.cons) & OVERFLOW != 0;
        self.cons = self.position(prod);
        Advance { cons: self.cons, has_lost }
    }
}
