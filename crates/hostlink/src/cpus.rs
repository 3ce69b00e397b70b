//! Sets of physical CPUs.

use core::fmt;

/// Words of a [`CpuSet`].
const WORDS: usize = 4;

/// CPUs of a machine have numbers below this one.
pub const CPUS_MAX: u32 = WORDS as u32 * u64::BITS;

/// A set of CPUs. They have the numbers 0 to 255.
///
/// As text it is a list of numbers and ranges, such as `0-3,5`, or `all`. The empty set has no
/// text.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CpuSet {
    words: [u64; WORDS],
}

impl CpuSet {
    /// Every CPU.
    pub const ALL: Self = Self { words: [u64::MAX; WORDS] };

    /// No CPU.
    pub const EMPTY: Self = Self { words: [0; WORDS] };

    /// What the text of a set has to be.
    pub const EXPECTED: &str = "CPUs such as 0-3,5, each below 256, or all";

    /// The CPUs below this number.
    pub fn below(count: u32) -> Self {
        (0..count.min(CPUS_MAX)).collect()
    }

    /// The set with these words, the first of which has CPUs 0 to 63.
    pub const fn from_words(words: [u64; WORDS]) -> Self {
        Self { words }
    }

    /// Its words.
    pub const fn words(&self) -> [u64; WORDS] {
        self.words
    }

    /// Whether a CPU is a member.
    #[inline]
    pub fn contains(&self, cpu: u32) -> bool {
        let word = self.words.get((cpu / u64::BITS) as usize).copied().unwrap_or(0);
        word >> (cpu % u64::BITS) & 1 != 0
    }

    /// Makes a CPU a member. Numbers that no CPU has are ignored.
    pub fn insert(&mut self, cpu: u32) {
        if let Some(word) = self.words.get_mut((cpu / u64::BITS) as usize) {
            *word |= 1 << (cpu % u64::BITS);
        }
    }

    /// Makes a CPU no member.
    pub fn remove(&mut self, cpu: u32) {
        if let Some(word) = self.words.get_mut((cpu / u64::BITS) as usize) {
            *word &= !(1 << (cpu % u64::BITS));
        }
    }

    /// The CPUs that are in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        let mut words = self.words;
        words.iter_mut().zip(other.words).for_each(|(word, other)| *word &= other);
        Self { words }
    }

    /// Number of members.
    pub fn len(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether it has no member.
    pub fn is_empty(&self) -> bool {
        self.words == [0; WORDS]
    }

    /// Its members, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<> {
        let set = *self;
        (0..CPUS_MAX).filter(move |cpu| set.contains(*cpu))
    }

    /// Reads a set that is not empty; `None` if the text is none.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "all" {
            return Some(Self::ALL);
        }
        let mut set = Self::EMPTY;
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return None;
            }
            (first..=last).for_each(|cpu| set.insert(cpu));
        }
        Some(set)
    }
}

/// A CPU's number.
fn number(text: &str) -> Option<u32> {
    let text = text.trim();
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|cpu| is_digits && *cpu < CPUS_MAX)
}

impl FromIterator<u32> for CpuSet {
    /// The set of these CPUs. Numbers that no CPU has are left out.
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut set = Self::EMPTY;
        cpus.into_iter().for_each(|cpu| set.insert(cpu));
        set
    }
}

impl Default for CpuSet {
    fn default() -> Self {
        Self::ALL
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ALL {
            return f.write_str("all");
        }
        let mut comma = "";
        let mut next = 0;
        while let Some(first) = (next..CPUS_MAX).find(|cpu| self.contains(*cpu)) {
            let end = (first..CPUS_MAX).find(|cpu| !self.contains(*cpu)).unwrap_or(CPUS_MAX);
            match end - first {
                1 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{}", end - 1)?,
            }
            (comma, next) = (",", end);
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;
    use std::vec::Vec;

    #[test]
    fn sets_are_read_and_written() {
        for (text, written) in [
            ("0", "0"),
            ("0-3,5", "0-3,5"),
            ("5,0-3", "0-3,5"),
            ("0,1,2", "0-2"),
            ("1-1", "1"),
            ("63-64,127-128,255", "63-64,127-128,255"),
            ("0 - 2, 4", "0-2,4"),
            ("all", "all"),
            ("0-255", "all"),
            ("0-254", "0-254"),
        ] {
            let set = CpuSet::parse(text).expect("is one");
            assert_eq!(set.to_string(), written);
            assert_eq!(CpuSet::parse(written), Some(set));
        }
        for text in ["", "256", "3-1", "-1", "1-", "a", "1,,2", "1;2", "+1", "0-256", "99999999999"] {
            assert_eq!(CpuSet::parse(text), None, "{text}");
        }
    }

    #[test]
    fn members_are_counted_and_listed() {
        let mut set = CpuSet::parse("0-3,5,64,255").expect("is one");
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 5, 64, 255]);
        assert_eq!(set.len(), 7);
        assert!(set.contains(255) && !set.contains(4) && !set.contains(256) && !set.contains(u32::MAX));
        set.remove(255);
        set.remove(1000);
        set.insert(1000);
        assert_eq!(set.to_string(), "0-3,5,64");
        assert_eq!(set.intersection(&CpuSet::below(4)).to_string(), "0-3");
        assert!(set.intersection(&CpuSet::parse("200").expect("is one")).is_empty());
        assert_eq!(CpuSet::below(1000), CpuSet::ALL);
        assert_eq!((CpuSet::ALL.len(), CpuSet::below(0)), (256, CpuSet::EMPTY));
        assert_eq!(CpuSet::from_words(set.words()), set);
        let members: CpuSet = [0, 63, 64, 255, 256, 1000].into_iter().collect();
        assert_eq!(members.to_string(), "0,63-64,255");
    }
}
