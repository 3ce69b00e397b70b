//! Sets of CPUs.

use super::CpuIndex;

/// A set of CPUs, out of 256: a bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSet(pub [u64; 4]);

impl CpuSet {
    /// Every CPU.
    pub const ALL: Self = Self([u64::MAX; 4]);

    /// Whether `cpu` is in the set.
    #[must_use]
    pub fn contains(&self, cpu: CpuIndex) -> bool {
        self.0.get(cpu as usize / 64).is_some_and(|word| word >> (cpu % 64) & 1 != 0)
    }
}

impl FromIterator<CpuIndex> for CpuSet {
    /// The set of these CPUs; indices beyond the last bit are left out.
    fn from_iter<I: IntoIterator<Item = CpuIndex>>(cpus: I) -> Self {
        let mut set = Self([0; 4]);
        for cpu in cpus {
            if let Some(word) = set.0.get_mut(cpu as usize / 64) {
                *word |= 1 << (cpu % 64);
            }
        }
        set
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sets_have_the_cpus_that_were_put_in_and_no_others() {
        let set: CpuSet = [0, 63, 64, 255, 256, 1000].into_iter().collect();
        let members: Vec<_> = (0..2000).filter(|&cpu| set.contains(cpu)).collect();
        assert_eq!(members, [0, 63, 64, 255]);
        assert!(CpuSet::ALL.contains(255) && !CpuSet::ALL.contains(256));
    }
}
