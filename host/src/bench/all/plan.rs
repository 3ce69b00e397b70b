//! The order of all runs, and how long they take.

use super::cases::{Case, Work};
use super::record::{Record, Run};
use super::way::Way;
use crate::size::GIB;
use std::time::Duration;

#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) case: &'static Case,
    pub(crate) way: Way,
    /// Counted from 1.
    pub(crate) round: u32,
}

/// All runs: in each round all cases, and of each case all ways one after the other, in reverse
/// order every second time. So a change in the load of this computer affects all ways alike.
pub(crate) fn plan(cases: &[&'static Case], runs: u32, with_peer: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    for round in 1..=runs {
        for case in cases.iter().filter(|case| round <= case.rounds(runs)) {
            let mut ways: Vec<_> = case.ways(with_peer).collect();
            if round.is_multiple_of(2) {
                ways.reverse();
            }
            steps.extend(ways.into_iter().map(|way| Step { case, way, round }));
        }
    }
    steps
}

/// Estimates the duration of these steps: that of runs of the same kind or, if there were none yet,
/// the usual duration.
pub(crate) fn remaining(steps: &[Step], record: &Record) -> Duration {
    let seconds = steps.iter().map(|step| {
        let is_same = |run: &&Run| run.is_of(step.case, step.way);
        let (sum, count) = record
            .runs
            .iter()
            .filter(is_same)
            .fold((0.0, 0.0), |(sum, count), run| (sum + run.wall, count + 1.0));
        if count > 0.0 { sum / count } else { usual(&step.case.work, step.way) }
    });
    Duration::from_secs_f64(seconds.sum())
}

/// The seconds that a run takes on two otherwise idle cores.
fn usual(work: &Work, way: Way) -> f64 {
    let (quell, kvm) = match work {
        Work::Linux(linux) if linux.vcpus > 16 => (20.0, 200.0),
        Work::Linux(linux) => (3.0 + 0.1 * f64::from(linux.vcpus), 10.0 + f64::from(linux.vcpus)),
        Work::Probe { vcpus, .. } => (2.0, 10.0 + 2.0 * f64::from(*vcpus)),
        Work::Slots(slots) => {
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let gib = slots.monitor_memory() as f64 / GIB as f64;
            (2.0 + 7.0 * gib, 8.0 + 25.0 * gib)
        }
        Work::Tlbcheck { .. } => (4.0, 27.0),
        Work::Removal => (18.0, 65.0),
    };
    if way.is_peer() { kvm } else { quell }
}

#[cfg(test)]
mod tests {
    use super::super::cases::CASES;
    use super::super::record::{Settings, tests::run};
    use super::super::way::{HYPERCALL, KVM_HYPERV, KVM_PARAVIRTUAL};
    use super::*;
    use std::collections::BTreeMap;

    fn case(name: &str) -> &'static Case {
        CASES.iter().find(|case| case.name == name).expect("is a case")
    }

    #[test]
    fn sides_take_turns_and_every_second_round_is_backwards() {
        let cases = [case("boot"), case("thrash-2:2")];
        let steps = plan(&cases, 2, true);
        let rounds: Vec<_> = steps.iter().map(|step| step.round).collect();
        assert_eq!(rounds, [[1; 8], [2; 8]].concat());
        let boots: Vec<_> = steps.iter().filter(|s| s.case.name == "boot").map(|step| step.way).collect();
        let there = [HYPERCALL, KVM_HYPERV, KVM_PARAVIRTUAL];
        assert_eq!(boots[..3], there);
        assert_eq!(boots[3..], [there[2], there[1], there[0]]);
        let thrash: Vec<_> = steps[3..8].iter().map(|step| step.way).collect();
        assert_eq!(thrash, Way::ALL);
    }

    #[test]
    fn without_a_peer_quell_runs_alone_and_counts_run_once() {
        let steps = plan(&[case("boot"), case("exits")], 3, false);
        assert!(steps.iter().all(|step| !step.way.is_peer()));
        let names: Vec<_> = steps.iter().map(|step| step.case.name).collect();
        assert_eq!(names, ["boot", "exits", "boot", "boot"]);
    }

    #[test]
    fn what_took_long_is_going_to_take_as_long() {
        let steps = plan(&[case("boot")], 2, false);
        let mut record = Record::new(BTreeMap::new(), BTreeMap::new(), Settings { runs: 2, rounds: 1 });
        assert!(remaining(&steps, &record) > Duration::from_secs(5));
        record.add(run(case("boot"), HYPERCALL, 1, Some(("userspace", 1.0))));
        assert_eq!(remaining(&steps[1..], &record), Duration::from_secs(2), "as the first one");
        assert_eq!(remaining(&[], &record), Duration::ZERO);
    }
}
