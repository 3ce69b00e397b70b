//! How long something took, many times: counts by length, with a precision of 1/32.

/// Places for each power of two.
const PLACES_LOG2: u32 = 5;
/// Lengths below this have a place of their own.
const EXACT: u64 = 1 << PLACES_LOG2;
/// All lengths of 64 bits have a place.
const COUNT: usize = ((64 - PLACES_LOG2 as usize) << PLACES_LOG2) + EXACT as usize;

/// Counts of lengths.
#[derive(Clone, Debug)]
pub struct Latencies([u32; COUNT]);

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

const fn place(length: u64) -> usize {
    if length < EXACT {
        return length as usize;
    }
    let shift = length.ilog2() - PLACES_LOG2;
    ((shift as usize) << PLACES_LOG2) + (length >> shift) as usize
}

const fn greatest(place: usize) -> u64 {
    if place < EXACT as usize {
        return place as u64;
    }
    let shift = (place >> PLACES_LOG2) as u32 - 1;
    let first = (place as u64 & (EXACT - 1)) | EXACT;
    // The last one ends at 2^64.
    ((first as u128 + 1) << shift).wrapping_sub(1) as u64
}

impl Latencies {
    /// None so far.
    pub const fn new() -> Self {
        Self([0; COUNT])
    }

    /// Counts one more.
    pub fn add(&mut self, length: u64) {
        let count = &mut self.0[place(length)];
        *count = count.saturating_add(1);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.fill(0);
    }

    /// The lengths counted, ascending, and how often: each stands for those down to 31/32 of it.
    pub fn counts(&self) -> impl Iterator<Item = (u64, u32)> {
        let counted = self.0.iter().enumerate().filter(|(_, count)| **count != 0);
        counted.map(|(place, count)| (greatest(place), *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn each_length_has_a_place_whose_greatest_is_hardly_more() {
        let mut before = 0;
        for length in
            (0..4096).chain((12..64).flat_map(|power| [(1 << power) - 1, 1 << power, 3 << (power - 1)]))
        {
            let greatest = greatest(place(length));
            assert!(greatest >= length && greatest - length <= length / 32, "{length}: {greatest}");
            if length < 4096 {
                assert!(place(length) == before || place(length) == before + 1);
                before = place(length);
            }
        }
        assert_eq!(greatest(place(u64::MAX)), u64::MAX);
        assert_eq!(place(u64::MAX), COUNT - 1);
    }

    #[test]
    fn lengths_are_counted_until_they_are_forgotten() {
        let mut latencies = Latencies::new();
        [7, 7, 100, 101, 5].into_iter().for_each(|length| latencies.add(length));
        assert_eq!(latencies.counts().collect::<Vec<_>>(), [(5, 1), (7, 2), (101, 2)]);
        latencies.clear();
        assert_eq!(latencies.counts().count(), 0);
    }
}
