//! The cases that `quell bench all` measures: one row each.

use super::loops;
use super::nested;
use super::own::{EVERYWHERE, Own, on_each, own};
use super::slots::{self, Slots};
use super::way::{
    BARE, FlushWay, HYPERCALL, IPI, KVM_HYPERV, KVM_IPI, KVM_PARAVIRTUAL, XEN_HYPERV, XEN_IPI,
    XEN_PARAVIRTUAL,
};
use crate::bench::{devices, isolation, memslot, migrate, running, unmap};
use crate::machine::bochs::Bochs;
use crate::machine::kvm::Vendor;
use crate::prelude::*;
use std::sync::LazyLock;

#[derive(Clone)]
pub(crate) struct Case {
    /// Its name in results, and for `--only`.
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) work: Work,
    /// Its ways, in the order of odd rounds; even rounds reverse the order.
    pub(crate) ways: &'static [FlushWay],
    /// Run only with `--long`.
    pub(crate) only_long: bool,
    pub(crate) comparisons: &'static [Comparison],
}

/// A guest with at least this many vCPUs takes long to boot.
const MANY: u32 = 64;

#[derive(Clone)]
pub(crate) enum Work {
    /// A command in the stock Linux guest.
    Linux(Linux),
    /// The bare guest with this command line, on a machine that counts instructions. The counts are
    /// the same each time, so it runs once.
    Probe {
        cmdline: &'static str,
        vcpus: u32,
    },
    /// Slots of a guest that only uses them, on a machine that counts instructions; runs once.
    Slots(Slots),
    Tlbcheck(Tlbcheck),
    Own(Own),
}

/// tlbcheck's benchmark, with as many vCPUs as CPUs.
#[derive(Clone)]
pub(crate) struct Tlbcheck {
    pub(crate) cpus: u32,
    /// Shootdowns of each kind.
    pub(crate) samples: u32,
    /// What the other CPUs do: `spin` or `halt`.
    pub(crate) targets: &'static str,
}

/// A command in the stock Linux guest. The time to userspace is always measured as well.
#[derive(Clone)]
pub(crate) struct Linux {
    pub(crate) vcpus: u32,
    pub(crate) cpus: u32,
    pub(crate) memory: u64,
    /// The command, the same in all ways; `{rounds}` stands for the number of thrash's rounds.
    pub(crate) command: &'static str,
    /// Whether the guest needs the PCI device with the ROM. Quell's guests always have it.
    pub(crate) has_rom: bool,
    pub(crate) metrics: &'static [Metric],
}

/// A number in the guest's reports.
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) event: &'static str,
    /// A field and the value it must have, if there are several reports of the event.
    pub(crate) of: Option<(&'static str, &'static str)>,
    /// The location of the number, as a JSON pointer (RFC 6901).
    pub(crate) pointer: &'static str,
    pub(crate) factor: f64,
}

/// Compares one of Quell's numbers with the best of some of a peer's ways.
#[derive(Clone, Copy)]
pub(crate) struct Comparison {
    pub(crate) metric: &'static str,
    pub(crate) quell: FlushWay,
    pub(crate) peers: &'static [FlushWay],
    /// The maximum of the ratio, if KVM is the peer.
    pub(crate) target: Option<f64>,
}

/// Seconds to userspace: from the start of the machine on Quell, of the inner QEMU on KVM.
pub(crate) const USERSPACE: &str = "userspace";
pub(crate) const SECONDS: &str = "s";
pub(crate) const INSTRUCTIONS: &str = "instructions";
pub(crate) const CYCLES: &str = "cycles";

impl Comparison {
    /// Those of its peers' ways that are this one's.
    pub(super) fn of(&self, peer: Subject) -> impl Iterator<Item = FlushWay> {
        self.peers.iter().copied().filter(move |way| way.subject() == peer)
    }
}

const LINUX_WAYS: &[FlushWay] = &FlushWay::ALL;
/// For bare guests, which use Hyper-V's interface, and for cases that do not measure flushes.
pub(super) const TWO_WAYS: &[FlushWay] = &[HYPERCALL, KVM_HYPERV];
/// For bare guests that a domain of Xen can be, too.
const BARE_WAYS: &[FlushWay] = &[HYPERCALL, KVM_HYPERV, XEN_HYPERV];
const PEERS: &[FlushWay] = &[KVM_HYPERV, KVM_IPI, KVM_PARAVIRTUAL, XEN_IPI, XEN_PARAVIRTUAL];

