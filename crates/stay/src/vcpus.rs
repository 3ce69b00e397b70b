//! Adjacent vCPUs, as targets of the flush engine.

use coherence::{Members, Target};

/// Bits of a bank.
const BANK: usize = 64;

/// Calls `act` with each target of `set` that exists, in the order of their indices: for
/// [`coherence::Targets::for_each`] of adjacent vCPUs.
#[inline(always)]
pub fn for_each_target<V, S: Members + ?Sized>(
    vcpus: &[V],
    target: impl Fn(&V) -> &Target,
    set: &S,
    mut act: impl FnMut(usize, &Target),
) {
    set.for_each_bank(
        #[inline(always)]
        |bank, bits| in_bank(vcpus, bank, bits, |index, vcpu| act(index, target(vcpu))),
    );
}

/// Calls `act` with each vCPU of a bank whose bit is set. Guests name vCPUs that do not exist:
/// these are skipped.
#[inline(always)]
#[expect(
    unsafe_code,
    reason = "the body of the loop over all vCPUs of a flush, where a check of bounds is a tenth of it"
)]
pub fn in_bank<V>(vcpus: &[V], bank: usize, bits: u64, mut act: impl FnMut(usize, &V)) {
    let Some(first) = bank.checked_mul(BANK) else { return };
    let Some(vcpus) = vcpus.get(first..).filter(|vcpus| !vcpus.is_empty()) else { return };
    let mut bits = bits & u64::MAX >> (BANK - vcpus.len().min(BANK));
    while bits != 0 {
        let place = bits.trailing_zeros() as usize;
        // SAFETY: only the bits of existing vCPUs remain, at most 64: `place` is below their
        // number.
        let vcpu = unsafe { vcpus.get_unchecked(place) };
        act(first.wrapping_add(place), vcpu);
        // Last, so that the loop ends by the flags of this.
        bits &= bits.wrapping_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn found(count: usize, bank: usize, bits: u64) -> Vec<usize> {
        let vcpus: Vec<usize> = (0..count).collect();
        let mut found = Vec::new();
        in_bank(&vcpus, bank, bits, |index, &vcpu| {
            assert_eq!(index, vcpu);
            found.push(index);
        });
        found
    }

    #[test]
    fn h13_vcpus_that_do_not_exist_are_skipped_and_none_that_does() {
        assert_eq!(found(3, 0, u64::MAX), [0, 1, 2]);
        assert_eq!(found(3, 1, u64::MAX), [0; 0]);
        assert_eq!(found(64, 0, 1 << 63 | 1), [0, 63]);
        assert_eq!(found(64, 1, 1), [0; 0]);
        assert_eq!(found(65, 1, u64::MAX), [64]);
        assert_eq!(found(130, 1, 1 << 63 | 1 << 7), [71, 127]);
        assert_eq!(found(130, 2, u64::MAX), [128, 129]);
        assert_eq!(found(130, usize::MAX / BANK, u64::MAX), [0; 0]);
        assert_eq!(found(0, 0, u64::MAX), [0; 0]);
    }
}
