//! Sets of targets by index.

/// The targets of a flush: indices in banks of 64. [`TargetSet`] is such a set. A set in another
/// form, such as a guest's packed VP set, need not be converted into one.
pub trait Members {
    /// Calls `visit` with the number of a bank and its members, bit `i` for index `64 * bank + i`,
    /// in any order. Banks without members may be left out.
    fn for_each_bank(&self, visit: impl FnMut(usize, u64));
}

impl<const BANKS: usize> Members for TargetSet<BANKS> {
    #[inline]
    fn for_each_bank(&self, mut visit: impl FnMut(usize, u64)) {
        self.banks.iter().enumerate().for_each(|(bank, &bits)| visit(bank, bits));
    }
}

/// A set of up to `64 * BANKS` target indices; 64 banks hold the 4096 of the largest VP set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetSet<const BANKS: usize> {
    banks: [u64; BANKS],
}

impl<const BANKS: usize> TargetSet<BANKS> {
    /// Indices are below this.
    pub const CAPACITY: usize = BANKS * 64;

    /// No targets.
    pub const fn new() -> Self {
        Self { banks: [0; BANKS] }
    }

    /// Target `64 * b + i` for each set bit `i` of bank `b`.
    pub const fn from_banks(banks: [u64; BANKS]) -> Self {
        Self { banks }
    }

    /// The targets below `count`, or all that the set can hold.
    pub fn first(count: usize) -> Self {
        let mut set = Self::new();
        for (bank, bits) in set.banks.iter_mut().enumerate() {
            *bits = match count.saturating_sub(bank * 64) {
                0 => 0,
                rest @ 1..64 => (1 << rest) - 1,
                _ => u64::MAX,
            };
        }
        set
    }

    /// Adds a target; false if the set cannot hold that index.
    #[must_use = "a target that does not fit is not flushed"]
    pub fn insert(&mut self, index: usize) -> bool {
        match self.banks.get_mut(index / 64) {
            Some(bits) => {
                *bits |= 1 << (index % 64);
                true
            }
            None => false,
        }
    }

    /// Removes a target, if it is there.
    pub fn remove(&mut self, index: usize) {
        if let Some(bits) = self.banks.get_mut(index / 64) {
            *bits &= !(1 << (index % 64));
        }
    }

    /// Whether the target is in the set.
    pub fn contains(&self, index: usize) -> bool {
        self.banks.get(index / 64).is_some_and(|bits| bits >> (index % 64) & 1 != 0)
    }

    /// The targets that are also in `other`.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        self.combined(other, |mine, others| mine & others)
    }

    /// The targets that are not in `other`.
    #[must_use]
    pub fn without(self, other: &Self) -> Self {
        self.combined(other, |mine, others| mine & !others)
    }

    fn combined(mut self, other: &Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        self.banks.iter_mut().zip(other.banks).for_each(|(mine, others)| *mine = combine(*mine, others));
        self
    }

    /// Whether there is no target.
    pub fn is_empty(&self) -> bool {
        self.banks.iter().all(|&bits| bits == 0)
    }

    /// Number of targets.
    pub fn count(&self) -> usize {
        self.banks.iter().map(|bits| bits.count_ones() as usize).sum()
    }

    /// The indices in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.banks.iter().enumerate().flat_map(|(bank, &bits)| Bits(bits).map(move |bit| bank * 64 + bit))
    }
}

impl<const BANKS: usize> Default for TargetSet<BANKS> {
    fn default() -> Self {
        Self::new()
    }
}

/// Positions of the set bits, lowest first.
pub(crate) struct Bits(pub(crate) u64);

impl Iterator for Bits {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        (self.0 != 0).then(|| {
            let bit = self.0.trailing_zeros() as usize;
            self.0 &= self.0 - 1;
            bit
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn h10_index_beyond_the_capacity_is_refused_not_shifted() {
        let mut set = TargetSet::<2>::new();
        assert!(!set.insert(128) && !set.insert(4096) && !set.insert(usize::MAX));
        assert!(!set.contains(128) && !set.contains(usize::MAX));
        set.remove(usize::MAX);
        assert!(set.is_empty());
        assert!(set.insert(127) && set.contains(127) && !set.contains(63));
    }

    #[test]
    fn first_n_at_the_edges_of_a_bank() {
        for count in [0, 1, 63, 64, 65, 127, 128, 129, usize::MAX] {
            let set = TargetSet::<2>::first(count);
            assert_eq!(set.count(), count.min(128));
            assert!(set.iter().eq(0..count.min(128)));
        }
    }

    proptest! {
        #[test]
        fn two_sets_combine_member_by_member(a in any::<[u64; 3]>(), b in any::<[u64; 3]>()) {
            let (a, b) = (TargetSet::from_banks(a), TargetSet::from_banks(b));
            for index in 0..192 {
                prop_assert_eq!(a.and(&b).contains(index), a.contains(index) && b.contains(index));
                prop_assert_eq!(a.without(&b).contains(index), a.contains(index) && !b.contains(index));
            }
        }

        #[test]
        fn agrees_with_a_tree(indices in prop::collection::vec(0usize..300, 0..40), gone in 0usize..300) {
            let (mut set, mut tree) = (TargetSet::<4>::new(), BTreeSet::new());
            for index in indices {
                prop_assert_eq!(set.insert(index), index < 256);
                if index < 256 {
                    tree.insert(index);
                }
            }
            set.remove(gone);
            tree.remove(&gone);
            prop_assert!(set.iter().eq(tree.iter().copied()));
            prop_assert_eq!(set.count(), tree.len());
            prop_assert_eq!(set.is_empty(), tree.is_empty());
            prop_assert!((0..300).all(|index| set.contains(index) == tree.contains(&index)));
        }
    }
}