pub(super) const fn end(
    name: &'static str,
    unit: &'static str,
    pointer: &'static str,
    factor: f64,
) -> Metric {
    Metric { name, unit, event: "end", of: None, pointer, factor }
}

pub(super) const fn compare(
    metric: &'static str,
    quell: FlushWay,
    peers: &'static [FlushWay],
    target: Option<f64>,
) -> Comparison {
    Comparison { metric, quell, peers, target }
}

/// Compares bare guests, and cases that do not measure flushes, with KVM alone.
pub(super) const fn relative(metric: &'static str, target: Option<f64>) -> Comparison {
    compare(metric, HYPERCALL, &[KVM_HYPERV], target)
}

/// Compares bare guests with those of both peers.
const fn bare(metric: &'static str, target: Option<f64>) -> Comparison {
    compare(metric, HYPERCALL, &[KVM_HYPERV, XEN_HYPERV], target)
}

const THRASH: &[Metric] = &[
    end("real", SECONDS, "/real", 1.0),
    end("sys", SECONDS, "/sys", 1.0),
    end("guest.tlb_ipis", "count", "/tlb_ipis", 1.0),
];
const THRASH_RATIOS: &[Comparison] =
    &[compare("real", HYPERCALL, PEERS, None), compare("real", IPI, &[KVM_IPI], None)];
/// The targets are for 8 vCPUs on 2 CPUs.
const THRASH_TARGETS: &[Comparison] =
    &[compare("real", HYPERCALL, PEERS, Some(0.3)), compare("real", IPI, &[KVM_IPI], Some(0.6))];

/// A command in a guest of 512 MiB on 2 CPUs.
pub(super) const fn linux(vcpus: u32, command: &'static str, metrics: &'static [Metric]) -> Linux {
    Linux { vcpus, cpus: 2, memory: 512 * MIB, command, has_rom: false, metrics }
}

const fn thrash(name: &'static str, about: &'static str, vcpus: u32, ratios: &'static [Comparison]) -> Case {
    let work = Work::Linux(linux(vcpus, "thrash --rounds {rounds} --report /dev/report", THRASH));
    case(name, about, work, LINUX_WAYS, ratios)
}

const fn native(name: &'static str, targets: &'static str) -> Case {
    let work = Work::Tlbcheck(Tlbcheck { cpus: 4, samples: 301, targets });
    let about = "the same on up to 4 CPUs, also on the machine itself, whose targets spin or halt";
    case(name, about, work, &[BARE, HYPERCALL, KVM_HYPERV], &[]).only_long()
}

pub(super) const EXIT_MAX: Option<f64> = Some(0.15);
/// A flush whose targets do not run. On Intel's processors, where KVM's exits are shorter, its
/// target is that of an exit.
pub(super) const IDLE: &str = "space-idle-";
const FLUSH_MAX: Option<f64> = Some(0.1);

/// All cases. Of an architecture, those whose counts are the same each time come last, so that the
/// times measured by the clock are available first.
pub(crate) static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
    let mut all = [AMD64.to_vec(), memslot::CASES.to_vec(), vec![devices::CASE], loops::on_arm()].concat();
    all.extend(on_each(&unmap::CASES, &EVERYWHERE[1..]));
    all.extend(on_each(&[&migrate::CASES[..], &[isolation::CASE]].concat(), &EVERYWHERE));
    let named = |names: &str| -> Vec<Case> {
        let is_named = |case: &&Case| names.split(' ').any(|name| name == case.name);
        AMD64.iter().filter(is_named).cloned().collect()
    };
    all.extend(on_each(&named(ON_BOCHS), &[Bochs::RYZEN, Bochs::SKYLAKE].map(Platform::Bochs)));
    all.extend(on_each(&named("boot exits flush-254"), &Vendor::ALL.map(Platform::Kvm)));
    all
});

/// What counts on Bochs, too: a tick of its clock is an instruction.
const ON_BOCHS: &str = "exits flush flush-254 remove-1G log-1G remove-beside-64M remove-beside-256M \
    remove-beside-1G";

