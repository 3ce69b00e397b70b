//! Guests get what their weights say, whatever they do.

use super::Habit::{Bursts, Sleeps, Waits, Works, Yields};
use super::fair::{Limit, due};
use super::*;

/// Each guest, which can use so many per cent of a CPU, gets what is due to it within `tolerance`
/// per cent of that, or 1 per cent of a CPU.
#[track_caller]
fn check(cpus: u32, guests: Vec<(Guest, f64)>, tolerance: f64) {
    check_for(20_000 * MS, cpus, guests, tolerance);
}

/// The same, measured for so long.
#[track_caller]
fn check_for(time: u64, cpus: u32, guests: Vec<(Guest, f64)>, tolerance: f64) {
    let mut limits: Vec<_> = guests.iter().map(|(guest, _)| Limit::of(guest, cpus)).collect();
    limits.iter_mut().zip(&guests).for_each(|(limit, (_, most))| limit.most = most / 100.0);
    let entitled: Vec<_> = due(&limits).iter().map(|due| due * 100.0).collect();
    let guests: Vec<_> = guests.into_iter().map(|(guest, _)| guest).collect();
    let mut machine = Machine::after(500 * MS, cpus, &guests);
    let got = machine.measure(time);
    let is_close =
        |(got, entitled): (&f64, &f64)| (got - entitled).abs() <= (entitled * tolerance / 100.0).max(1.0);
    assert!(got.iter().zip(&entitled).all(is_close), "{got:.1?} instead of {entitled:.1?}");
}

fn works(weight: u32, vcpus: usize) -> (Guest, f64) {
    (guest(weight, vec![Works; vcpus]), 100.0 * vcpus as f64)
}

#[test]
fn vcpus_without_end_share_by_weight() {
    check(1, vec![works(100, 1), works(100, 1)], 2.0);
    check(1, vec![works(100, 1), works(300, 1)], 2.0);
    check(1, vec![works(1, 1), works(100, 1), works(10_000, 1)], 2.0);
    check(2, vec![works(100, 2), works(300, 2)], 2.0);
    check(4, vec![works(100, 3), works(200, 4), works(500, 4)], 2.0);
}

#[test]
fn the_number_of_vcpus_buys_nothing() {
    check(1, vec![works(100, 1), works(100, 32)], 2.0);
    check(2, vec![works(100, 2), works(100, 32)], 2.0);
    check(2, vec![works(300, 2), works(100, 32), works(100, 5)], 2.0);
    check(2, (0..9).map(|_| works(100, 2)).collect(), 3.0);
}

#[test]
fn sleepers_get_what_they_can_use_and_no_more_than_their_share() {
    let sleeper = |run: u64, sleep: u64| {
        (guest(100, vec![Sleeps(run, sleep)]), run as f64 * 100.0 / (run + sleep) as f64)
    };
    check(1, vec![sleeper(MS, 9 * MS), works(100, 1)], 4.0);
    check(1, vec![sleeper(9 * MS, MS), works(100, 1)], 4.0);
    check(1, vec![sleeper(500, 500), works(100, 4)], 4.0);
    check(2, vec![sleeper(300, 700), works(100, 4), works(200, 2)], 4.0);
}

#[test]
fn many_sleepers_together_get_no_more_than_one_share() {
    let sleepers = guest(100, vec![Sleeps(700, 300); 32]);
    check(2, vec![(sleepers, 200.0), works(100, 2)], 3.0);
    let tickers = guest(100, vec![Sleeps(70, 930); 64]);
    check(2, vec![(tickers, 200.0), works(100, 2)], 3.0);
}

#[test]
fn a_guest_whose_vcpus_yield_to_each_other_keeps_its_share() {
    check(1, vec![(guest(100, vec![Yields(50); 4]), 100.0), works(100, 1)], 4.0);
    check(1, vec![(guest(100, vec![Yields(50)]), 100.0), works(100, 1)], 4.0);
    check_for(5_000 * MS, 2, vec![(guest(300, vec![Yields(20); 8]), 200.0), works(100, 2)], 4.0);
}

#[test]
fn a_guest_whose_vcpus_wait_for_memory_keeps_its_share() {
    check(1, vec![(guest(100, vec![Waits(100); 3]), 100.0), works(100, 1)], 4.0);
    check(2, vec![(guest(100, vec![Waits(100); 3]), 200.0), works(300, 2)], 4.0);
}

#[test]
fn bursts_of_wakes_take_nothing_from_others() {
    let bursts = guest(100, vec![Bursts(400, 3 * MS); 16]);
    check(2, vec![(bursts, 200.0), works(100, 2)], 4.0);
    let bursts = guest(100, vec![Bursts(30, MS); 8]);
    check(1, vec![(bursts, 100.0), works(300, 2)], 4.0);
}

#[test]
fn guests_that_may_use_some_cpus_only_share_these() {
    // The first may run on one of two CPUs, and is entitled to more than half of that.
    let pinned = || guest(300, vec![Works; 2]).on([0]);
    check(2, vec![(pinned(), 100.0), works(100, 2)], 3.0);
    // Two on one CPU, beside one that runs everywhere.
    let mut machine = Machine::after(
        500 * MS,
        4,
        &[guest(100, vec![Works; 4]), guest(100, vec![Works]).on([0]), guest(300, vec![Works]).on([0])],
    );
    let got = machine.measure(20_000 * MS);
    assert!((got[2] / got[1] - 3.0).abs() < 0.1, "{got:.1?}");
    assert!(got[0] >= 299.0, "{got:.1?}");
}

