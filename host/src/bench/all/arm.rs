//! The cases of Arm machines. Their guests flush by their own instructions, so the ways of the peer
//! are its kernels.

use super::cases::{Case, Comparison, SECONDS, USERSPACE, Work, compare, end, linux};
use super::loops::LOOP_METRICS;
use super::removal::{DELETE, ENABLE, FETCH};
use super::way::{KVM_NEWER, KVM_STOCK, Way};

const WAYS: &[Way] = &Way::ALL_ON_ARM;

/// For cases that take longer: the guest's kernel is the peer's as well.
const TWO_WAYS: &[Way] = &[Way::QuellOnArm, KVM_STOCK];

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
    work: Work::Linux(linux(2, "true", &[])),
    ways: WAYS,
    only_long: false,
    comparisons: &[against_kvm(USERSPACE, Some(0.8))],
};

const fn no_slower(metric: &'static str) -> Comparison {
    compare(metric, Way::QuellOnArm, &[KVM_STOCK], Some(1.0))
}

pub(super) const THRASH: Case = Case {
    name: "arm-thrash-8:2",
    about: "8 threads map, read and unmap part of a file on Arm, a vCPU each on 2 CPUs",
    work: Work::Linux(linux(
        8,
        "thrash --rounds {rounds} --report /dev/report",
        &[end("real", SECONDS, "/real", 1.0), end("sys", SECONDS, "/sys", 1.0)],
    )),
    ways: TWO_WAYS,
    only_long: true,
    comparisons: &[compare("real", Way::QuellOnArm, &[KVM_STOCK], None)],
};

/// Flushes reach other vCPUs without an exit, so this only checks that nothing is slower.
pub(super) const LOOPS: Case = Case {
    name: "arm-loops",
    about: "the loops and the run like a build on Arm, with fewer rounds",
    work: Work::Linux(linux(
        4,
        "l() { loops --loop $1 --threads 4 --rounds $2 --report /dev/report || exit 1; }; \
                  l page_fault 30; l mmap 1000; l mprotect 100; l context_switch 250; l futex 500; \
                  l futex_lock 20000; l tlb_flush1 100; l tlb_flush2 100; l tlb_flush3 400; \
                  mixed --jobs 4 --tasks 4 --report /dev/report",
        LOOP_METRICS,
    )),
    ways: TWO_WAYS,
    only_long: true,
    comparisons: &[
        no_slower("page_fault"),
        no_slower("mmap"),
        no_slower("mprotect"),
        no_slower("context_switch"),
        no_slower("futex"),
        no_slower("futex_lock"),
        no_slower("tlb_flush1"),
        no_slower("tlb_flush2"),
        no_slower("tlb_flush3"),
        no_slower("mixed"),
    ],
};
