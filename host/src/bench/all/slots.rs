//! The cases that remove memory from a guest and log stores to it, and the operator who asks Quell
//! for it.
//!
//! On Quell the bare guest reports what is to be done; the operator makes the request and types a
//! byte when it is done. On KVM our own monitor, kvmslots, does it itself. Both machines have one
//! CPU and count instructions: kvmslots reports nanoseconds, and an instruction is one.

use super::cases::{Case, Comparison, INSTRUCTIONS, Metric, TWO_WAYS, Work, compare};
use super::way::{HYPERCALL, KVM_HYPERV};
use crate::bench::lab::BARE_MEMORY as OWN;
use crate::bench::load::all_dirty;
use crate::machine::control::Control;
use crate::machine::process::Machine;
use crate::size::MIB;
use anyhow::{Context, Result, ensure};
use hostlink::ctl::{LogWay, Request};
use serde_json::Value;
use std::time::Duration;

/// The memory that is added to Quell's guest, and its address.
const AT: u64 = 1 << 30;
const SIZE: u64 = 1 << 30;
/// The longest time for a request: where other programs keep the computer busy, zeroing the memory
/// takes long.
const PATIENCE: Duration = Duration::from_secs(600);
/// The sum of all stops of a guest from which memory is removed.
const STOPPED: &str = "stopped";
/// The most that a removal may take, relative to KVM.
const REMOVAL_MAX: f64 = 0.1;

/// Slots of a guest that does nothing but use them, in pages of 4 KiB.
pub(crate) struct Slots {
    /// The command line of the bare guest on Quell, and its memory without the added memory.
    pub(crate) probe: &'static str,
    pub(crate) memory: u64,
    /// Memory that is added while it runs.
    pub(crate) added: u64,
    /// The arguments of kvmslots, and the memory of its guest.
    pub(crate) monitor: &'static str,
    pub(crate) monitor_memory: u64,
    /// Where kvmslots reports the metrics. The bare guest reports the same ones by name.
    pub(crate) metrics: &'static [Metric],
}

/// A step of kvmslots' only round.
const fn step(name: &'static str, pointer: &'static str) -> Metric {
    Metric { name, unit: INSTRUCTIONS, event: "round", of: None, pointer, factor: 1.0 }
}

const fn relative(metric: &'static str, target: Option<f64>) -> Comparison {
    compare(metric, HYPERCALL, &[KVM_HYPERV], target)
}

const fn case(
    name: &'static str,
    about: &'static str,
    slots: Slots,
    comparisons: &'static [Comparison],
) -> Case {
    Case { name, about, work: Work::Slots(slots), ways: TWO_WAYS, only_long: false, comparisons }
}

/// A GiB is removed; for how long does the guest not run?
///
/// On KVM the vCPU's own thread deletes the slot, so there is one stop: from before that call until
/// the guest's next instruction exits. Quell removes the memory in steps, and the guest runs in
/// between: it reads its clock all the time from before the request until after the answer.
/// `stopped` is the sum of all times in which it did not run, `longest stop` the longest one. The
/// sum contains everything that Quell does: it reads the request, makes all steps, frees tables and
/// memory, and answers, with the exits and entries around all that. The target is for the sum, so
/// that nothing is gained by making steps.
pub(super) const REMOVE: Case = case(
    "remove-1G",
    "a GiB in pages of 4 KiB is removed: how long the guest stands still",
    Slots {
        probe: "bench=remove",
        memory: OWN,
        added: SIZE,
        monitor: "--mib 1024 --rounds 1 --part delete",
        monitor_memory: SIZE,
        metrics: &[
            step("fault-in", "/delete.fault_in"),
            step(STOPPED, "/delete.until_on"),
            step("longest stop", "/delete.until_on"),
        ],
    },
    &[relative(STOPPED, Some(REMOVAL_MAX)), relative("longest stop", None), relative("fault-in", None)],
);

