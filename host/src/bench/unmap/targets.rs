//! The table of the benchmark: the results next to KVM's figures, and the limits.

use super::{BLOCKING, DC, DSB, ENABLE, FAULT_IN, FETCH, INSTRUCTIONS, PER_PAGE, TLBI, TOTAL, WALL, case};
use crate::arch::ArmCpu;
use crate::bench::limits::Limit;
use crate::results::Samples;
use crate::table::table;

/// The highest time of the ranged deletion relative to the one page by page: what S5's author
/// reports for 1 GiB, more than 500 ms against 16 ms.
const WALL_RATIO_MAX: f64 = 1.0 / 31.0;

/// A row of the table. Figures are those of the CPUs in the order of [`ArmCpu::ALL`].
struct Budget {
    name: &'static str,
    label: &'static str,
    /// Instructions of Linux KVM 6.1 and 6.12 in the same machine, by the same method, where they
    /// were measured. KVM's deletion is one piece: the guest waits for all of it.
    kvm: [[f64; 2]; 3],
    /// The most instructions, and the most TLB maintenance instructions.
    limits: [[f64; 2]; 3],
}

const M: f64 = 1e6;
const NONE: f64 = f64::INFINITY;
/// KVM's removal of a GiB of 262,144 pages.
const DELETION: [[f64; 2]; 3] = [[66.8 * M, 39.5 * M], [142.8 * M, 144.2 * M], [163.9 * M, 171.1 * M]];

/// Most figures of KVM, and most limits, are for the first CPU.
const fn budget(name: &'static str, label: &'static str, kvm: [f64; 2], most: f64) -> Budget {
    let kvm = [kvm, [f64::NAN; 2], [f64::NAN; 2]];
    Budget { name, label, kvm, limits: [[most, NONE], [NONE; 2], [NONE; 2]] }
}

const TARGETS: [Budget; 6] = [
    Budget {
        name: BLOCKING,
        label: "1 GiB of 4K pages goes: until the guest may go on",
        kvm: DELETION,
        limits: [[5e3, 2.0], [10e3, NONE], [10e3, NONE]],
    },
    Budget {
        name: TOTAL,
        label: "… until all of it is given back",
        kvm: DELETION,
        limits: [[4.0 * M, 4.0], [0.5 * DELETION[1][0], NONE], [0.5 * DELETION[2][0], NONE]],
    },
    Budget {
        name: PER_PAGE, label: "… page by page, for comparison", kvm: DELETION, limits: [[NONE; 2]; 3]
    },
    budget(ENABLE, "stores to 1 GiB begin to be logged", [14.0 * M, f64::NAN], 2.0 * M),
    budget(FETCH, "a log of 262,144 dirty pages is fetched", [15.5 * M, f64::NAN], 4.0 * M),
    budget(FAULT_IN, "a page of 4K is installed after a fault", [4800.0, 5000.0], 1200.0),
];

pub(super) fn print(samples: &Samples, cpus: &[ArmCpu]) {
    for &cpu in cpus {
        let header = [cpu.name(), "instructions", "TLBI", "DSB", "DC", "wall", "KVM 6.1", "KVM 6.12"];
        let rows = TARGETS.iter().map(|target| {
            let of = |metric| samples.of_quell(&case(target.name, cpu), metric);
            let wall = of(WALL);
            let wall = if wall.is_nan() { String::new() } else { format!("{wall:.2} ms") };
            let counts = [of(INSTRUCTIONS), of(TLBI), of(DSB), of(DC)].map(number);
            let kvm = target.kvm[cpu as usize].map(number);
            [&[target.label.to_owned()][..], &counts, &[wall], &kvm].concat()
        });
        println!("{}", table(header, rows));
    }
}

pub(super) fn limits(samples: &Samples, cpus: &[ArmCpu]) -> Vec<Limit> {
    cpus.iter().flat_map(|cpu| [counts(samples, *cpu), vec![ratio(samples, *cpu)]].concat()).collect()
}

/// Counts with limits. The worst run counts.
fn counts(samples: &Samples, cpu: ArmCpu) -> Vec<Limit> {
    let all = TARGETS.iter().flat_map(|target| {
        let metrics = [INSTRUCTIONS, TLBI].into_iter().zip(target.limits[cpu as usize]);
        metrics.map(|(metric, most)| (case(target.name, cpu), metric, most))
    });
    let limited = all.filter(|(.., most)| most.is_finite());
    limited.map(|(case, metric, most)| Limit::of_worst(samples, &case, metric, most)).collect()
}

/// The time of the ranged deletion relative to the other one.
fn ratio(samples: &Samples, cpu: ArmCpu) -> Limit {
    let wall = |name| samples.of_quell(&case(name, cpu), WALL);
    let label = format!("ranged, relative to page by page, on {}: {WALL}", cpu.name());
    Limit::at_most(label, wall(TOTAL) / wall(PER_PAGE), WALL_RATIO_MAX)
}

/// A count, large ones in millions; empty if there is none.
fn number(count: f64) -> String {
    match count {
        _ if count.is_nan() => String::new(),
        _ if count >= M => format!("{:.2} M", count / M),
        _ => format!("{count:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::limits::tests::each_can_be_missed;
    use crate::results::Subject;

    #[test]
    fn each_limit_can_be_missed() {
        for (cpu, number) in ArmCpu::ALL.into_iter().zip([7, 2, 2]) {
            assert_eq!(each_can_be_missed(&|samples| counts(samples, cpu)), number, "{}", cpu.name());
            let mut samples = Samples::default();
            assert!(!ratio(&samples, cpu).is_met(), "nothing was measured");
            samples.add(&case(TOTAL, cpu), Subject::Quell, WALL, "ms", 16.0);
            samples.add(&case(PER_PAGE, cpu), Subject::Quell, WALL, "ms", 500.0);
            assert!(ratio(&samples, cpu).is_met());
            samples.add(&case(TOTAL, cpu), Subject::Quell, WALL, "ms", 17.0);
            assert!(!ratio(&samples, cpu).is_met());
        }
        assert!(limits(&Samples::default(), &[]).is_empty(), "nothing was asked for");
    }

    #[test]
    fn without_fwb_a_deletion_may_take_half_of_kvms() {
        let total = TARGETS.iter().find(|target| target.name == TOTAL).expect("is there");
        assert!((total.limits[ArmCpu::NeoverseN1 as usize][0] - 71.4 * M).abs() < 1.0);
        assert_eq!(
            (number(66.8 * M), number(4.0), number(f64::NAN)),
            ("66.80 M".into(), "4".into(), String::new())
        );
    }
}
