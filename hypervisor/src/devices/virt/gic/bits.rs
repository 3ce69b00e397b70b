//! A set of INTIDs.

use core::fmt;
use migration::described;

/// A set of INTIDs from 0 to 255.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Bits([u64; 4]);

impl Bits {
    /// No INTID.
    pub const EMPTY: Self = Self([0; 4]);
    /// Every INTID.
    pub const ALL: Self = Self([u64::MAX; 4]);

    /// From words of 64 INTIDs each.
    pub const fn from_words(words: [u64; 4]) -> Self {
        Self(words)
    }

    /// Exactly this one.
    pub const fn one(intid: u8) -> Self {
        let mut words = [0; 4];
        words[intid as usize / 64] = 1 << (intid % 64);
        Self(words)
    }

    /// Whether it is empty.
    pub const fn is_empty(&self) -> bool {
        self.0[0] | self.0[1] | self.0[2] | self.0[3] == 0
    }

    /// Number of INTIDs in the set.
    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether `intid` is in it.
    pub const fn has(&self, intid: u8) -> bool {
        self.0[intid as usize / 64] >> (intid % 64) & 1 != 0
    }

    /// Adds it.
    pub const fn insert(&mut self, intid: u8) {
        self.0[intid as usize / 64] |= 1 << (intid % 64);
    }

    /// Removes it.
    pub const fn remove(&mut self, intid: u8) {
        self.0[intid as usize / 64] &= !(1 << (intid % 64));
    }

    /// Adds or removes it.
    pub const fn set(&mut self, intid: u8, present: bool) {
        if present { self.insert(intid) } else { self.remove(intid) }
    }

    /// The INTIDs from `32 * index` on, as one of eight words.
    pub const fn word(&self, index: u8) -> u32 {
        (self.0[index as usize % 8 / 2] >> (index % 2 * 32)) as u32
    }

    /// A set of the INTIDs from `32 * index` on.
    pub const fn from_word(index: u8, word: u32) -> Self {
        let mut words = [0; 4];
        words[index as usize % 8 / 2] = (word as u64) << (index % 2 * 32);
        Self(words)
    }

    /// The intersection.
    pub const fn and(self, other: Self) -> Self {
        let (a, b) = (self.0, other.0);
        Self([a[0] & b[0], a[1] & b[1], a[2] & b[2], a[3] & b[3]])
    }

    /// The union.
    pub const fn or(self, other: Self) -> Self {
        let (a, b) = (self.0, other.0);
        Self([a[0] | b[0], a[1] | b[1], a[2] | b[2], a[3] | b[3]])
    }

    /// The complement.
    pub const fn not(self) -> Self {
        let a = self.0;
        Self([!a[0], !a[1], !a[2], !a[3]])
    }

    /// The difference: the INTIDs that are not in `other`.
    pub const fn without(self, other: Self) -> Self {
        self.and(other.not())
    }

    /// The INTIDs in ascending order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = u8> + use<> {
        let (mut words, mut index) = (self.0, 0);
        core::iter::from_fn(move || {
            while let Some(word) = words.get_mut(index) {
                if *word != 0 {
                    let bit = word.trailing_zeros() as u8;
                    *word &= *word - 1;
                    return Some(index as u8 * 64 + bit);
                }
                index += 1;
            }
            None
        })
    }
}

described!(Bits: 0);

impl fmt::Debug for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_is_its_own() {
        for intid in 0..=255_u8 {
            let one = Bits::one(intid);
            assert_eq!(one.iter().collect::<Vec<_>>(), [intid]);
            assert!(one.has(intid) && !one.has(intid ^ 32) && !one.has(intid ^ 1));
            assert_eq!(one.word(intid / 32), 1 << (intid % 32));
            assert_eq!(Bits::from_word(intid / 32, 1 << (intid % 32)), one);
            assert_eq!(Bits::ALL.without(one).count(), 255);
            let mut none = one;
            none.remove(intid);
            assert!(none.is_empty());
        }
        assert_eq!(Bits::ALL.iter().count(), 256);
    }
}