const AMD64: &[Case] = &[
    case(
        "boot",
        "boot to the guest's first process, 2 vCPUs on 2 CPUs",
        Work::Linux(linux(2, "true", &[])),
        &[HYPERCALL, KVM_HYPERV, KVM_PARAVIRTUAL, XEN_IPI, XEN_PARAVIRTUAL, BARE],
        &[compare(USERSPACE, HYPERCALL, &[KVM_HYPERV, KVM_PARAVIRTUAL, XEN_IPI, XEN_PARAVIRTUAL], Some(0.8))],
    ),
    thrash(
        "thrash-2:2",
        "2 threads map, read and unmap part of a file, a vCPU each on 2 CPUs",
        2,
        THRASH_RATIOS,
    ),
    thrash("thrash-4:2", "the same by 4 threads and vCPUs", 4, THRASH_RATIOS),
    thrash("thrash-8:2", "the same by 8 threads and vCPUs", 8, THRASH_TARGETS),
    thrash("thrash-16:2", "the same by 16 threads and vCPUs", 16, THRASH_RATIOS),
    case(
        "thrash-128:2",
        "the same by 65 threads on 128 vCPUs, more than a mask of 64 bits can name",
        Work::Linux(Linux {
            vcpus: 128,
            cpus: 2,
            memory: 1024 * MIB,
            command: "thrash --threads 65 --rounds 5 --report /dev/report",
            has_rom: false,
            metrics: THRASH,
        }),
        LINUX_WAYS,
        THRASH_RATIOS,
    )
    .only_long(),
    case(
        "rom",
        "8 threads on 2 CPUs use memory while a PCI device's ROM is added and removed",
        Work::Linux(Linux {
            vcpus: 8,
            cpus: 2,
            memory: 512 * MIB,
            command: "mmtest --memory 32 --rounds 10 --report /dev/report",
            has_rom: true,
            metrics: &[end("round", "ms", "/round_us/median", 1e-3)],
        }),
        TWO_WAYS,
        &[relative("round", Some(0.5))],
    ),
    loops::LOOPS,
    case(
        "shootdown",
        "tlbcheck's flushes of another CPU, by each of its back ends",
        Work::Tlbcheck(Tlbcheck { cpus: 2, samples: 51, targets: "spin" }),
        BARE_WAYS,
        &[
            bare("hypercall-2:1 initiator", None),
            bare("hypercall-2:all initiator", None),
            bare("ipi-serial-2:1 initiator", None),
        ],
    ),
    native("shootdown-native", "spin"),
    native("shootdown-halted", "halt"),
    case(
        "exits",
        "instructions of single exits, exit and entry included",
        Work::Probe { cmdline: "bench=exits", vcpus: 2 },
        BARE_WAYS,
        &[
            bare("cpuid", EXIT_MAX),
            bare("hypercall", EXIT_MAX),
            bare("port-out", EXIT_MAX),
            bare("self-ipi", EXIT_MAX),
            bare("tsc-deadline", EXIT_MAX),
            bare("ipi-round-trip", EXIT_MAX),
        ],
    ),
    case(
        "flush",
        "instructions of a flush hypercall whose targets are not running",
        Work::Probe { cmdline: "bench=flush count=64", vcpus: 65 },
        BARE_WAYS,
        &[bare("space-idle-1", FLUSH_MAX), bare("space-idle-8", FLUSH_MAX), bare("space-idle-64", FLUSH_MAX)],
    ),
    case(
        "flush-254",
        "the same with the maximum number of targets",
        Work::Probe { cmdline: "bench=flush", vcpus: 255 },
        TWO_WAYS,
        &[relative("space-idle-128", FLUSH_MAX), relative("space-idle-254", FLUSH_MAX)],
    )
    .only_long(),
    slots::REMOVE,
    slots::LOG,
    slots::BESIDE_64M,
    slots::BESIDE_256M,
    slots::BESIDE_1G,
    slots::BESIDE_2G,
    nested::EXITS,
    nested::FLUSH,
    nested::TOUCH,
    nested::BOOT,
    nested::COUNT,
    own(
        "flush-running",
        "the effect of flush hypercalls on vCPUs in guest mode, by the hypervisor's counters",
        Own::counted(running::count, |_| "a CPU for each vCPU, counting instructions".to_owned()),
    ),
];

