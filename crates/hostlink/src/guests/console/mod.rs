//! One console: the hypervisor writes the bytes that a guest sends to a serial port while any
//! number of outside readers read them. There is no lock, and no side waits: bytes that are
//! overwritten before a reader has read them are lost for it, and it learns how many.
//!
//! A ring is a header of [`HEADER_BYTES`] bytes, whose first word counts all bytes ever written
//! (little-endian `u64`), followed by the bytes. Byte `n` is in place `n` modulo their number, a
//! power of two. Each reader has a position of its own. A guest's reset does not end its ring.
//!
//! ```text
//! writer, of byte n                          reader, of bytes i to j
//!
//! A  fence(Release)                          a  load the count (Acquire): j is below it
//! B  store byte n (Relaxed)                  b  load the bytes i to j (Relaxed)
//! C  store the count n + 1 (Release)         c  fence(Acquire)
//!                                            d  load the count (Relaxed)
//! ```
//!
//! | must hold | because |
//! |---|---|
//! | byte j is there at b | `a` reads what `C` of byte j or a later one stored |
//! | a later byte n = i + size that `b` has read in place of byte i is detected | then `A` of byte n is before `c`, so `d` reads n at least, which `C` of byte n − 1 stored before `A` |
//!
//! So byte i is the right one if the count at `d` is below i + size. The writer counts each byte
//! separately for this reason. One place is always about to be overwritten: `size - 1` bytes can be
//! read.

#[cfg(not(all(test, loom)))]
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

/// Bytes of the header, which fills a cache line of its own.
pub const HEADER_BYTES: usize = 64;

/// The header of a ring in memory. The bytes follow it.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ConsoleRing {
    /// Bytes ever written.
    pub written: AtomicU64,
    /// 0.
    pub reserved: [AtomicU64; 7],
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<ConsoleRing>() == HEADER_BYTES);

/// The writer's end of a ring, for one CPU at a time only.
#[derive(Debug)]
pub struct Writer<'r> {
    written: &'r AtomicU64,
    places: &'r [AtomicU8],
}

impl<'r> Writer<'r> {
    /// The end of this ring. The number of `places` is a power of two.
    pub const fn new(written: &'r AtomicU64, places: &'r [AtomicU8]) -> Self {
        Self { written, places }
    }

    /// Writes one byte. Two CPUs that do so in turn hold a lock.
    #[inline]
    pub fn push(&self, byte: u8) {
        // Only this end stores to it.
        let number = self.written.load(Ordering::Relaxed);
        let index = number as usize & self.places.len().wrapping_sub(1);
        let Some(place) = self.places.get(index) else { return };
        fence(Ordering::Release); // A; pairs with the reader's fence, c.
        place.store(byte, Ordering::Relaxed); // B
        self.written.store(number.wrapping_add(1), Ordering::Release); // C; pairs with the reader's a.
    }

    /// Writes bytes.
    pub fn write(&self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.push(*byte));
    }
}

/// Access to a ring for a reader.
pub trait Source {
    /// Why it cannot be read.
    type Error;

    /// Loads the count, with acquire ordering.
    ///
    /// # Errors
    /// Those of the source.
    fn written(&self) -> Result<u64, Self::Error>;

    /// Loads the byte at a place, without ordering.
    ///
    /// # Errors
    /// Those of the source.
    fn byte(&self, place: u64) -> Result<u8, Self::Error>;
}

/// The outcome of one read: bytes that were lost, and after them bytes that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken<'t> {
    /// Bytes that were overwritten before they were read.
    pub lost: u64,
    /// The bytes that follow them.
    pub bytes: &'t [u8],
}

/// A reader's end: its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    size: u64,
    next: u64,
}

impl Reader {
    /// A reader of a ring with `size` bytes, from the first byte on.
    pub const fn new(size: u64) -> Self {
        Self { size, next: 0 }
    }

    /// The same, from the byte with this number on.
    pub const fn from(self, next: u64) -> Self {
        Self { next, ..self }
    }

    /// The number of the next byte: as many were read or lost.
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// Reads bytes that follow the previous ones into `buffer`, as many as fit. There are no more
    /// if none are lost and none are read.
    ///
    /// # Errors
    /// Those of the source.
    pub fn read<'t, S: Source>(&mut self, source: &S, buffer: &'t mut [u8]) -> Result<Taken<'t>, S::Error> {
        let begin = self.next;
        let end = source.written()?; // a
        let first = begin.max((end + 1).saturating_sub(self.size));
        let count = end.saturating_sub(first).min(buffer.len() as u64);
        for (number, place) in (first..first + count).zip(buffer.iter_mut()) {
            *place = source.byte(number % self.size)?; // b
        }
        fence(Ordering::Acquire); // c; pairs with the writer's fence, A.
        let oldest = (source.written()? + 1).saturating_sub(self.size); // d
        let overwritten = oldest.saturating_sub(first).min(count);
        self.next = first + count;
        let bytes = buffer.get(overwritten as usize..count as usize).unwrap_or_default();
        Ok(Taken { lost: first - begin + overwritten, bytes })
    }
}

#[cfg(test)]
mod tests;