#[test]
fn a_guest_that_may_run_anywhere_makes_room_for_one_that_may_not() {
    let pinned = || (guest(100, vec![Works]).on([1]), 100.0);
    // It is held by its cap whenever the turn of the pinned one ends.
    let capped = |cap| (guest(100, vec![Works]).capped(cap), f64::from(cap));
    check(2, vec![pinned(), capped(50), works(100, 1)], 3.0);
    check(2, vec![pinned(), capped(20), works(100, 1)], 3.0);
    check(2, vec![pinned(), works(100, 1), works(100, 1)], 3.0);
    check(2, vec![pinned(), capped(50), works(300, 1)], 3.0);
}

#[test]
fn a_guest_that_has_all_of_its_set_changes_nothing_for_the_others() {
    for weight in [1, 100, 10_000] {
        let pinned = guest(weight, vec![Works; 2]).on([0]);
        let both = [guest(100, vec![Works; 2]), guest(10, vec![Works; 2])].map(|guest| guest.on([1]));
        let [middle, light] = both;
        let mut machine = Machine::after(1000 * MS, 2, &[pinned, middle, light]);
        let got = machine.measure(20_000 * MS);
        let is_close = |(got, due): (&f64, f64)| (got - due).abs() <= due / 20.0;
        assert!(got.iter().zip([100.0, 90.9, 9.1]).all(is_close), "{weight}: {got:.1?}");
    }
}

#[test]
fn nobody_starves() {
    let guests = [
        guest(100, vec![Works; 2]),
        guest(300, vec![Yields(50); 4]),
        guest(100, vec![Sleeps(70, 930); 16]),
        guest(100, vec![Bursts(400, 3 * MS); 8]),
        guest(100, vec![Waits(100); 3]),
    ];
    let machine = Machine::after(10_000 * MS, 2, &guests);
    for group in 0..5 {
        // A rotation of all vCPUs, with room.
        let bound = 33 * SLICE * 2;
        assert!(machine.waited_max(group) < bound, "guest {group}: {}", machine.waited_max(group));
    }
}

/// A vCPU that waits on the CPU of a guest with as strong a claim gets nothing there while another
/// vCPU of its own guest, alone on another CPU, uses up its guest's share.
#[test]
fn no_vcpu_starves_while_another_one_of_its_guest_has_a_cpu_for_itself() {
    let two = [[1, 2], [2, 1], [1, 3], [2, 3]].map(|vcpus| (2, vcpus));
    let three = [[1, 3], [2, 3], [2, 5]].map(|vcpus| (3, vcpus));
    let four = [[1, 4], [2, 5], [5, 3], [3, 5], [6, 6]].map(|vcpus| (4, vcpus));
    for (cpus, vcpus) in two.into_iter().chain(three).chain(four).chain([(8, [3, 9])]) {
        for pause in [MS, 7 * MS, 12 * MS] {
            // One guest's vCPUs are parked and come back, as for a reset: they end up anywhere.
            let resets = (0..vcpus[0]).map(|vcpu| Sleeps(400 * MS + vcpu * pause, 3 * pause)).collect();
            let mut machine =
                Machine::new(cpus, &[guest(100, resets), guest(100, vec![Works; vcpus[1] as usize])]);
            machine.run(20_000 * MS);
            let waited = machine.waited_max(1);
            assert!(
                waited < 8 * SLICE * vcpus[1],
                "{cpus} CPUs, {vcpus:?} vCPUs, {pause}: one waited for {waited}"
            );
        }
    }
}

#[test]
fn a_guest_that_wakes_runs_within_a_slice() {
    let guests = [guest(100, vec![Works; 32]), guest(100, vec![Sleeps(200, 20 * MS)])];
    let machine = Machine::after(10_000 * MS, 1, &guests);
    assert!(machine.waited_max(1) <= SLICE / 4, "{}", machine.waited_max(1));
}

#[test]
fn a_turn_beside_another_guest_is_shorter_than_a_slice() {
    let machine = Machine::after(10_000 * MS, 1, &[guest(100, vec![Works]), guest(100, vec![Works])]);
    for group in 0..2 {
        let waited = machine.waited_max(group);
        assert!(waited <= SLICE - SLICE / 8, "guest {group} waited for {waited}");
    }
}

/// What the guests have on one CPU must not make the same one next on the other CPU, twice in a
/// row, again and again.
#[test]
fn turns_that_end_at_different_times_do_not_get_into_step() {
    for (vcpus, habit) in
        [(1, Works), (2, Works), (3, Works), (4, Works), (8, Works), (4, Waits(100)), (4, Yields(50))]
    {
        let mut machine =
            Machine::after(500 * MS, 2, &[guest(100, vec![habit; vcpus]), guest(100, vec![Works; 2])]);
        machine.vcpus.iter_mut().for_each(|vcpu| vcpu.waits.clear());
        machine.run(10_000 * MS);
        let waited = machine.waited_max(1);
        // Seven eighths, and a turn that ends when the vCPU waits.
        let bound = SLICE - SLICE / 8 + MS / 10;
        assert!(waited <= bound, "beside {vcpus} vCPUs ({habit:?}), one waited for {waited}");
    }
}

#[test]
fn a_long_sleep_or_a_long_time_alone_earns_and_costs_little() {
    // Both have a vCPU for each CPU; one sleeps for half a minute while the other is alone.
    let sleeper = guest(100, vec![Sleeps(1000 * MS, 30_000 * MS); 2]);
    let mut machine = Machine::after(10_000 * MS, 2, &[guest(100, vec![Works; 2]), sleeper]);
    while machine.vcpus[2].is_asleep || machine.vcpus[3].is_asleep {
        machine.run(MS);
    }
    let got = machine.measure(200 * MS);
    assert!((got[0] - 100.0).abs() < 10.0 && (got[1] - 100.0).abs() < 10.0, "{got:.1?}");
}
