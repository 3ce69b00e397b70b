//! Software generated interrupts: ICC_SGI1R_EL1, ICC_ASGI1R_EL1 and ICC_SGI0R_EL1 (IHI 0069H
//! section 12.2).

use super::Affinity;

/// The register that was written. The one for group 0 reaches interrupts of group 0 only, the
/// others reach both groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SgiGroup {
    /// ICC_SGI0R_EL1.
    Group0,
    /// ICC_SGI1R_EL1, or ICC_ASGI1R_EL1, which in a system with one security state does the same.
    Group1,
}

/// A write to one of the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sgi {
    value: u64,
}

impl Sgi {
    /// From the written value.
    pub const fn new(value: u64) -> Self {
        Self { value }
    }

    /// The interrupt, 0 to 15.
    pub const fn intid(self) -> u8 {
        (self.value >> 24 & 0xf) as u8
    }

    /// The vCPUs that it goes to, ascending; `own` is the writer. Affinities that no vCPU has are
    /// ignored.
    pub fn targets(self, own: u8, vcpu_count: u8) -> impl Iterator<Item = u8> + use<> {
        let everybody = self.value >> 40 & 1 != 0;
        let all = if everybody { 0..vcpu_count } else { 0..0 };
        all.filter(move |&vcpu| vcpu != own).chain(self.listed(everybody, vcpu_count))
    }

    fn listed(self, everybody: bool, vcpu_count: u8) -> impl Iterator<Item = u8> + use<> {
        let value = self.value;
        let cluster = (value >> 16 & 0xff | (value >> 32 & 0xff) << 8 | (value >> 48 & 0xff) << 16) as u32;
        let first = (value >> 44 & 0xf) as u32 * 16;
        let list = if everybody { 0 } else { value as u16 };
        (0..16_u32)
            .filter(move |bit| list >> bit & 1 != 0)
            .filter_map(move |bit| Affinity(cluster << 8 | (first + bit)).vcpu(vcpu_count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(value: u64, own: u8, count: u8) -> Vec<u8> {
        Sgi::new(value).targets(own, count).collect()
    }

    #[test]
    fn affinities_that_nobody_has_are_ignored() {
        assert_eq!(targets(0, 0, 4), []);
        assert_eq!(targets(0xffff, 1, 4), [0, 1, 2, 3], "itself included");
        assert_eq!(targets(1 << 16 | 1, 0, 16), [], "no such cluster");
        assert_eq!(targets(1 << 32 | 1, 0, 4), [], "Aff2");
        assert_eq!(targets(1 << 48 | 1, 0, 4), [], "Aff3");
        assert_eq!(targets(1 << 44 | 1, 0, 32), [], "Aff0 16, not vCPU 16");
        assert_eq!(targets(0xff << 16 | 0xffff, 0, 255), []);
    }

    #[test]
    fn clusters_and_everybody() {
        assert_eq!(targets(1 << 16 | 0x8001, 0, 255), [16, 31]);
        assert_eq!(targets(15 << 16 | 0xffff, 0, 255), (240..255).collect::<Vec<_>>());
        assert_eq!(targets(1 << 40 | 0xffff, 2, 4), [0, 1, 3], "the list does not count");
        assert_eq!(targets(1 << 40, 0, 1), []);
        assert_eq!(Sgi::new(0xf7 << 24).intid(), 7);
    }
}
