//! Sets of interrupt vectors.

use migration::{Archive, Described, Flaw};

/// A set of the 256 interrupt vectors: the shape of IRR, ISR and TMR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorSet {
    words: [u64; 4],
    /// Bit n is set if word n is not zero: every entry looks up the sets' highest vectors.
    used: u8,
}

impl VectorSet {
    /// The empty set.
    pub const EMPTY: Self = Self { words: [0; 4], used: 0 };

    /// A set from its words, vector 0 in bit 0 of the first.
    pub const fn from_words(words: [u64; 4]) -> Self {
        let mut used = 0;
        let mut word = 0;
        while word < words.len() {
            used |= ((words[word] != 0) as u8) << word;
            word += 1;
        }
        Self { words, used }
    }

    const fn place(vector: u8) -> (usize, u64) {
        ((vector >> 6) as usize, 1 << (vector & 63))
    }

    /// Adds `vector`.
    pub const fn insert(&mut self, vector: u8) {
        let (word, bit) = Self::place(vector);
        self.words[word] |= bit;
        self.used |= 1 << word;
    }

    /// Removes `vector`; returns whether it was present.
    pub const fn remove(&mut self, vector: u8) -> bool {
        let (word, bit) = Self::place(vector);
        let present = self.words[word] & bit != 0;
        self.words[word] &= !bit;
        if self.words[word] == 0 {
            self.used &= !(1 << word);
        }
        present
    }

    /// The vectors from `64 * word` on, one bit each.
    pub(crate) const fn word(&self, word: usize) -> u64 {
        self.words[word & 3]
    }

    /// Replaces the vectors from `64 * word` on by the bits of `vectors`.
    pub(crate) const fn set_word(&mut self, word: usize, vectors: u64) {
        let word = word & 3;
        self.words[word] = vectors;
        self.used = self.used & !(1 << word) | ((vectors != 0) as u8) << word;
    }

    /// Whether `vector` is in the set.
    pub const fn contains(&self, vector: u8) -> bool {
        let (word, bit) = Self::place(vector);
        self.words[word] & bit != 0
    }

    /// Whether it is empty.
    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The highest vector, which is the one of highest priority.
    #[inline]
    pub fn highest(&self) -> Option<u8> {
        let word = self.used.checked_ilog2()?;
        // At most three, which the compiler does not know.
        let bit = self.words[word as usize & 3].checked_ilog2()?;
        Some((word << 6 | bit) as u8)
    }

    /// The vectors in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..=u8::MAX).filter(move |&vector| self.contains(vector))
    }

    /// Register `index` (0 to 7) of the eight 32-bit registers that show the set to the guest.
    pub fn register(&self, index: usize) -> u32 {
        self.words.get(index / 2).map_or(0, |word| (word >> (index % 2 * 32)) as u32)
    }
}

/// Without the vectors from 0 to 15, which are never requested.
impl Described for VectorSet {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let mut words = self.words;
        archive.fixed(&mut words, |[first, rest @ ..]| {
            let [second, third, fourth] = rest;
            [first & !super::ILLEGAL_VECTORS, second, third, fourth]
        })?;
        *self = Self::from_words(words);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn highest_is_right_at_every_word_border() {
        let mut set = VectorSet::EMPTY;
        assert_eq!(set.highest(), None);
        for vector in [0, 1, 31, 32, 63, 64, 127, 128, 191, 192, 255] {
            set.insert(vector);
            assert_eq!(set.highest(), Some(vector));
            assert_eq!(set.register(usize::from(vector / 32)) >> (vector % 32) & 1, 1);
        }
        for vector in [255, 192, 191, 128, 127, 64, 63, 32, 31, 1, 0] {
            assert_eq!(set.highest(), Some(vector));
            assert!(set.remove(vector) && !set.remove(vector));
        }
        assert!(set.is_empty());
        assert_eq!(set.register(8), 0);
    }
}
