//! Caps hold in the long run, and a guest that is held is let go without anybody's help.

use super::Habit::{Sleeps, Works, Yields};
use super::random::Random;
use super::*;

#[track_caller]
fn check(cpus: u32, guests: &[Guest], expected: &[f64]) {
    let mut machine = Machine::after(500 * MS, cpus, guests);
    let got = machine.measure(20_000 * MS);
    let is_close = |(got, expected): (&f64, &f64)| (got - expected).abs() <= expected / 100.0;
    assert!(got.iter().zip(expected).all(is_close), "{got:.2?} instead of {expected:.1?}");
}

#[test]
fn a_capped_guest_alone_is_held_and_let_go() {
    check(1, &[guest(100, vec![Works]).capped(25)], &[25.0]);
    check(1, &[guest(100, vec![Works; 3]).capped(1)], &[1.0]);
    check(2, &[guest(100, vec![Works; 2]).capped(150)], &[150.0]);
    check(4, &[guest(100, vec![Works; 8]).capped(100)], &[100.0]);
    check(4, &[guest(100, vec![Works; 4]).capped(333)], &[333.0]);
    check(2, &[guest(100, vec![Yields(50); 4]).capped(30)], &[30.0]);
}

#[test]
fn a_cap_that_is_not_reached_costs_nothing() {
    check(1, &[guest(100, vec![Works]).capped(100)], &[100.0]);
    check(2, &[guest(100, vec![Works; 2]).capped(200)], &[200.0]);
    check(2, &[guest(100, vec![Sleeps(MS, 3 * MS)]).capped(30)], &[25.0]);
    check(2, &[guest(100, vec![Works]).capped(100), guest(100, vec![Works])], &[100.0, 100.0]);
}

#[test]
fn what_a_cap_leaves_goes_to_the_others() {
    check(1, &[guest(100, vec![Works]).capped(20), guest(100, vec![Works])], &[20.0, 80.0]);
    check(2, &[guest(900, vec![Works; 2]).capped(50), guest(100, vec![Works; 2])], &[50.0, 150.0]);
    check(
        2,
        &[
            guest(100, vec![Works; 4]).capped(10),
            guest(100, vec![Works; 4]).capped(40),
            guest(100, vec![Works; 2]),
        ],
        &[10.0, 40.0, 150.0],
    );
    check(2, &[guest(100, vec![Works; 2]).capped(30), guest(100, vec![Works; 2]).capped(70)], &[30.0, 70.0]);
}

#[test]
fn a_guest_that_was_held_is_not_owed_the_time() {
    // Held for most of the time; beside it a guest of the same weight that sleeps now and then.
    let guests = [guest(100, vec![Works]).capped(40), guest(100, vec![Sleeps(4 * MS, 2 * MS)])];
    let machine = Machine::after(10_000 * MS, 1, &guests);
    assert!(machine.waited_max(1) <= 2 * SLICE, "{}", machine.waited_max(1));
}

/// What a guest with a cap did not use while it slept is not saved up beyond the burst. What it has
/// beside that is because a turn is not ended at the very tick, and because other CPUs look at the
/// account when their own slices are over.
#[test]
fn no_window_has_more_than_the_cap_and_the_burst_whoever_sleeps() {
    for seed in 1..25 {
        let mut random = Random::new(seed);
        let cpus = 1 + random.below(4) as u32;
        let mut guests: Vec<_> = (0..1 + random.below(3)).map(|_| random.any(cpus)).collect();
        let sleeps = |_| Sleeps(1 + random.below(200 * MS), 1 + random.below(600 * MS));
        let sleepers = (0..1 + seed % 4).map(sleeps).collect();
        guests.push(guest(random.weight(), sleepers).capped(5 + random.below(150) as u32));
        let machine = Machine::after(3000 * MS, cpus, &guests);
        for (group, windows) in machine.windows.iter().enumerate() {
            let burst = 2 * SLICE * u64::from(windows.cap.unwrap_or(0));
            let late = 2 * SLICE * u64::from(cpus - 1) + SLICE / 8;
            let is_kept = windows.most <= (burst + 100 * late).cast_signed();
            assert!(is_kept, "seed {seed}, {cpus} CPUs, guest {group}: {windows:?}");
        }
    }
}
