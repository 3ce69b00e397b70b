//! The cases that remove memory from a guest and log stores to it, and the operator who asks Quell
//! for it.
//!
//! On Quell the bare guest reports what is to be done; the operator makes the request and types a
//! byte when it is done. On KVM our own monitor, kvmslots, does it itself. Both machines have one
//! CPU and count instructions: kvmslots reports nanoseconds, and an instruction is one.

use super::cases::{Case, Comparison, INSTRUCTIONS, Metric, TWO_WAYS, Work, case, relative};
use crate::bench::lab::BARE_MEMORY as OWN;
use crate::bench::load::all_dirty;
use crate::machine::control::Control;
use crate::prelude::*;
use hostlink::ctl::{LogWay, Request};

/// The memory that is added to Quell's guest, and its address.
const AT: u64 = 1 << 30;
const SIZE: u64 = 1 << 30;
const PAGES: u64 = 64;
/// The longest time for a request: on a busy computer, zeroing the memory takes long.
const PATIENCE: Duration = Duration::from_secs(600);
/// The sum of all stops of a guest from which memory is removed.
const STOPPED: &str = "stopped";
/// The most that a removal may take, relative to KVM.
const REMOVAL_MAX: f64 = 0.1;

/// Slots of a guest that does nothing but use them, in pages of 4 KiB: a GiB that is added while it
/// runs, or a small one beside other memory.
#[derive(Clone)]
pub(crate) struct Slots {
    /// The benchmark of the bare guest on Quell, and that of kvmslots.
    probe: &'static str,
    monitor: &'static str,
    /// MiB of other memory in use.
    beside: Option<u64>,
    /// Where kvmslots reports the metrics. The bare guest reports the same ones by name.
    pub(crate) metrics: &'static [Metric],
}

impl Slots {
    pub(super) fn cmdline(&self) -> String {
        let count = self.beside.map_or_else(String::new, |mib| format!(" count={mib}"));
        format!("bench={}{count}", self.probe)
    }

    /// The arguments of kvmslots: all rounds report the same names, so there is one.
    pub(super) fn arguments(&self) -> String {
        let size = self.beside.map_or_else(
            || format!("--mib {}", SIZE / MIB),
            |mib| format!("--pages {PAGES} --elsewhere {mib}"),
        );
        format!("{size} --rounds 1 --part {}", self.monitor)
    }

    pub(super) fn memory(&self) -> u64 {
        OWN + self.beside.unwrap_or(0) * MIB
    }

    /// Memory that is added to it.
    pub(super) fn added(&self) -> u64 {
        if self.beside.is_none() { SIZE } else { 0 }
    }

    pub(super) fn monitor_memory(&self) -> u64 {
        self.beside.map_or(SIZE, |mib| (mib + 1) * MIB)
    }
}

const fn step(name: &'static str, pointer: &'static str) -> Metric {
    Metric { name, unit: INSTRUCTIONS, event: "round", of: None, pointer, factor: 1.0 }
}