/// Stores to a GiB are logged: what it takes to begin, to store to each page, and to fetch the log,
/// which names each page. To begin and to fetch is on KVM a call of the vCPU's own thread; on Quell
/// it is the sum of the guest's stops, as above.
pub(super) const LOG: Case = case(
    "log-1G",
    "stores to a GiB in pages of 4 KiB are logged: to begin, to store, and to fetch the log",
    Slots {
        probe: "bench=log",
        memory: OWN,
        added: SIZE,
        monitor: "--mib 1024 --rounds 1 --part log",
        monitor_memory: SIZE,
        metrics: &[
            step("fault-in", "/log.fault_in"),
            step("enable", "/log.enable"),
            step("write", "/log.write"),
            step("fetch", "/log.fetch"),
        ],
    },
    &[relative("enable", None), relative("write", None), relative("fetch", None)],
);

/// A slot of 64 pages is removed while other memory is in use; then the guest stores to each page
/// of that memory once more.
///
/// On Quell the slot is the ROM of a PCI device, which the guest itself switches off: from the
/// write to its register until the next instruction. On KVM it is from before the call that deletes
/// the slot until the guest's next exit, without the exit by which a guest would ask for that.
const fn beside(
    name: &'static str,
    about: &'static str,
    probe: &'static str,
    monitor: &'static str,
    mib: u64,
) -> Case {
    let (memory, monitor_memory) = (OWN + mib * MIB, (mib + 1) * MIB);
    let slots = Slots { probe, memory, added: 0, monitor, monitor_memory, metrics: BESIDE_METRICS };
    case(name, about, slots, BESIDE_RATIOS)
}

const BESIDE_METRICS: &[Metric] =
    &[step("deletion", "/delete.until_on"), step("touch again", "/delete.again")];
const BESIDE_RATIOS: &[Comparison] = &[relative("deletion", None), relative("touch again", None)];

/// The cost of a removal against the memory in use.
pub(super) const BESIDE_64M: Case = beside(
    "remove-beside-64M",
    "a slot of 64 pages is removed beside 64 MiB in use",
    "bench=memslot-1 count=64",
    "--pages 64 --elsewhere 64 --rounds 1 --part delete",
    64,
);
pub(super) const BESIDE_256M: Case = beside(
    "remove-beside-256M",
    "the same beside 256 MiB",
    "bench=memslot-1 count=256",
    "--pages 64 --elsewhere 256 --rounds 1 --part delete",
    256,
);
pub(super) const BESIDE_1G: Case = beside(
    "remove-beside-1G",
    "the same beside 1 GiB",
    "bench=memslot-1 count=1024",
    "--pages 64 --elsewhere 1024 --rounds 1 --part delete",
    1024,
);
/// KVM takes more than a minute for it.
pub(super) const BESIDE_2G: Case = Case {
    only_long: true,
    ..beside(
        "remove-beside-2G",
        "the same beside 2 GiB",
        "bench=memslot-1 count=2048",
        "--pages 64 --elsewhere 2048 --rounds 1 --part delete",
        2048,
    )
};

/// A request that Quell's bare guest waits for, by the event of its report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Add,
    Remove,
    LogStart,
    LogFetch,
}

impl Order {
    fn of(report: &Value) -> Option<Self> {
        match report["event"].as_str()? {
            "add" => Some(Self::Add),
            "remove" => Some(Self::Remove),
            "log-start" => Some(Self::LogStart),
            "log-fetch" => Some(Self::LogFetch),
            _ => None,
        }
    }
}

/// Makes the requests that Quell's bare guest waits for.
#[derive(Default)]
pub(super) struct Operator {
    slot: Option<u16>,
    /// The instructions of all steps of the removal, as the hypervisor counts them.
    worked: Option<u64>,
}

impl Operator {
    /// Does what a report of the guest demands, if anything, and tells the guest.
    pub(super) fn take(&mut self, report: &Value, machine: &mut Machine) -> Result<()> {
        let Some(order) = Order::of(report) else { return self.check(report) };
        let mut control = machine.control()?.with_patience(PATIENCE);
        self.ask(order, &mut control).with_context(|| format!("{order:?}"))?;
        machine.type_text("\n")
    }

