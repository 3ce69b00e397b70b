//! The budgets of exits and flushes: instructions per operation, including exit and entry; and what
//! is counted on Arm.
//!
//! A bare guest performs each operation many times. On AMD64 its machine's clock is the number of
//! executed instructions, and it reports one line per operation. On Arm the counter that the guest
//! sees is too coarse, and goes on while the machine waits: there each operation is a phase of its
//! own, and QEMU's plugin counts the instructions of all CPUs in it. Flushes of running vCPUs are
//! counted in [`super::running`].

use super::all::record::Number;
use super::all::way::FlushWay;
use super::all::{Runner, cases};
use super::{boot, devices, isolation, lab, memslot, migrate, running, shootdown, unmap};
use crate::prelude::*;

struct Case {
    name: &'static str,
    label: &'static str,
    budget: f64,
    /// The figure for Linux KVM 6.1, by the same method.
    kvm: &'static str,
}

const fn case(name: &'static str, label: &'static str, budget: f64, kvm: &'static str) -> Case {
    Case { name, label, budget, kvm }
}

const CASES: [Case; 6] = [
    case("cpuid", "CPUID", 400.0, "3,259"),
    case("hypercall", "hypercall that only returns", 450.0, "9,757"),
    case("port-out", "port write", 500.0, "1,760"),
    case("self-ipi", "x2APIC self-IPI with EOI", 1500.0, "10,513"),
    case("tsc-deadline", "TSC deadline, set and delivered", 1500.0, "12,101"),
    case("ipi-round-trip", "IPI round trip, 2 vCPUs on 1 CPU", 4000.0, "41,957"),
];

/// The same on VMX, in Bochs: some twentieth more than was measured. KVM has its APICv off there.
const VMX_CASES: [Case; 6] = [
    case("cpuid", "CPUID", 415.0, "1,165"),
    case("hypercall", "hypercall that only returns", 465.0, "2,037"),
    case("port-out", "port write", 470.0, "5,259"),
    case("self-ipi", "x2APIC self-IPI with EOI", 20.0, "4,350"),
    case("tsc-deadline", "TSC deadline, set and delivered", 1120.0, "5,679"),
    case("ipi-round-trip", "IPI round trip, 2 vCPUs on 1 CPU", 4600.0, "20,356"),
];

/// The same on VMX where KVM emulates that, in Bochs: each exit is an exit and an entry of KVM, and
/// so is each access to a field of the VMCS that KVM does not shadow, some 1,860 instructions. One
/// more such access is above a limit.
const ON_KVM: [Case; 4] = [
    case("cpuid", "CPUID", 33_700.0, ""),
    case("hypercall", "hypercall that only returns", 32_500.0, ""),
    case("self-ipi", "x2APIC self-IPI with EOI", 20.0, ""),
    case("tsc-deadline", "TSC deadline, set and delivered", 33_200.0, ""),
];

/// Exits of the guest's guest of `bench all --only nested-count`, which its hypervisor serves: some
/// twentieth more than was measured.
const NESTED_CASES: [Case; 6] = [
    case("cpuid", "CPUID", 13_900.0, ""),
    case("hypercall", "hypercall that only returns", 15_400.0, ""),
    case("port-out", "port write", 17_900.0, ""),
    case("self-ipi", "x2APIC self-IPI with EOI", 30_400.0, ""),
    case("tsc-deadline", "TSC deadline, set and delivered", 30_700.0, ""),
    case("ipi-round-trip", "IPI round trip, 2 vCPUs on 1 CPU", 114_800.0, ""),
];

/// Their limits, by the reports of a guest.
pub(crate) fn limits_on_kvm(reports: &[Value]) -> Vec<Limit> {
    limits(&ON_KVM, |name| {
        let said = reports.iter().find(|report| report["case"] == name);
        said.and_then(|report| report["value"].as_f64()).unwrap_or(f64::NAN)
    })
}

fn limits(cases: &[Case], of: impl Fn(&str) -> f64) -> Vec<Limit> {
    let limit = |case: &Case| Limit::at_most(case.label, of(case.name), case.budget).beside(case.kvm);
    cases.iter().map(limit).collect()
}