const fn of_slots(
    name: &'static str,
    about: &'static str,
    slots: Slots,
    ratios: &'static [Comparison],
) -> Case {
    case(name, about, Work::Slots(slots), TWO_WAYS, ratios)
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
pub(super) const REMOVE: Case = of_slots(
    "remove-1G",
    "a GiB in pages of 4 KiB is removed: how long the guest stands still",
    Slots {
        probe: "remove",
        monitor: "delete",
        beside: None,
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
pub(super) const LOG: Case = of_slots(
    "log-1G",
    "stores to a GiB in pages of 4 KiB are logged: to begin, to store, and to fetch the log",
    Slots {
        probe: "log",
        monitor: "log",
        beside: None,
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
const fn beside(name: &'static str, about: &'static str, mib: u64) -> Case {
    let slots = Slots { probe: "memslot-1", monitor: "delete", beside: Some(mib), metrics: BESIDE_STEPS };
    of_slots(name, about, slots, BESIDE_RATIOS)
}

const BESIDE_STEPS: &[Metric] = &[step("deletion", "/delete.until_on"), step("touch again", "/delete.again")];
const BESIDE_RATIOS: &[Comparison] = &[relative("deletion", None), relative("touch again", None)];

/// The cost of a removal against the memory in use.
pub(super) const BESIDE_64M: Case =
    beside("remove-beside-64M", "a slot of 64 pages is removed beside 64 MiB in use", 64);
pub(super) const BESIDE_256M: Case = beside("remove-beside-256M", "the same beside 256 MiB", 256);
pub(super) const BESIDE_1G: Case = beside("remove-beside-1G", "the same beside 1 GiB", 1024);
/// KVM takes more than a minute for it.
pub(super) const BESIDE_2G: Case = beside("remove-beside-2G", "the same beside 2 GiB", 2048).only_long();

/// The requests that Quell's bare guest waits for, by the events of its reports.
const ORDERS: [&str; 4] = [ADD, REMOVE_IT, LOG_START, LOG_FETCH];
const ADD: &str = "add";
const REMOVE_IT: &str = "remove";
const LOG_START: &str = "log-start";
const LOG_FETCH: &str = "log-fetch";

#[derive(Default)]
pub(super) struct Operator {
    slot: Option<u16>,
    /// The instructions of all steps of the removal, as the hypervisor counts them.
    worked: Option<u64>,
}

impl Operator {
    pub(super) fn take(&mut self, report: &Value, machine: &mut Machine) -> Result<()> {
        let Some(order) = report["event"].as_str().filter(|event| ORDERS.contains(event)) else {
            return self.check(report);
        };
        let mut control = machine.control()?.with_patience(PATIENCE);
        self.ask(order, &mut control).with_context(|| order.to_owned())?;
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

    fn ask(&mut self, order: &str, control: &mut Control) -> Result<()> {
        let slot = || self.slot.context("the guest has not asked for memory before");
        match order {
            ADD => self.slot = Some(control.add(AT, SIZE)?),
            REMOVE_IT => self.worked = Some(control.delete(slot()?)?.ticks),
            LOG_START => {
                control.ask(&Request::LogStart { slot: slot()?, way: LogWay::DirtyBits })?;
            }
            _ => all_dirty(control, slot()?, SIZE)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn both_sides_use_as_much_memory() {
        for case in CASES {
            let slots = slots(case);
            let used = slots.added() + slots.beside.unwrap_or(0) * MIB;
            let has = slots.memory() + slots.added();
            assert!(slots.monitor_memory() >= used && has >= used + OWN, "{}", case.name);
        }
        let [remove, beside] = [&REMOVE, &BESIDE_2G].map(slots);
        assert_eq!(remove.cmdline() + &remove.arguments(), "bench=remove--mib 1024 --rounds 1 --part delete");
        assert_eq!(
            beside.cmdline() + &beside.arguments(),
            "bench=memslot-1 count=2048--pages 64 --elsewhere 2048 --rounds 1 --part delete"
        );
    }

    #[test]
    fn the_bare_guest_reports_each_metric_and_waits_for_requests_that_are_known() {
        for case in CASES {
            let guest = if slots(case).added() == 0 { BESIDES } else { REMOVES };
            for Metric { name, .. } in slots(case).metrics {
                assert!(guest.contains(&format!("measured(\"{name}\"")), "{}: {name}", case.name);
            }
        }
        let waits = ["during(\"", "event(\""].map(|call| REMOVES.split(call).skip(1)).into_iter().flatten();
        let orders: Vec<_> = waits.filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(orders, [REMOVE_IT, LOG_START, LOG_FETCH, ADD]);
        let operator = Operator::default();
        operator.check(&json!({ "event": "done" })).expect("is no order");
        operator.check(&json!({ "case": "write", "value": 1 })).expect("is no order");
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
