//! Guests of guests, beside KVM's own: Debian with KVM is a guest, of Quell or of KVM, and runs the
//! guest that is measured.
//!
//! Each kernel that runs guests has one CPU. Where instructions are counted KVM on KVM gets stuck,
//! so both sides are measured by the clock, in turn; what Quell's side takes is counted as well.

use super::cases::{Case, Comparison, Linux, Metric, USERSPACE, Work, case, compare, end, linux};
pub(super) use super::way::INNER;
use super::way::{FlushWay, INNER_COUNTED, KVM_INNER};
use crate::bench::lab::{BARE_MEMORY, Lab};
use crate::guest::peer::Flushes;
use crate::prelude::*;

/// The timeouts of machines with Quell and with KVM around, in seconds.
pub(super) const TIMEOUTS: (u64, u64) = (600, 200);
const WAYS: &[FlushWay] = &[INNER, KVM_INNER];
const GOAL: Option<f64> = Some(0.5);

const fn inner(metric: &'static str) -> Comparison {
    compare(metric, INNER, &[KVM_INNER], GOAL)
}

const fn of_guests(
    name: &'static str,
    about: &'static str,
    work: Work,
    ratios: &'static [Comparison],
) -> Case {
    case(name, about, work, WAYS, ratios).only_long()
}

pub(super) const EXITS: Case = of_guests(
    "nested-exits",
    "cycles of single exits of a guest's guest, which the guest serves",
    Work::Probe { cmdline: "bench=exits", vcpus: 2 },
    &[
        inner("cpuid"),
        inner("hypercall"),
        inner("port-out"),
        inner("self-ipi"),
        inner("tsc-deadline"),
        inner("ipi-round-trip"),
    ],
);

/// The same exits on Quell alone.
pub(super) const COUNT: Case = Case {
    ways: &[INNER_COUNTED],
    ..of_guests(
        "nested-count",
        "instructions of single exits of a guest's guest",
        Work::Probe { cmdline: "bench=exits", vcpus: 2 },
        &[],
    )
};

/// The command line of the bare guest whose guest flushes without it.
pub(super) const DIRECT_WORDS: &str = "bench=direct";

pub(super) const FLUSH: Case = Case {
    ways: &[INNER, KVM_INNER, FlushWay::Direct],
    ..of_guests(
        "nested-flush",
        "cycles of a flush by a guest's guest of its other vCPU, which does not run",
        Work::Probe { cmdline: "bench=flush count=1", vcpus: 2 },
        &[inner("space-idle-1"), compare("space-idle-1", FlushWay::Direct, &[KVM_INNER], Some(0.2))],
    )
};

pub(super) const TOUCH: Case = of_guests(
    "nested-touch",
    "cycles of the first store of a guest's guest to each page of 64 MiB, per page",
    Work::Probe { cmdline: "bench=touch", vcpus: 1 },
    &[inner("first-touch")],
);

/// By the clock of that guest's kernel, from its start to its first process.
const UPTIME: Metric = end("uptime", "s", "/uptime", 1.0);

pub(super) const BOOT: Case = of_guests(
    "nested-boot",
    "boot of a guest's guest to its first process, 1 vCPU",
    Work::Linux(Linux {
        cpus: 1,
        memory: 256 * MIB,
        ..linux(
            1,
            "read up idle </proc/uptime; echo \"{\\\"event\\\":\\\"end\\\",\\\"uptime\\\":$up}\" >/dev/report",
            &[UPTIME],
        )
    }),
    &[inner(USERSPACE), inner("uptime")],
);

/// The memory of a bare guest: what it touches is above what it uses.
pub(super) fn memory(way: FlushWay) -> Option<u64> {
    matches!(way, FlushWay::Inner(..)).then_some(2 * BARE_MEMORY)
}

pub(super) fn spec(lab: &Lab<'_>, around: Subject, clock: Clock, guest: &Guest) -> Result<Spec> {
    let (inner, stock) = (guest.under_kvm(Flushes::HyperV, false), lab.stock(Arch::X86_64)?);
    if around == Subject::Kvm {
        return stock.with_kvm_on_kvm(guest.platform, &inner, lab.directory());
    }
    let (hypervisor, machine) = (lab.hypervisor(Arch::X86_64)?, (1, clock));
    let switches = Switches::default();
    stock.with_kvm_on_quell(guest.platform, &inner, hypervisor, switches, machine, lab.directory())
}