/// The cases in the order of their phases in the guest, which begin with 1. The guest's own
/// instructions count, those of its interrupt handler included.
const ARM_CASES: [Case; 7] = [
    case("hvc", "HVC without effect", 265.0, ""),
    case("register-read", "read of a register that traps", 305.0, ""),
    case("mmio-read", "read of the distributor", 435.0, ""),
    case("self-sgi", "SGI to itself, with its end", 1350.0, ""),
    case("timer", "timer, set and delivered", 985.0, ""),
    case("wfi", "WFI, ended by the timer", 3050.0, ""),
    case("sgi-round-trip", "SGI round trip, 2 vCPUs on 2 CPUs", 6450.0, ""),
];
const REPETITIONS: u32 = 1000;

const FLUSH_CASES: [Case; 5] = flush_cases(700);
/// An exit and an entry are some instructions more.
const VMX_FLUSH_CASES: [Case; 5] = flush_cases(750);

const fn flush_cases(base: u32) -> [Case; 5] {
    /// A flush of everything on `targets` targets.
    const fn space(name: &'static str, label: &'static str, base: u32, targets: u32) -> Case {
        case(name, label, (base + 12 * targets) as f64, "")
    }
    [
        space("space-idle-1", "flush all of 1 vCPU that does not run", base, 1),
        space("space-idle-8", "… of 8", base, 8),
        space("space-idle-64", "… of 64", base, 64),
        space("space-idle-128", "… of 128", base, 128),
        space("space-idle-254", "… of 254", base, 254),
    ]
}

/// Counts the operations on Arm.
pub(super) fn count_phases(Runner { lab, .. }: &Runner<'_>, way: FlushWay) -> Result<Vec<Number>> {
    let cmdline = format!("test=exits count={REPETITIONS}");
    let guest = lab::bare(way.platform(), workspace::HOSTILE, cmdline, 2)?;
    let spec = lab.on_quell(&guest, 2, Clock::Instructions)?;
    let (_, phases) = lab.count(spec, |_, _| Ok(Flow::Continue))?;
    let each = |(index, case): (usize, &Case)| {
        let each = float(phases.numbered(index + 1)?.instructions) / f64::from(REPETITIONS);
        Ok(Number::new(case.name, "instructions", each))
    };
    ARM_CASES.iter().enumerate().map(each).collect()
}

/// What was measured of a case, in a way and by metric; and of that, what is held against a limit.
pub(super) type Measured<'m> = &'m dyn Fn(FlushWay, &str) -> Option<Spread>;
pub(super) type Figures<'m> = &'m dyn Fn(FlushWay, &str) -> Option<f64>;

/// What counts of the runs of a case: of instructions and of a guest's stops the worst, of other
/// times the median.
fn figure(case: &cases::Case, spread: Spread) -> f64 {
    let is_worst = !case.is_timed() || case.name.contains("migrate-wall");
    if is_worst { spread.max } else { spread.median }
}

/// The limits of a case of `bench all`.
pub(super) fn budgets_of(case: &cases::Case, measured: Measured<'_>) -> Vec<Limit> {
    let figures = |way, metric: &str| measured(way, metric).map(|spread| figure(case, spread));
    let of = |metric: &str| figures(case.ways[0], metric).unwrap_or(f64::NAN);
    let named = |limits: Vec<Limit>| limits.into_iter().map(|limit| limit.of(case.name)).collect();
    let cases = match case.name {
        "exits" => &CASES[..],
        "flush" => &FLUSH_CASES[..3],
        "flush-254" => &FLUSH_CASES[..],
        "exits@skylake" => &VMX_CASES[..],
        "flush@skylake" => &VMX_FLUSH_CASES[..3],
        "flush-254@skylake" => &VMX_FLUSH_CASES[..],
        "nested-count" => &NESTED_CASES[..],
        "flush-running" => return running::limits(&of),
        "shootdown-native" => return shootdown::limits(&figures, shootdown::cores()),
        name if name.contains("boot") => return boot::limits(case, &figures).into_iter().collect(),
        name if name.starts_with("arm-unmap-wall") => return named(vec![unmap::ratio(&of)]),
        name if name.starts_with("arm-unmap") => {
            return named(unmap::counts(&of, case.ways[0].platform()));
        }
        name if name.contains("migrate-wall") => return named(migrate::limits(&of, migrate::MS_MAX)),
        name if name.contains("migrate") => return named(migrate::limits(&of, migrate::INSTRUCTIONS_MAX)),
        "devices" => return named(devices::limits(&figures)),
        name if name.contains("isolation") => {
            return named(isolation::all_limits(&|metric| measured(case.ways[0], metric)));
        }
        "memslot" => return named(memslot::limits(&of)),
        "memslot-wall" => return named(memslot::load_limits(&of)),
        name if name.starts_with("arm-exits") => &ARM_CASES[..],
        _ => &[],
    };
    limits(cases, of)
}

