//! The mapping between vCPUs and APIC ids.
//!
//! The ids start at 0 without gaps, and the first vCPU, which starts the guest, has id 0. The other
//! ids may be in another order than the VP indices, as on real machines: this reveals a guest that
//! confuses the two (pitfall H13).

use hostlink::config::ApicIds;
use transfer::described;

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

    /// The APIC id of vCPU `index`. Also the index of the vCPU with APIC id `index`: both orders
    /// are their own inverse. Numbers without a vCPU are returned unchanged.
    #[inline]
    pub const fn translate(&self, index: u32) -> u32 {
        if self.reversed && index != 0 && index < self.vcpus { self.vcpus - index } else { index }
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
                assert_eq!(ids.translate(0), 0, "the first vCPU starts the guest");
                let mut seen = std::collections::BTreeSet::new();
                for index in 0..vcpus {
                    let id = ids.translate(index);
                    assert!(id < vcpus && seen.insert(id));
                    assert_eq!(ids.translate(id), index);
                }
            }
        }
    }

    #[test]
    fn h13_an_id_that_nobody_has_is_nobodys_index() {
        for order in [ApicIds::Ascending, ApicIds::Reversed] {
            let ids = Assignment::new(8, order);
            for id in [8, 9, 255, 0x1_0000, u32::MAX] {
                assert!(ids.translate(id) >= 8, "{id}");
            }
        }
        assert_ne!(Assignment::new(8, ApicIds::Reversed).translate(1), 1);
    }
}
