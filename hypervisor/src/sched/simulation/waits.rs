//! No vCPU that could run waits for ever.

use super::Habit::{Bursts, Waits, Works, Yields};
use super::random::{Random, seeds};
use super::*;

/// The longest that a vCPU waits for a CPU, whatever its guest and the others have and do, unless
/// its guest's cap holds it.
const WAIT_MAX: u64 = 32 * SLICE;

fn waited_too_long(machine: &Machine, guests: &[Guest]) -> Option<String> {
    let bound = WAIT_MAX + 2 * machine.vcpus.len() as u64 * SLICE;
    let waited = (0..).zip(guests).filter(|(_, guest)| guest.share.cap.is_none());
    let waited = waited.map(|(group, _)| machine.waited_max(group)).max()?;
    (waited > bound).then(|| format!("{} slices of {}", waited / SLICE, bound / SLICE))
}

/// A guest that waits for memory often, one whose vCPUs yield all the time, and one that has more
/// than its share by one of its vCPUs.
#[test]
fn a_vcpu_runs_although_another_one_of_its_guest_has_more_than_its_share() {
    let guests =
        [guest(1000, vec![Waits(950)]), guest(100, vec![Yields(57); 22]), guest(100, vec![Works; 2])];
    let machine = Machine::after(40_000 * MS, 2, &guests);
    assert_eq!(waited_too_long(&machine, &guests), None);
}

/// A vCPU that is last in each queue is the one that is too many there, each time.
#[test]
fn a_vcpu_that_is_sent_on_again_and_again_runs() {
    let guests = [
        guest(800, vec![Works; 4]),
        guest(8000, vec![Bursts(528, 4032); 4]),
        guest(1000, vec![Works]).on([2]),
    ];
    let machine = Machine::after(10_000 * MS, 5, &guests);
    assert_eq!(waited_too_long(&machine, &guests), None);
}

#[test]
fn no_vcpu_waits_for_ever_whatever_guests_there_are() {
    let mut wrong = Vec::new();
    for seed in seeds(8) {
        let mut random = Random::new(seed);
        let cpus = 1 + random.below(6) as u32;
        let guests: Vec<_> = (0..1 + random.below(5)).map(|_| random.any(cpus)).collect();
        let machine = Machine::after(10_000 * MS, cpus, &guests);
        if let Some(waited) = waited_too_long(&machine, &guests) {
            wrong.push(format!("seed {seed}, {cpus} CPUs: {waited}"));
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// One guest polls, and another one's vCPUs wait for each other: a turn is over as soon as it has
/// begun. The one that waits beside the guest that polls must not wait there each time.
#[test]
fn a_vcpu_that_spins_has_more_than_a_moment_beside_a_guest_that_polls() {
    for yields in [10, 50] {
        for habit in [Works, Yields(yields)] {
            let spins = vec![Yields(yields), Yields(yields), habit, Yields(yields)];
            let machine = Machine::after(1000 * MS, 2, &[guest(100, spins), guest(100, vec![Yields(10)])]);
            let had: Vec<_> = machine.vcpus.iter().map(|vcpu| (vcpu.had, vcpu.waits.len())).collect();
            let turns = |vcpu: &Vcpu| vcpu.waits.len();
            let least = machine.vcpus.iter().filter(|vcpu| !matches!(vcpu.habit, Works)).map(turns).min();
            assert!(least >= Some(100), "{habit:?}, yields after {yields}: {had:?}");
        }
    }
}
