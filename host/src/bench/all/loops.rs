//! The loops that repeat one small operation, and the run like a build: nothing there may be slower
//! on Quell.

use super::cases::{Case, Comparison, Metric, Work, compare, linux};
use super::way::{HYPERCALL, KVM_HYPERV, KVM_PARAVIRTUAL};

/// Nanoseconds per round of one of the loops.
const fn loop_metric(name: &'static str) -> Metric {
    let of = Some(("loop", name));
    Metric { name, unit: "ns", event: "end", of, pointer: "/ns_per_round", factor: 1.0 }
}

const fn no_slower(metric: &'static str) -> Comparison {
    compare(metric, HYPERCALL, &[KVM_HYPERV, KVM_PARAVIRTUAL], Some(1.0))
}

/// A loop that makes other vCPUs flush must be faster.
const fn faster(metric: &'static str) -> Comparison {
    compare(metric, HYPERCALL, &[KVM_HYPERV, KVM_PARAVIRTUAL], Some(0.8))
}

pub(super) const LOOP_METRICS: &[Metric] = &[
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

pub(super) const LOOPS: Case = Case {
    name: "loops",
    about: "4 threads on 4 vCPUs and 2 CPUs repeat one small operation; then a run like a build",
    work: Work::Linux(linux(
        4,
        "l() { loops --loop $1 --threads 4 --rounds $2 --report /dev/report || exit 1; }; \
                  l page_fault 100; l mmap 2000; l mprotect 100; l context_switch 500; l futex 1000; \
                  l futex_lock 20000; l tlb_flush1 1500; l tlb_flush2 400; l tlb_flush3 400; \
                  mixed --jobs 4 --tasks 16 --report /dev/report",
        LOOP_METRICS,
    )),
    ways: &[HYPERCALL, KVM_HYPERV, KVM_PARAVIRTUAL],
    only_long: false,
    comparisons: &[
        no_slower("page_fault"),
        faster("mmap"),
        faster("mprotect"),
        no_slower("context_switch"),
        no_slower("futex"),
        no_slower("futex_lock"),
        faster("tlb_flush1"),
        faster("tlb_flush2"),
        faster("tlb_flush3"),
        no_slower("mixed"),
    ],
};
