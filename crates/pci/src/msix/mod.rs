//! The table of MSI-X as trapped memory (PCI, 6.8.2).
//!
//! An entry of the table names the address and the data of an interrupt. If the guest wrote the
//! real table, it could send any interrupt. So the caller maps the pages that hold the table, or
//! the array of pending bits, neither for reads nor for writes, and brings accesses to them here.
//!
//! The pages may hold other registers of the function, too. Accesses to these are reported as
//! elsewhere, and the caller forwards them.

#[cfg(test)]
mod tests;

use crate::physical::{Bar, BarPlace, Msix};
use arrayvec::ArrayVec;
use core::ops::Range;

/// Vectors that a guest sees, at most. A function with more of them has so many for the guest: the
/// others stay masked.
pub const VECTORS_MAX: usize = 256;

/// Bytes of an entry.
pub const ENTRY_LEN: u64 = 16;

/// Size of the pages that are trapped.
pub const PAGE_LEN: u64 = 4096;

/// Vector control: the vector is masked.
const MASKED: u32 = 1 << 0;

/// An interrupt: a write of `data` to `address`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Where it is written, a multiple of 4.
    pub address: u64,
    /// What is written.
    pub data: u32,
}

/// What a trapped read returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// This value, in the lowest bytes.
    Value(u64),
    /// What the function has at the same offset: the access does not touch the table.
    Elsewhere,
}

/// What a trapped write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// This vector may have another message now, or another mask.
    Vector(u16),
    /// Nothing. The caller drops it.
    Ignored,
    /// The function gets it, at the same offset: it touches neither table nor array.
    Elsewhere,
}

/// Pages of a BAR that are trapped: offsets in it, multiples of [`PAGE_LEN`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Number of the BAR.
    pub bar: u8,
    /// Their offsets.
    pub offsets: Range<u64>,
}

/// A range of offsets in a BAR.
#[derive(Clone, Debug)]
struct Area {
    bar: u8,
    offsets: Range<u64>,
}

impl Area {
    fn new(place: BarPlace, len: u64) -> Self {
        let start = u64::from(place.offset);
        Self { bar: place.bar, offsets: start..start + len }
    }

    fn touches(&self, bar: u8, offsets: &Range<u64>) -> bool {
        self.bar == bar && self.offsets.start < offsets.end && offsets.start < self.offsets.end
    }

    /// Whether it is inside of a BAR of memory.
    fn is_inside(&self, bars: &[Option<Bar>]) -> bool {
        let bar = bars.get(usize::from(self.bar)).copied().flatten();
        bar.is_some_and(|bar| bar.is_memory() && self.offsets.end <= bar.size)
    }

    fn pages(&self) -> Pages {
        let start = self.offsets.start / PAGE_LEN * PAGE_LEN;
        Pages { bar: self.bar, offsets: start..self.offsets.end.next_multiple_of(PAGE_LEN) }
    }
}

/// An entry of the table, as the guest wrote it.
#[derive(Clone, Copy, Debug)]
struct Entry {
    message: Message,
    is_masked: bool,
}

/// After reset an entry is masked. The rest is undefined by the specification; here it is 0.
const RESET: Entry = Entry { message: Message { address: 0, data: 0 }, is_masked: true };

/// The table that the guest sees, and where it is.
#[derive(Clone, Debug)]
pub struct Table {
    entries: ArrayVec<Entry, VECTORS_MAX>,
    /// The real table, which may be longer.
    table: Area,
    pending: Area,
}

impl Table {
    /// The table of a function after reset. `None` if table or pending bits are not in BARs of
    /// memory, or are at the same place: such a function has no usable MSI-X.
    pub fn new(msix: &Msix, bars: &[Option<Bar>]) -> Option<Self> {
        let count = u64::from(msix.vectors);
        let table = Area::new(msix.table, count * ENTRY_LEN);
        let pending = Area::new(msix.pending, count.div_ceil(64) * 8);
        let is_apart = !table.touches(pending.bar, &pending.offsets);
        if !is_apart || !table.is_inside(bars) || !pending.is_inside(bars) {
            return None;
        }
        let entries = (0..VECTORS_MAX.min(msix.vectors.into())).map(|_| RESET).collect();
        Some(Self { entries, table, pending })
    }

    /// Number of vectors.
    pub fn vector_count(&self) -> u16 {
        self.entries.len() as u16
    }

    /// Masks all vectors and forgets their messages.
    pub fn reset(&mut self) {
        self.entries.iter_mut().for_each(|entry| *entry = RESET);
    }

    /// The message of a vector; `None` if it is masked, or does not exist.
    pub fn message(&self, vector: u16) -> Option<Message> {
        self.entries.get(usize::from(vector)).filter(|entry| !entry.is_masked).map(|entry| entry.message)
    }

