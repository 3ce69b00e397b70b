//! Medians and percentiles.

/// Statistics of a set of samples. Percentiles are by nearest rank, so each is one of the samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of samples.
    pub count: usize,
    /// The minimum.
    pub min: u64,
    /// Half of the samples are no greater.
    pub median: u64,
    /// 90 of 100 samples are no greater.
    pub p90: u64,
    /// 99 of 100 samples are no greater.
    pub p99: u64,
    /// The maximum.
    pub max: u64,
}

impl Summary {
    /// Statistics of `samples`, which are sorted; all zeros if there are none.
    pub fn of(samples: &mut [u64]) -> Self {
        samples.sort_unstable();
        let percentile = |percent: usize| {
            let rank = (samples.len() * percent).div_ceil(100).max(1);
            samples.get(rank - 1).copied().unwrap_or_default()
        };
        Self {
            count: samples.len(),
            min: samples.first().copied().unwrap_or_default(),
            median: percentile(50),
            p90: percentile(90),
            p99: percentile(99),
            max: samples.last().copied().unwrap_or_default(),
        }
    }
}

/// Numbers of processors to measure: powers of two, and all of them.
pub fn processor_counts(all: usize) -> impl Iterator<Item = usize> {
    let powers = core::iter::successors(Some(1usize), |count| count.checked_mul(2));
    powers.take_while(move |count| *count < all).chain(core::iter::once(all.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let mut samples: Vec<u64> = (1..=100).rev().collect();
        let expected = Summary { count: 100, min: 1, median: 50, p90: 90, p99: 99, max: 100 };
        assert_eq!(Summary::of(&mut samples), expected);
        assert_eq!(Summary::of(&mut [7]).p99, 7);
        assert_eq!(Summary::of(&mut [2, 1]).median, 1);
        assert_eq!(Summary::of(&mut [3, 1, 2]).median, 2);
        assert_eq!(Summary::of(&mut []), Summary::default());
    }

    #[test]
    fn all_processors_are_measured_once() {
        let counts = |all| processor_counts(all).collect::<Vec<_>>();
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(4), [1, 2, 4]);
        assert_eq!(counts(6), [1, 2, 4, 6]);
        assert_eq!(counts(255), [1, 2, 4, 8, 16, 32, 64, 128, 255]);
    }
}
