//! Random numbers that are the same in every run.

/// xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled".
pub(crate) struct Random(u64);

impl Random {
    /// Numbers that follow from `seed`, which is not 0.
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any word.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Whether it is the one of `n`.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of the values.
    pub(crate) fn one_of<const N: usize>(&mut self, values: [u64; N]) -> u64 {
        values[self.below(N as u64) as usize]
    }
}