    /// The pages that must be trapped, at most two ranges, which do not overlap. They end at a
    /// multiple of a page, also if the BAR ends before.
    pub fn pages(&self) -> ArrayVec<Pages, 2> {
        let (one, other) = (self.table.pages(), self.pending.pages());
        let touch = one.offsets.start <= other.offsets.end && other.offsets.start <= one.offsets.end;
        let mut pages = ArrayVec::new();
        if one.bar == other.bar && touch {
            let start = one.offsets.start.min(other.offsets.start);
            pages.push(Pages { bar: one.bar, offsets: start..one.offsets.end.max(other.offsets.end) });
        } else {
            pages.push(one);
            pages.push(other);
        }
        pages
    }

    /// A read of `size` bytes at `offset` of BAR `bar`.
    ///
    /// Table and pending bits answer reads of 4 and 8 bytes that are aligned (PCI, 6.8.2). Others
    /// return all ones. So do reads that are partly elsewhere.
    pub fn read(&self, bar: u8, offset: u64, size: u8) -> Read {
        let Some((is_table, is_valid)) = self.touched(bar, offset, size) else { return Read::Elsewhere };
        match (is_valid, is_table) {
            (false, _) => Read::Value(u64::MAX >> (64 - 8 * u32::from(size.clamp(1, 8)))),
            (true, false) => Read::Elsewhere,
            (true, true) => {
                let at = offset - self.table.offsets.start;
                let low = u64::from(self.word(at));
                let high = if size == 8 { u64::from(self.word(at + 4)) } else { 0 };
                Read::Value(low | high << 32)
            }
        }
    }

    /// A write of the lowest `size` bytes of `value` at `offset` of BAR `bar`.
    ///
    /// Writes to the table take effect if they are of 4 or 8 bytes and aligned. Others, and writes
    /// to the pending bits, are ignored.
    pub fn write(&mut self, bar: u8, offset: u64, size: u8, value: u64) -> Write {
        let Some((is_table, is_valid)) = self.touched(bar, offset, size) else { return Write::Elsewhere };
        if !is_valid || !is_table {
            return Write::Ignored;
        }
        let at = offset - self.table.offsets.start;
        let Some(entry) = self.entries.get_mut((at / ENTRY_LEN) as usize) else { return Write::Ignored };
        entry.write(at % ENTRY_LEN, value as u32);
        if size == 8 {
            entry.write(at % ENTRY_LEN + 4, (value >> 32) as u32);
        }
        Write::Vector((at / ENTRY_LEN) as u16)
    }

    /// Whether an access is to the table (else to the pending bits), and whether its size and
    /// alignment are allowed. `None` if it touches neither.
    fn touched(&self, bar: u8, offset: u64, size: u8) -> Option<(bool, bool)> {
        let offsets = offset..offset.saturating_add(size.max(1).into());
        let is_table = self.table.touches(bar, &offsets);
        if !is_table && !self.pending.touches(bar, &offsets) {
            return None;
        }
        // Both areas are multiples of 8 in place and length: what is aligned is not partly
        // elsewhere.
        Some((is_table, matches!(size, 4 | 8) && offset.is_multiple_of(size.into())))
    }

    /// A double word of the table. Entries that the guest does not have are masked.
    fn word(&self, at: u64) -> u32 {
        let entry = self.entries.get((at / ENTRY_LEN) as usize).unwrap_or(&RESET);
        words(entry.message, entry.is_masked)[(at % ENTRY_LEN / 4) as usize]
    }
}

impl Entry {
    /// Writes a double word. Address bits 1:0 and bits of the control that are reserved stay 0.
    fn write(&mut self, at: u64, value: u32) {
        let address = &mut self.message.address;
        match at {
            0 => *address = *address & !0xffff_ffff | u64::from(value & !3),
            4 => *address = *address & 0xffff_ffff | u64::from(value) << 32,
            8 => self.message.data = value,
            _ => self.is_masked = value & MASKED != 0,
        }
    }
}

const fn words(message: Message, is_masked: bool) -> [u32; 4] {
    let control = if is_masked { MASKED } else { 0 };
    [message.address as u32, (message.address >> 32) as u32, message.data, control]
}

/// The double words of an entry of the real table that sends `message`, or of a masked one.
///
/// A function may read an entry at any time that is not masked (PCI, 6.8.3.5), so a change takes
/// three steps: write `MASKED` to the last double word, write the first three, write the last.
pub const fn entry(message: Option<Message>) -> [u32; 4] {
    match message {
        Some(message) => words(message, false),
        None => words(RESET.message, true),
    }
}

/// Offset of a vector's entry in the BAR that holds the real table; `None` if it has no such
/// vector.
pub fn entry_offset(msix: &Msix, vector: u16) -> Option<u64> {
    (vector < msix.vectors).then(|| u64::from(msix.table.offset) + u64::from(vector) * ENTRY_LEN)
}
