//! Resets of the guest.

use core::sync::atomic::Ordering;

use super::Op::*;
use super::*;
use crate::vm::mock::End;
use crate::vm::mock::processor::{OFF, board, counted, create_several};
use hostlink::counters::Counter;
use hostlink::exit::ExitCode;

/// Runs programs, the first of which resets the machine three times.
fn resets_of(seed: u64, cpus: usize, first: &[Op], others: &[&[Op]]) {
    let programs: Vec<&[Op]> = core::iter::once(first).chain(others.iter().copied()).collect();
    let config: &'static str = String::leak(format!("vcpus={}\nmemory=4194304", programs.len()));
    let board = run_to(OFF, cpus, config, seed, &programs);
    assert_eq!(board.machine().guest.resets.load(Ordering::Relaxed), 3, "seed {seed}");
    let counts = [Counter::Resets, Counter::ResetRequests, Counter::KickMissing, Counter::KickLate];
    assert_eq!(counts.map(|counter| counted(board, counter)), [3, 0, 0, 0]);
}

#[test]
fn a_reset_stops_all_vcpus_and_starts_the_boot_vcpu_alone() {
    // vCPUs that wait, work, spin or are off: all of them stop. Memory is zero again after each
    // reset.
    let first: &[Op] = &[
        Load(0x2000, 0),
        Start(1),
        Start(2),
        Start(3),
        Store(0x2000, 5),
        Work(100_000),
        ResetBelow(3),
        Done,
    ];
    let others: &[&[Op]] = &[
        &[Load(0x3000, 0), Store(0x3000, 1), WaitFor(9), Done],
        &[Work(50_000_000), Done],
        &[Load(0x4000, 0), Store(0x4000, 1), SpinFor(9), Done],
        &[Done],
    ];
    // The others are not done at the end: the first switches the machine off.
    let first: Vec<Op> = first.iter().copied().map(|op| if op == Done { PowerOff } else { op }).collect();
    for cpus in 1..=3 {
        for seed in 0..25 {
            resets_of(seed, cpus, &first, others);
        }
    }
}

/// More vCPUs than turns without a window for interrupts. `Stopping::arrive` counts them.
#[test]
fn u48_each_vcpu_arrives_at_a_stop_once() {
    let first: Vec<Op> = (1..40).map(Start).chain([Work(10_000), ResetBelow(3), PowerOff]).collect();
    let other: &[Op] = &[WaitFor(0), Done];
    let others = vec![other; 39];
    for cpus in 1..=2 {
        for seed in 0..3 {
            resets_of(seed, cpus, &first, &others);
        }
    }
}

#[test]
fn of_several_that_reset_one_counts() {
    let program: &[Op] = &[Work(10_000), ResetBelow(3), PowerOff];
    let first: &[Op] = &[Start(1), Start(2), Work(10_000), ResetBelow(3), PowerOff];
    for seed in 0..40 {
        let board = run_to(OFF, 3, "vcpus=3\nmemory=4194304", seed, &[first, program, program]);
        assert_eq!(board.machine().guest.resets.load(Ordering::Relaxed), 3, "seed {seed}");
    }
}

#[test]
fn requests_are_served_while_the_guest_is_loaded_again() {
    let first: &[Op] = &[Work(100_000), ResetBelow(2), PowerOff];
    for seed in 0..10 {
        let config = "vcpus=1\nmemory=16777216";
        let board = board(1, config, &[first]);
        // Continually: some of the requests arrive during a reset.
        for number in 0..200 {
            board.ask(1000 + number * 10_000, &format!("{number} vms"));
        }
        assert_eq!(board.run(seed), OFF);
        assert!(counted(board, Counter::ResetRequests) > 0, "seed {seed}");
    }
}

#[test]
fn what_was_posted_before_a_reset_is_void() {
    // Before the reset the second vCPU is sent an interrupt that it does not take. After it there
    // is no sender, so the second vCPU waits forever, and the machine with it. If it still got the
    // old interrupt, it would switch the machine off.
    let first: &[Op] = &[SkipAfterReset, Send(1), Start(1), Work(200_000), ResetBelow(1), WaitFor(5)];
    let second: &[Op] = &[Sleep(100_000), WaitFor(0), PowerOff];
    let sent: &[Op] = &[SkipAfterReset, Send(1), Start(1), WaitFor(5)];
    for seed in 0..20 {
        let config = "vcpus=2\nmemory=4194304";
        let before: &[Op] = &[Sleep(90_000_000), WaitFor(0), PowerOff];
        run_to(End::Quiet, 2, config, seed, &[first, before]);
        run_to(OFF, 2, config, seed, &[sent, second]);
    }
}

#[test]
fn memory_that_is_read_only_survives_a_reset() {
    const ROM: u64 = 1 << 30;
    let program: &[Op] =
        &[Sleep(8_000_000), SkipAfterReset, Etch(ROM, 9), ResetBelow(1), Load(ROM, 9), PowerOff];
    let board = board(1, "vcpus=1\nmemory=4194304", &[program]);
    board.ask(2000, "1 add 0x40000000 0x200000 ro");
    assert_eq!(board.run(1), OFF);
}

#[test]
fn a_guest_that_cannot_be_loaded_again_ends_alone() {
    let resets: &[&[Op]] = &[&[Start(1), Work(10_000), Reset], &[Work(10_000_000), Done]];
    let works: &[&[Op]] = &[&[Start(1), Work(60_000_000), Done], &[Done]];
    let config = |name| &*String::leak(format!("name={name}\nvcpus=2\nmemory=4194304\ncmdline=plans=3"));
    for seed in 0..6 {
        let guests: [(_, &[&[Op]]); 2] = [(config("resets"), resets), (config("works"), works)];
        let board = create_several(2, 64 << 20, &guests);
        board.ask(35_000_000, "0 guests");
        board.ask(40_000_000, "1 guest-start resets");
        board.ask(45_000_000, "2 guest-destroy resets");
        assert_eq!(board.run(seed), End::Exit(ExitCode::GuestPowerOff), "seed {seed}");
        let answers = board.answers();
        assert!(answers[0].starts_with("0 : guest=resets state=failed"), "{answers:?}");
        assert!(answers[1].starts_with("0 : guest=works state=running"), "{answers:?}");
        assert!(answers[3].starts_with("1 error kernel: big-endian") && answers[4] == "2 ok", "{answers:?}");
    }
}

#[test]
fn what_a_reset_clears_is_in_the_log() {
    let program: &[Op] = &[Sleep(40_000_000), ResetBelow(1), Sleep(60_000_000), PowerOff];
    let board = board(1, "vcpus=1\nmemory=4194304", &[program]);
    board.ask(3_000_000, "1 log-start 0 dirty-bits");
    board.ask(20_000_000, "2 log-fetch 0");
    board.ask(60_000_000, "3 log-fetch 0");
    assert_eq!(board.run(1), OFF);
    assert_eq!(board.answers(), ["1 ok", "2 ok", "3 : dirty=0x0+0x200", "3 ok"]);
}