impl Work {
    /// The metrics that are found in reports by where they are.
    pub(crate) const fn metrics(&self) -> &'static [Metric] {
        match self {
            Self::Linux(linux) => linux.metrics,
            Self::Slots(slots) => slots.metrics,
            Self::Probe { .. } | Self::Tlbcheck(_) | Self::Own(_) => &[],
        }
    }

    /// Whether a metric is in the table. tlbcheck has hundreds.
    pub(super) fn shows(&self, metric: &str) -> bool {
        let is_main = || [":1 initiator", ":all initiator"].iter().any(|end| metric.ends_with(end));
        !matches!(self, Self::Tlbcheck(_)) || is_main()
    }

    /// The timeout of a machine: several times the time it usually takes.
    pub(super) fn timeout(&self, way: FlushWay) -> Duration {
        let (quell, kvm) = match self {
            _ if matches!(way, FlushWay::Inner(..)) => nested::TIMEOUTS,
            Self::Linux(linux) if linux.vcpus >= MANY => (300, 1200),
            Self::Linux(_) if matches!(way, FlushWay::KvmOnArm(_)) => (120, 240),
            Self::Linux(_) if way.subject() == Subject::Xen => (120, 400),
            // Its machines hang now and then; good ones take at most 22 s on idle cores.
            Self::Linux(_) => (120, 100),
            Self::Probe { vcpus, .. } if *vcpus >= MANY => (120, 1200),
            Self::Probe { .. } | Self::Slots(_) => (120, 600),
            Self::Tlbcheck(_) => (900, 900),
            Self::Own(_) => (300, 900),
        };
        Duration::from_secs(if way.is_peer() { kvm } else { quell })
    }
}

/// A case that is run without `--long`, too.
pub(super) const fn case(
    name: &'static str,
    about: &'static str,
    work: Work,
    ways: &'static [FlushWay],
    comparisons: &'static [Comparison],
) -> Case {
    Case { name, about, work, ways, only_long: false, comparisons }
}

impl Case {
    pub(super) const fn only_long(self) -> Self {
        Self { only_long: true, ..self }
    }

    /// Whether its numbers vary with the clock.
    pub(crate) const fn is_timed(&self) -> bool {
        let is_counted =
            matches!(self.work, Work::Probe { .. } | Work::Slots(_) | Work::Own(Own { is_timed: false, .. }));
        !is_counted || self.by_kvm().is_some() || matches!(self.ways[0], nested::INNER)
    }

    /// The number of times it is run if `runs` rounds are requested.
    pub(crate) const fn rounds(&self, runs: u32) -> u32 {
        if self.is_timed() { runs } else { 1 }
    }

    pub(crate) const fn arch(&self) -> Arch {
        self.ways[0].platform().arch()
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::is_unit;
    use super::*;

    #[test]
    fn names_are_unique_units_survive_the_file_and_what_is_compared_is_run_and_reported() {
        for (index, case) in CASES.iter().enumerate() {
            let (name, metrics) = (case.name, case.work.metrics());
            assert!(CASES[..index].iter().all(|other| other.name != name), "{name} twice");
            assert!(case.ways.iter().all(|way| way.platform().arch() == case.arch()), "{name}");
            metrics.iter().for_each(|metric| assert!(is_unit(metric.unit), "{name}: {}", metric.unit));
            for Comparison { quell, peers, metric, .. } in case.comparisons {
                assert!(!quell.is_peer() && case.ways.contains(quell), "{name}");
                let are_run = peers.iter().all(|way| way.is_peer() && case.ways.contains(way));
                assert!(!peers.is_empty() && are_run, "{name}");
                let is_named = *metric == USERSPACE || metrics.iter().any(|known| known.name == *metric);
                let is_of_guests = matches!(case.work, Work::Linux(_) | Work::Slots(_));
                assert!(is_named || !is_of_guests, "{name}: {metric}");
            }
        }
    }

    #[test]
    fn counts_are_taken_once() {
        let rounds = |name| CASES.iter().find(|case| case.name == name).map(|case| case.rounds(5));
        let once = ["exits", "remove-1G", "arm-exits"].map(rounds);
        assert_eq!(once, [Some(1); 3]);
        assert_eq!(["boot", "arm-boot"].map(rounds), [Some(5); 2]);
    }
}
