//! A ring in memory: one end writes bytes or records while any number of outside readers read them.
//! There is no lock, and no side waits: what is overwritten before a reader has read it is lost for
//! it, and it learns how much.
//!
//! A ring is a header of [`HEADER_BYTES`] bytes, whose first word counts everything ever written
//! (little-endian `u64`), followed by the places. Item `n` is in place `n` modulo their number, a
//! power of two. Each reader has a position of its own.
//!
//! ```text
//! writer, of item n                          reader, of items i to j
//!
//! A  fence(Release)                          a  load the count (Acquire): j is below it
//! B  store the words of item n (Relaxed)     b  load the words of items i to j (Relaxed)
//! C  store the count n + 1 (Release)         c  fence(Acquire)
//!                                            d  load the count (Relaxed)
//! ```
//!
//! | must hold | because |
//! |---|---|
//! | the words of item j are there at b | `a` reads what `C` of item j or a later one stored |
//! | a word of a later item n = i + size that `b` has read in place of item i's is detected | then `A` of item n is before `c`, so `d` reads n at least, which `C` of item n − 1 stored before `A` |
//!
//! So item i is whole and the right one if the count at `d` is below i + size. The writer counts
//! each item separately for this reason. One place is always about to be overwritten: `size - 1`
//! items can be read.

#[cfg(not(all(test, loom)))]
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

/// Bytes of the header, which fills a cache line of its own.
pub const HEADER_BYTES: u64 = 64;

/// A place for an item.
pub trait Place {
    /// What it holds.
    type Item: Copy + Default;

    /// Stores an item, without ordering.
    fn store(&self, item: Self::Item);
}

impl Place for AtomicU8 {
    type Item = u8;

    #[inline(always)]
    fn store(&self, item: u8) {
        Self::store(self, item, Ordering::Relaxed);
    }
}

impl Place for [AtomicU64; 4] {
    type Item = [u64; 4];

    #[inline(always)]
    fn store(&self, item: [u64; 4]) {
        for (place, word) in self.iter().zip(item) {
            place.store(word, Ordering::Relaxed);
        }
    }
}

/// The writer's end of a ring, for one CPU at a time only.
#[derive(Debug)]
pub struct Writer<'r, P> {
    count: &'r AtomicU64,
    places: &'r [P],
}

impl<'r, P: Place> Writer<'r, P> {
    /// The end of this ring. The number of `places` is a power of two.
    pub const fn new(count: &'r AtomicU64, places: &'r [P]) -> Self {
        Self { count, places }
    }

    /// Writes one item. Two CPUs that do so in turn hold a lock.
    #[inline(always)]
    pub fn push(&self, item: P::Item) {
        // Only this end stores to it.
        let number = self.count.load(Ordering::Relaxed);
        let index = number as usize & self.places.len().wrapping_sub(1);
        let Some(place) = self.places.get(index) else { return };
        fence(Ordering::Release); // A; pairs with the reader's fence, c.
        place.store(item); // B
        self.count.store(number.wrapping_add(1), Ordering::Release); // C; pairs with the reader's a.
    }
}

impl Writer<'_, AtomicU8> {
    /// The bytes that the ring has, oldest first: for who could write.
    pub fn written(&self) -> impl Iterator<Item = u8> {
        let (end, size) = (self.count.load(Ordering::Relaxed), self.places.len() as u64);
        let place = move |number: u64| self.places.get(number.checked_rem(size)? as usize);
        let byte = |place: &AtomicU8| place.load(Ordering::Relaxed);
        (end.saturating_sub(size)..end).filter_map(move |number| place(number).map(byte))
    }
}

/// Access to a ring for a reader.
pub trait Source {
    /// What its places hold.
    type Item: Copy + Default;
    /// Why it cannot be read.
    type Error;

    /// Loads the count, with acquire ordering.
    ///
    /// # Errors
    /// Those of the source.
    fn count(&self) -> Result<u64, Self::Error>;

    /// Loads the item in a place, each word untorn and without ordering.
    ///
    /// # Errors
    /// Those of the source.
    fn load(&self, place: u64) -> Result<Self::Item, Self::Error>;
}

/// The outcome of one read: items that were lost, and after them items that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken<'t, T> {
    /// Items that were overwritten before they were read.
    pub lost: u64,
    /// The items that follow them.
    pub items: &'t [T],
}

/// A reader's end: its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    size: u64,
    next: u64,
}

impl Reader {
    /// A reader of a ring with `size` places, from the first item on.
    pub const fn new(size: u64) -> Self {
        Self { size, next: 0 }
    }

    /// Reads items that follow the previous ones into `buffer`, as many as fit. There are no more
    /// if none are lost and none are read.
    ///
    /// # Errors
    /// Those of the source.
    pub fn read<'t, S: Source>(
        &mut self,
        source: &S,
        buffer: &'t mut [S::Item],
    ) -> Result<Taken<'t, S::Item>, S::Error> {
        let begin = self.next;
        let end = source.count()?; // a
        let first = begin.max(end.saturating_add(1).saturating_sub(self.size));
        let count = end.saturating_sub(first).min(buffer.len() as u64);
        for (number, place) in (first..first + count).zip(buffer.iter_mut()) {
            *place = source.load(number % self.size)?; // b
        }
        fence(Ordering::Acquire); // c; pairs with the writer's fence, A.
        let oldest = source.count()?.saturating_add(1).saturating_sub(self.size); // d
        let overwritten = oldest.saturating_sub(first).min(count);
        self.next = first + count;
        let items = buffer.get(overwritten as usize..count as usize).unwrap_or_default();
        Ok(Taken { lost: first - begin + overwritten, items })
    }

    /// Passes on each item that has been written by now and is not overwritten meanwhile; returns
    /// how many were lost.
    ///
    /// # Errors
    /// Those of the source.
    pub fn read_each<S: Source>(
        &mut self,
        source: &S,
        mut each: impl FnMut(S::Item),
    ) -> Result<u64, S::Error> {
        let (end, mut lost) = (source.count()?, 0);
        while self.next < end {
            let mut one = [S::Item::default()];
            let taken = self.read(source, &mut one)?;
            lost += taken.lost;
            taken.items.iter().copied().for_each(&mut each);
        }
        Ok(lost)
    }
}

#[cfg(test)]
mod tests;