    /// While the hypervisor works the guest does not run, so its stops are at least as long.
    fn check(&self, report: &Value) -> Result<()> {
        let (Some(worked), Some(stopped)) = (self.worked, report["value"].as_u64()) else { return Ok(()) };
        ensure!(
            report["case"] != STOPPED || stopped >= worked,
            "the guest noticed stops of {stopped} instructions, and the hypervisor worked for {worked}"
        );
        Ok(())
    }

    fn ask(&mut self, order: Order, control: &mut Control) -> Result<()> {
        let slot = || self.slot.context("the guest has not asked for memory before");
        match order {
            Order::Add => self.slot = Some(control.add(AT, SIZE)?),
            Order::Remove => {
                self.worked = Some(control.delete(slot()?)?.ticks);
            }
            Order::LogStart => {
                control.ask(&Request::LogStart { slot: slot()?, way: LogWay::DirtyBits })?;
            }
            Order::LogFetch => all_dirty(control, slot()?, SIZE)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const CASES: [&Case; 6] = [&REMOVE, &LOG, &BESIDE_64M, &BESIDE_256M, &BESIDE_1G, &BESIDE_2G];
    /// What the bare guest does.
    const REMOVES: &str = include_str!("../../../../guests/probe/src/bench/slots.rs");
    const BESIDES: &str = include_str!("../../../../guests/probe/src/bench/memslot.rs");

    fn slots(case: &Case) -> &Slots {
        match &case.work {
            Work::Slots(slots) => slots,
            _ => panic!("{} is another kind of case", case.name),
        }
    }

    /// The number after an option of kvmslots, or after a word of the bare guest's command line.
    fn number(line: &str, name: &str) -> Option<u64> {
        let words = line.split([' ', '=']).skip_while(|word| *word != name);
        words.skip(1).map(|value| value.parse().expect("is a number")).next()
    }

    #[test]
    fn both_sides_use_as_much_memory() {
        for case in CASES {
            let Slots { probe, memory, added, monitor, monitor_memory, .. } = slots(case);
            assert_eq!(number(monitor, "--rounds"), Some(1), "all rounds report the same names");
            let elsewhere = number(monitor, "--elsewhere");
            assert_eq!(number(probe, "count"), elsewhere, "{}", case.name);
            let slot = number(monitor, "--mib").map_or(0, |mib| mib * MIB);
            assert_eq!(slot, *added, "{}", case.name);
            let used = slot + elsewhere.unwrap_or(0) * MIB;
            assert!(*monitor_memory >= used && memory + added >= used + OWN, "{}", case.name);
        }
    }

    #[test]
    fn the_bare_guest_reports_each_metric_and_waits_for_requests_that_are_known() {
        for case in CASES {
            let guest = if slots(case).added == 0 { BESIDES } else { REMOVES };
            for Metric { name, .. } in slots(case).metrics {
                assert!(guest.contains(&format!("measured(\"{name}\"")), "{}: {name}", case.name);
            }
        }
        let waits = ["during(\"", "event(\""].map(|call| REMOVES.split(call).skip(1)).into_iter().flatten();
        let waits = waits.filter_map(|rest| rest.split('"').next());
        let orders: Vec<_> = waits.map(|event| Order::of(&json!({ "event": event }))).collect();
        let all = [Order::Remove, Order::LogStart, Order::LogFetch, Order::Add].map(Some);
        assert_eq!(orders, all);
        assert_eq!(Order::of(&json!({ "event": "done" })), None);
        assert_eq!(Order::of(&json!({ "case": "write", "value": 1 })), None);
    }
    #[test]
    fn stops_that_a_guest_has_missed_are_noticed() {
        let operator = Operator { slot: Some(1), worked: Some(390_193) };
        let checked = |case: &str, value: u64| operator.check(&json!({ "case": case, "value": value }));
        checked(STOPPED, 390_193).expect("is possible");
        checked("longest stop", 1).expect("is another number");
        assert!(checked(STOPPED, 366_260).is_err_and(|why| why.to_string().contains("366260")));
        Operator::default().check(&json!({ "case": STOPPED, "value": 0 })).expect("nothing was removed");
    }
}
