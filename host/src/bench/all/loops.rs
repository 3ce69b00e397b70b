//! The loops that repeat one small operation, and the run like a build: nothing there may be slower
//! on Quell. And the cases of Arm machines, whose guests flush by their own instructions: the ways
//! of the peer are its kernels there.

use super::cases::{Case, Comparison, Metric, SECONDS, USERSPACE, Work, case, compare, end, linux};
use super::own::{EVERYWHERE, Own, on_each, own};
use super::removal::{self, DELETE, ENABLE, FETCH};
use super::way::{
    BARE, FlushWay, HYPERCALL, KVM_HYPERV, KVM_NEWER, KVM_PARAVIRTUAL, KVM_STOCK, ON_ARM, QUELL_ON_ARM,
    XEN_IPI, XEN_PARAVIRTUAL,
};
use crate::bench::{boot, counts};
use crate::prelude::*;

/// The cases of Arm machines.
pub(super) fn on_arm() -> Vec<Case> {
    let models = &EVERYWHERE[1..];
    let count = Case { ways: BOOT.ways, ..own("boot-count", BOOT.about, boot::COUNT) };
    let counted = on_each(&[count, EXITS], models);
    [vec![ARM_BOOT, ARM_THRASH, ARM_LOOPS], on_each(&[BOOT], &models[1..]), vec![ARM_SLOT], counted].concat()
}

/// On the models on which KVM does not run.
const BOOT: Case = case(
    "boot",
    "boot to the guest's first process on Arm, in seconds or instructions",
    Work::Linux(linux(2, "true", &[])),
    &[HYPERCALL, BARE],
    &[],
)
.only_long();

const EXITS: Case = Case {
    only_long: false,
    ..own(
        "exits",
        "instructions of single exits on Arm, exit, entry and the guest's own included",
        Own::counted(counts::count_phases, |_| "2 CPUs, counting instructions".to_owned()),
    )
};

/// Nanoseconds per round of one of the loops.
const fn loop_metric(name: &'static str) -> Metric {
    let of = Some(("loop", name));
    Metric { name, unit: "ns", event: "end", of, pointer: "/ns_per_round", factor: 1.0 }
}

const METRICS: [Metric; 10] = [
    loop_metric("page_fault"),
    loop_metric("mmap"),
    loop_metric("mprotect"),
    loop_metric("context_switch"),
    loop_metric("futex"),
    loop_metric("futex_lock"),
    loop_metric("tlb_flush1"),
    loop_metric("tlb_flush2"),
    loop_metric("tlb_flush3"),
    Metric {
        name: "mixed",
        unit: "ms",
        event: "end",
        of: Some(("workload", "mixed")),
        pointer: "/ns",
        factor: 1e-6,
    },
];

const fn compared(quell: FlushWay, peers: &'static [FlushWay], targets: [f64; 10]) -> [Comparison; 10] {
    let mut all = [compare("", quell, peers, None); 10];
    let mut index = 0;
    while index < all.len() {
        all[index] = compare(METRICS[index].name, quell, peers, Some(targets[index]));
        index += 1;
    }
    all
}

/// Each loop with 4 threads, and the build-like run. A loop that makes other vCPUs flush must be
/// faster, the others must not be slower.
pub(super) const LOOPS: Case = case(
    "loops",
    "4 threads on 4 vCPUs and 2 CPUs repeat one small operation; then a run like a build",
    Work::Linux(linux(
        4,
        "l() { loops --loop $1 --threads 4 --rounds $2 --report /dev/report || exit 1; }; \
                  l page_fault 100; l mmap 2000; l mprotect 100; l context_switch 500; l futex 1000; \
                  l futex_lock 20000; l tlb_flush1 1500; l tlb_flush2 400; l tlb_flush3 400; \
                  mixed --jobs 4 --tasks 16 --report /dev/report",
        &METRICS,
    )),
    &[HYPERCALL, KVM_HYPERV, KVM_PARAVIRTUAL, XEN_IPI, XEN_PARAVIRTUAL],
    &compared(
        HYPERCALL,
        &[KVM_HYPERV, KVM_PARAVIRTUAL, XEN_IPI, XEN_PARAVIRTUAL],
        [1.0, 0.8, 0.8, 1.0, 1.0, 1.0, 0.8, 0.8, 0.8, 1.0],
    ),
);

/// On Arm flushes reach other vCPUs without an exit, so this only checks that nothing is slower.
pub(super) const ARM_LOOPS: Case = case(
    "arm-loops",
    "the loops and the run like a build on Arm, with fewer rounds",
    Work::Linux(linux(
        4,
        "l() { loops --loop $1 --threads 4 --rounds $2 --report /dev/report || exit 1; }; \
                  l page_fault 30; l mmap 1000; l mprotect 100; l context_switch 250; l futex 500; \
                  l futex_lock 20000; l tlb_flush1 100; l tlb_flush2 100; l tlb_flush3 400; \
                  mixed --jobs 4 --tasks 4 --report /dev/report",
        &METRICS,
    )),
    ARM_TWO_WAYS,
    &compared(QUELL_ON_ARM, &[KVM_STOCK], [1.0; 10]),
)
.only_long();

const ARM_WAYS: &[FlushWay] = &FlushWay::ALL_ON_ARM;

/// For cases that take longer: the guest's kernel is the peer's as well.
const ARM_TWO_WAYS: &[FlushWay] = &[QUELL_ON_ARM, KVM_STOCK];

const fn against_kvm(metric: &'static str, target: Option<f64>) -> Comparison {
    compare(metric, QUELL_ON_ARM, &[KVM_STOCK, KVM_NEWER], target)
}

/// The removal has a target; logging is measured beside it.
pub(super) const ARM_SLOT: Case = case(
    "arm-slot-1G",
    "instructions to remove 1 GiB in pages of 4 KiB on Arm until the guest goes on, and to log stores",
    Work::Own(removal::OWN),
    ARM_WAYS,
    &[against_kvm(DELETE, Some(0.001)), against_kvm(ENABLE, None), against_kvm(FETCH, None)],
);

pub(super) const ARM_BOOT: Case = case(
    "arm-boot",
    "boot to the guest's first process on Arm, 2 vCPUs on 2 CPUs",
    Work::Linux(linux(2, "true", &[])),
    &[QUELL_ON_ARM, KVM_STOCK, KVM_NEWER, BARE.on(Platform::Aarch64(ON_ARM))],
    &[against_kvm(USERSPACE, Some(0.8))],
);

pub(super) const ARM_THRASH: Case = case(
    "arm-thrash-8:2",
    "8 threads map, read and unmap part of a file on Arm, a vCPU each on 2 CPUs",
    Work::Linux(linux(
        8,
        "thrash --rounds {rounds} --report /dev/report",
        &[end("real", SECONDS, "/real", 1.0), end("sys", SECONDS, "/sys", 1.0)],
    )),
    ARM_TWO_WAYS,
    &[compare("real", QUELL_ON_ARM, &[KVM_STOCK], None)],
)
.only_long();
