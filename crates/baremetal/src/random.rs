//! Random numbers that are the same in every run.

/// xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled".
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with this `seed`; 0, which would produce only zeroes, is replaced by 1.
    pub const fn new(seed: u64) -> Self {
        Self(if seed == 0 { 1 } else { seed })
    }

    /// Any word.
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.word().checked_rem(end).unwrap_or(0)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of the values.
    pub fn one_of<const N: usize>(&mut self, values: [u64; N]) -> u64 {
        values[self.below(N as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_brings_forth_the_same_numbers_and_another_one_others() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            [0; 8].map(|_| random.word())
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
        assert_eq!(numbers(1)[0], 0x47e4_ce4b_896c_dd1d, "as the algorithm has it");
    }

    #[test]
    fn every_value_comes_and_none_that_must_not() {
        let mut random = Random::new(0);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[random.below(5) as usize] = true;
            assert!([3, 9].contains(&random.one_of([3, 9])));
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn numbers_stay_below_their_end() {
        let mut random = Random::new(1);
        assert!((1..100).all(|end| random.below(end) < end));
        assert!(random.one_in(1) && [3, 4].contains(&random.one_of([3, 4])));
    }
}
