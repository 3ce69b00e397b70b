//! The cases of Arm machines. Their guests flush by their own instructions, so the ways of the peer
//! are its kernels.

use super::cases::{Case, Comparison, Linux, USERSPACE, Work, compare};
use super::way::{KVM_NEWER, KVM_STOCK, Way};
use crate::size::MIB;

const WAYS: &[Way] = &Way::ALL_ON_ARM;

const fn against_kvm(metric: &'static str, target: Option<f64>) -> Comparison {
    compare(metric, Way::QuellOnArm, &[KVM_STOCK, KVM_NEWER], target)
}

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
