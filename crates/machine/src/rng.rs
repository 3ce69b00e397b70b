//! Random numbers that a seed determines.

/// SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014): one
/// word of state, and every seed is as good as any other.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub(crate) const fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `end`, which is not 0.
    pub(crate) const fn below(&mut self, end: usize) -> usize {
        // The bias is below 2^-40 for the small numbers used here.
        ((self.word() as u128 * end as u128) >> 64) as usize
    }

    /// True once in `out_of` times.
    pub(crate) const fn one_in(&mut self, out_of: usize) -> bool {
        self.below(out_of) == 0
    }

    /// One of `choices`, of which there is at least one.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_the_sequence_and_all_numbers_come() {
        let sequence = |seed| {
            let mut rng = Rng::new(seed);
            (0..1000).map(|_| rng.below(7)).collect::<Vec<_>>()
        };
        assert_eq!(sequence(1), sequence(1));
        assert_ne!(sequence(1), sequence(2));
        for number in 0..7 {
            let count = sequence(3).iter().filter(|&&one| one == number).count();
            assert!((90..200).contains(&count), "{number} came {count} times");
        }
    }
}
