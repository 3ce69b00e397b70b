//! One ring: a CPU writes records while an outside reader reads them. There is no lock, and neither
//! side waits. Records that are overwritten before they are read are lost; the reader counts them.
//!
//! A ring is a header of [`HEADER_WORDS`] words, the first of which counts all records ever
//! written, followed by the records. Record `n` is in place `n` modulo their number, a power of
//! two.
//!
//! ```text
//! writer, of record n                        reader, of record i
//!
//! A  fence(Release)                          a  load the count (Acquire): i is below it
//! B  store the words of record n (Relaxed)   b  load the words of record i (Relaxed)
//! C  store the count n + 1 (Release)         c  fence(Acquire)
//!                                            d  load the count (Relaxed)
//! ```
//!
//! | must hold | because |
//! |---|---|
//! | the words of record i are there at b | `a` reads what `C` of record i or a later one stored |
//! | a word of record n = i + capacity that `b` has read is detected | then `A` of record n is before `c`, so `d` reads n at least, which `C` of record n − 1 stored before `A` |
//!
//! So record i is whole if the count at `d` is below i + capacity.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};

use core::cell::Cell;

/// Words of a record.
pub const WORDS: usize = 4;

/// Bytes of a record.
pub const RECORD_BYTES: u64 = 8 * WORDS as u64;

/// Words of the header, which fills a cache line of its own.
pub const HEADER_WORDS: usize = 8;

/// Bytes of a ring with this many records.
pub const fn bytes(records: u64) -> u64 {
    HEADER_WORDS as u64 * 8 + records * RECORD_BYTES
}

/// The writer's end of a ring, for one CPU only.
#[derive(Debug)]
pub struct Writer<'r> {
    count: &'r AtomicU64,
    places: &'r [[AtomicU64; WORDS]],
    next: Cell<u64>,
}

impl<'r> Writer<'r> {
    /// A ring that was never written to: `count` is 0. The number of `places` is a power of two.
    pub const fn new(count: &'r AtomicU64, places: &'r [[AtomicU64; WORDS]]) -> Self {
        Self { count, places, next: Cell::new(0) }
    }

    /// Writes one record.
    #[inline(always)]
    pub fn push(&self, words: [u64; WORDS]) {
        let number = self.next.get();
        let index = number as usize & self.places.len().wrapping_sub(1);
        let Some(place) = self.places.get(index) else { return };
        fence(Ordering::Release); // A; pairs with the reader's fence, c.
        for (place, word) in place.iter().zip(words) {
            place.store(word, Ordering::Relaxed); // B
        }
        let number = number.wrapping_add(1);
        self.next.set(number);
        self.count.store(number, Ordering::Release); // C; pairs with the reader's a.
    }
}

/// Access to a ring's words for a reader.
pub trait Source {
    /// Why it cannot be read.
    type Error;

    /// Loads the count, with acquire ordering.
    ///
    /// # Errors
    /// Those of the source.
    fn count(&self) -> Result<u64, Self::Error>;

    /// Loads a word of the record at a place, untorn and without ordering.
    ///
    /// # Errors
    /// Those of the source.
    fn word(&self, place: u64, word: usize) -> Result<u64, Self::Error>;
}

/// The reader's end: which record is next, and how many were overwritten before they were read.
#[derive(Clone, Debug)]
pub struct Reader {
    capacity: u64,
    next: u64,
    lost: u64,
}

impl Reader {
    /// A reader of a ring with room for `capacity` records, from the first record on.
    pub const fn new(capacity: u64) -> Self {
        Self { capacity, next: 0, lost: 0 }
    }

    /// Records that were overwritten before they were read.
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Passes on each record that was written since the last call and has not been overwritten.
    ///
    /// # Errors
    /// Those of the source.
    pub fn read<S: Source>(
        &mut self,
        source: &S,
        mut each: impl FnMut([u64; WORDS]),
    ) -> Result<(), S::Error> {
        let end = source.count()?; // a
        let behind = end.saturating_sub(self.next).saturating_sub(self.capacity);
        self.lost += behind;
        self.next += behind;
        while self.next < end {
            let mut words = [0; WORDS];
            for (index, word) in words.iter_mut().enumerate() {
                *word = source.word(self.next % self.capacity, index)?; // b
            }
            fence(Ordering::Acquire); // c; pairs with the writer's fence, A.
            if source.count()? < self.next + self.capacity {
                each(words); // d
            } else {
                self.lost += 1;
            }
            self.next += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
