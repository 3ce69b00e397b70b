//! Sets of virtual processors.

use core::fmt;

/// Virtual processors in one bank of a VP set.
pub const VPS_PER_BANK: u32 = 64;
/// Banks of a VP set: one for each bit of its bank mask.
pub const MAX_BANKS: usize = 64;
/// VP indices that a VP set can name: 0 to 4095.
pub const MAX_VPS: u32 = VPS_PER_BANK * MAX_BANKS as u32;

/// A set of virtual processors by VP index: HV_VP_SET's sparse form, or a 64-bit processor mask.
///
/// Indices are grouped in banks of 64. A mask says which banks are present. The contents of the
/// present banks are packed in order of bank number, so the position of a bank is its rank among
/// the mask's set bits. A present bank may be empty. The set borrows the packed contents.
///
/// TLFS, "Sparse Virtual Processor Set".
#[derive(Clone, Copy)]
pub struct VpSet<'a> {
    valid_banks: u64,
    /// Exactly one word per set bit of `valid_banks`.
    packed: &'a [u64],
}

/// The number of packed words is not the number of banks that the mask announces, or more than
/// there can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BankCountError;

impl<'a> VpSet<'a> {
    /// The set without members.
    pub const EMPTY: VpSet<'static> = VpSet { valid_banks: 0, packed: &[] };

    /// The set with the banks in `valid_banks` and their `packed` contents.
    ///
    /// # Errors
    ///
    /// [`BankCountError`] if `packed` does not have one word per set bit of `valid_banks`.
    pub const fn sparse(valid_banks: u64, packed: &'a [u64]) -> Result<Self, BankCountError> {
        if packed.len() != valid_banks.count_ones() as usize {
            return Err(BankCountError);
        }
        Ok(Self { valid_banks, packed })
    }

    /// The set that a 64-bit processor mask names: bit `i` is VP index `i`.
    pub const fn from_mask(mask: &'a u64) -> Self {
        Self { valid_banks: 1, packed: core::slice::from_ref(mask) }
    }

    /// The set whose bank `i` is `banks[i]`: a bitmap of VP indices starting at 0, as kernels keep
    /// it.
    ///
    /// # Errors
    ///
    /// [`BankCountError`] if there are more than [`MAX_BANKS`] banks.
    pub const fn dense(banks: &'a [u64]) -> Result<Self, BankCountError> {
        match banks.len() {
            0 => Ok(Self { valid_banks: 0, packed: banks }),
            count @ 1..=MAX_BANKS => Ok(Self { valid_banks: u64::MAX >> (MAX_BANKS - count), packed: banks }),
            _ => Err(BankCountError),
        }
    }

    /// Whether `vp` is a member. Indices from [`MAX_VPS`] on are in no set.
    pub fn contains(&self, vp: u32) -> bool {
        let bank = vp / VPS_PER_BANK;
        if bank >= u64::BITS || self.valid_banks & (1 << bank) == 0 {
            return false;
        }
        let rank = (self.valid_banks & ((1 << bank) - 1)).count_ones() as usize;
        self.packed.get(rank).is_some_and(|contents| contents & (1 << (vp % VPS_PER_BANK)) != 0)
    }

    /// Whether the set has no members.
    pub fn is_empty(&self) -> bool {
        self.packed.iter().all(|contents| *contents == 0)
    }

    /// Number of members, at most [`MAX_VPS`].
    pub fn len(&self) -> usize {
        self.packed.iter().map(|contents| contents.count_ones() as usize).sum()
    }

    /// The present banks in ascending order: bank number (0 to 63) and contents, in which bit `i`
    /// stands for VP index `64 * bank + i`.
    pub fn banks(&self) -> impl Iterator<Item = (u32, u64)> + use<'a> {
        let mut rest = self.valid_banks;
        self.packed.iter().map(move |contents| {
            let bank = rest.trailing_zeros();
            rest &= rest.wrapping_sub(1);
            (bank, *contents)
        })
    }

    /// The members in ascending order. At most [`MAX_VPS`] items.
    pub fn iter(&self) -> VpSetMembers<'a> {
        VpSetMembers { valid_banks: self.valid_banks, packed: self.packed.iter(), first: 0, contents: 0 }
    }
}

impl PartialEq for VpSet<'_> {
    /// Sets with the same members are equal, whatever empty banks are present.
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for VpSet<'_> {}

impl fmt::Debug for VpSet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self).finish()
    }
}

impl<'a> IntoIterator for &VpSet<'a> {
    type Item = u32;
    type IntoIter = VpSetMembers<'a>;

    fn into_iter(self) -> VpSetMembers<'a> {
        self.iter()
    }
}

/// The members of a [`VpSet`] in ascending order.
#[derive(Clone, Debug)]
pub struct VpSetMembers<'a> {
    /// Banks not entered yet.
    valid_banks: u64,
    packed: core::slice::Iter<'a, u64>,
    /// First index of the current bank, and its remaining members.
    first: u32,
    contents: u64,
}

impl Iterator for VpSetMembers<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        while self.contents == 0 {
            self.contents = *self.packed.next()?;
            self.first = self.valid_banks.trailing_zeros() * VPS_PER_BANK;
            self.valid_banks &= self.valid_banks.wrapping_sub(1);
        }
        let bit = self.contents.trailing_zeros();
        self.contents &= self.contents - 1;
        Some(self.first + bit)
    }
}

impl core::iter::FusedIterator for VpSetMembers<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn sets_are_equal_by_their_members_and_show_them() {
        let set = VpSet::sparse(0b101, &[0x21, 0x4]).unwrap();
        assert_eq!(set, VpSet::sparse(0b111, &[0x21, 0, 0x4]).unwrap());
        for (valid_banks, other) in [(0b1, &[0x21][..]), (0b11, &[0x21, 0x4]), (0b101, &[0x20, 0x4])] {
            assert_ne!(set, VpSet::sparse(valid_banks, other).unwrap());
        }
        assert_eq!(std::format!("{set:?}"), "{0, 5, 130}");
    }

    proptest! {
        #[test]
        fn a_set_is_what_a_naive_model_says(
            valid in prop_oneof![any::<u64>(), any::<u64>().prop_map(|mask| mask & 0xf)],
            contents in prop::collection::vec(prop_oneof![Just(0), Just(u64::MAX), any::<u64>()], 64),
        ) {
            let packed = &contents[..valid.count_ones() as usize];
            let mut model = BTreeSet::new();
            let mut next = 0;
            for bank in 0..64 {
                if valid >> bank & 1 == 1 {
                    model.extend((0..64).filter(|bit| packed[next] >> bit & 1 == 1).map(|bit| bank * 64 + bit));
                    next += 1;
                }
            }
            let set = VpSet::sparse(valid, packed).unwrap();
            prop_assert!(set.iter().eq(model.iter().copied()));
            prop_assert_eq!(set.len(), model.len());
            prop_assert_eq!(set.is_empty(), model.is_empty());
            prop_assert!((0..5000).all(|vp| set.contains(vp) == model.contains(&vp)));
            let by_bank = set.banks().flat_map(|(bank, word)| {
                (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| bank * 64 + bit)
            });
            prop_assert!(by_bank.eq(model.iter().copied()));
            let low = u64::MAX.checked_shr(64 - valid.count_ones()).unwrap_or(0);
            prop_assert_eq!(VpSet::dense(packed), VpSet::sparse(low, packed));
            let mask = [valid];
            prop_assert_eq!(Ok(VpSet::from_mask(&valid)), VpSet::dense(&mask));
        }
    }
}
