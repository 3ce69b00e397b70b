//! The mapping between vCPUs and APIC ids.
//!
//! The ids start at 0 without gaps, and the first vCPU, which starts the guest, has id 0. The other
//! ids may be in another order than the VP indices, as on real machines: this reveals a guest that
//! confuses the two (pitfall H13).

use hostlink::config::ApicIds;
use migration::described;

use crate::index::VpIndex;

/// The id of a guest's local APIC. Whoever takes it for a vCPU's index does not compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApicId(pub u32);

impl ApicId {
    /// No vCPU's: the sender of what no local APIC has sent.
    pub const NONE: Self = Self(u32::MAX);
    /// The physical destination that means all.
    pub const BROADCAST: Self = Self(u32::MAX);
}

impl From<ApicId> for u64 {
    fn from(ApicId(id): ApicId) -> Self {
        id.into()
    }
}

/// The assignment of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    vcpus: u32,
    reversed: bool,
}

described!(Assignment: ; same vcpus, reversed);

impl Assignment {
    /// The ids of `vcpus` vCPUs.
    pub const fn new(vcpus: u32, order: ApicIds) -> Self {
        Self { vcpus, reversed: matches!(order, ApicIds::Reversed) }
    }

    /// The APIC id of vCPU `index`.
    #[inline]
    pub const fn id_of(&self, index: VpIndex) -> ApicId {
        ApicId(self.translate(index.0))
    }

    /// The vCPU with this APIC id. An id that nobody has is no vCPU's index.
    #[inline]
    pub const fn vcpu_of(&self, id: ApicId) -> VpIndex {
        VpIndex(self.translate(id.0))
    }

    /// Both orders are their own inverse. Numbers without a vCPU are returned unchanged.
    const fn translate(&self, number: u32) -> u32 {
        if self.reversed && number != 0 && number < self.vcpus { self.vcpus - number } else { number }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h13_each_id_is_assigned_once_and_found_again() {
        for order in [ApicIds::Ascending, ApicIds::Reversed] {
            for vcpus in [1, 2, 3, 8, 255] {
                let ids = Assignment::new(vcpus, order);
                assert_eq!(ids.id_of(VpIndex(0)), ApicId(0), "the first vCPU starts the guest");
                let mut seen = std::collections::BTreeSet::new();
                for index in (0..vcpus).map(VpIndex) {
                    let id = ids.id_of(index);
                    assert!(id.0 < vcpus && seen.insert(id));
                    assert_eq!(ids.vcpu_of(id), index);
                }
            }
        }
    }

    #[test]
    fn h13_an_id_that_nobody_has_is_nobodys_index() {
        for order in [ApicIds::Ascending, ApicIds::Reversed] {
            let ids = Assignment::new(8, order);
            for id in [8, 9, 255, 0x1_0000, u32::MAX] {
                assert!(ids.vcpu_of(ApicId(id)).0 >= 8, "{id}");
            }
        }
        assert_eq!(Assignment::new(8, ApicIds::Reversed).id_of(VpIndex(1)), ApicId(7));
    }
}