#[cfg(test)]
mod tests {
    use super::super::limits::all_met;
    use super::*;
    use std::cell::RefCell;

    /// How many limits cases have together, by their names without the machine's.
    const LIMITS: &str = "boot 6, boot-count 3, devices 18, exits 33, flush 6, flush-254 10, \
        flush-running 17, isolation 480, memslot 8, memslot-wall 2, migrate 12, migrate-wall 12, \
        nested-count 6, shootdown-native 4, unmap 11, unmap-wall 3";

    /// Whatever a limit is made of, the run that counts can move it, and no other run can.
    #[test]
    fn each_figure_of_each_limit_is_of_the_run_that_counts() {
        let mut counts = BTreeMap::new();
        for case in cases::CASES.iter() {
            let asked = RefCell::new(BTreeSet::new());
            let limits = |changed: Option<&(String, String)>, spread: [f64; 3]| {
                let [min, median, max] = spread;
                let changed_to = Spread { min, median, max };
                let of = |way: FlushWay, metric: &str| {
                    let key = (format!("{way:?}"), metric.to_owned());
                    let is_changed = changed == Some(&key);
                    asked.borrow_mut().insert(key);
                    Some(if is_changed { changed_to } else { Spread { min: 10.0, median: 10.0, max: 10.0 } })
                };
                budgets_of(case, &of)
            };
            let usual = limits(None, [10.0; 3]);
            let name = case.name.split('@').next().unwrap_or_default();
            *counts.entry(name.strip_prefix("arm-").unwrap_or(name)).or_insert(0) += usual.len();
            assert!(budgets_of(case, &|_, _| None).iter().all(|limit| !limit.is_met()), "{}", case.name);
            let is_worst = case.rounds(5) == 1 || case.name.contains("migrate-wall");
            // Shares are judged by each run: see `isolation`.
            let (counting, others) = match case.name.contains("isolation") {
                true => ([99.0; 3], [10.0; 3]),
                false if is_worst => ([1.0, 5.0, 99.0], [1.0, 5.0, 10.0]),
                false => ([10.0, 99.0, 99.0], [1.0, 10.0, 99.0]),
            };
            for changed in asked.take() {
                let moved = |spread| format!("{:?}", limits(Some(&changed), spread)) != format!("{usual:?}");
                assert!(moved(counting), "{}: no limit is of {changed:?}", case.name);
                assert!(!moved(others), "{}: {changed:?} is of another run", case.name);
            }
        }
        let counts = counts.iter().filter(|(_, count)| **count != 0);
        let counts: Vec<_> = counts.map(|(name, count)| format!("{name} {count}")).collect();
        assert_eq!(counts.join(", "), LIMITS);
    }

    #[test]
    fn a_case_that_is_missing_or_over_its_budget_fails() {
        let find = |name| cases::CASES.iter().find(move |case| case.name == name).expect("is a case");
        let exits = find("exits");
        let count = |name| budgets_of(find(name), &|_, _| None).len();
        assert_eq!(["exits@skylake", "flush@skylake", "flush-254@skylake"].map(count), [6, 3, 5]);
        let is_within = |cpuid: f64, others: f64| {
            let of = |metric: &str| if metric == "cpuid" { cpuid } else { others };
            all_met(&budgets_of(exits, &|_, metric| Spread::of(&[of(metric)])))
        };
        assert!(is_within(399.0, 399.0));
        assert!(!is_within(401.0, 399.0) && !is_within(399.0, 501.0));
        assert!(!is_within(399.0, f64::NAN), "not all were reported");
    }
}
