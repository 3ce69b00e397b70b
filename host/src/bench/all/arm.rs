//! The cases of Arm machines. Their guests flush by their own instructions, so the ways of the peer
//! are its kernels.

use super::cases::{Case, Comparison, Linux, USERSPACE, Work, compare};
use super::removal::{DELETE, ENABLE, FETCH};
use super::way::{KVM_NEWER, KVM_STOCK, Way};
use crate::size::MIB;

const WAYS: &[Way] = &Way::ALL_ON_ARM;

const fn against_kvm(metric: &'static str, target: Option<f64>) -> Comparison {
    compare(metric, Way::QuellOnArm, &[KVM_STOCK, KVM_NEWER], target)
}

/// The removal has a target; logging is measured beside it.
pub(super) const SLOT: Case = Case {
    name: "arm-slot-1G",
    about: "instructions to remove 1 GiB in pages of 4 KiB on Arm until the guest goes on, and to log stores",
    work: Work::Removal,
    ways: WAYS,
    only_long: false,
    comparisons: &[against_kvm(DELETE, Some(0.001)), against_kvm(ENABLE, None), against_kvm(FETCH, None)],
};

pub(super) const BOOT: Case = Case {
    name: "arm-boot",
    about: "boot to the guest's first process on Arm, 2 vCPUs on 2 CPUs",
    work: Work::Linux(Linux {
        vcpus: 2,
        cpus: 2,
        memory: 512 * MIB,
        command: "true",
        has_rom: false,
        metrics: &[],
    }),
    ways: WAYS,
    only_long: false,
    comparisons: &[against_kvm(USERSPACE, Some(0.8))],
};
