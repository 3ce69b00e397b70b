//! The run loop: turns, wake-ups, timers, kicks.

use super::Op::*;
use super::*;
use crate::sched::{CpuIndex, TURNS_MAX};
use crate::vm::interrupts;
use crate::vm::mock::processor::{MockArch, OFF, board, counted, create_several, notes_of};
use crate::vm::mock::{self, End};
use hostlink::counters::Counter;
use hostlink::exit::ExitCode;
use hostlink::guests::GuestState;

/// Pairs of vCPUs that send each other interrupts in turn: each waits in HLT for the other's. A
/// lost interrupt ends the run with all vCPUs waiting.
fn ping_pong(pairs: u32, rounds: u32) -> Vec<Vec<Op>> {
    let mut programs = Vec::new();
    for pair in 0..pairs {
        let (first, second) = (2 * pair, 2 * pair + 1);
        let starts: Vec<Op> = if pair == 0 { (1..2 * pairs).map(Start).collect() } else { Vec::new() };
        let at = starts.len();
        programs.push([&starts[..], &[Send(second), WaitFor(second), Back(at, rounds), Done]].concat());
        programs.push(vec![WaitFor(first), Send(first), Back(0, rounds), Done]);
    }
    programs
}

fn refs(programs: &[Vec<Op>]) -> Vec<&[Op]> {
    programs.iter().map(Vec::as_slice).collect()
}

#[test]
fn no_wake_up_is_lost() {
    let programs = ping_pong(3, 20);
    for cpus in 1..=4 {
        for seed in 0..60 {
            run_to(OFF, cpus, "vcpus=6\nmemory=4194304", seed, &refs(&programs));
        }
    }
}

#[test]
fn a_cpu_that_serves_runs_no_vcpu_and_no_wake_up_is_lost() {
    let programs = ping_pong(2, 20);
    for seed in 0..60 {
        let config = "vcpus=4\nmemory=4194304\nboot_cpu=serve";
        let board = run_to(OFF, 3, config, seed, &refs(&programs));
        assert!(!board.host().sched.has_cpu(CpuIndex(0)));
        assert_eq!(board.host().sched.cpu_count(), 2);
    }
}

#[test]
fn on_one_cpu_nobody_is_kicked() {
    let board = run_to(OFF, 1, "vcpus=4\nmemory=4194304", 1, &refs(&ping_pong(2, 50)));
    assert_eq!(board.kicks(), 0);
    assert!(counted(board, Counter::SchedHalt) > 100);
}

#[test]
fn a_vcpu_in_guest_mode_is_kicked() {
    // The second never gives up its CPU on its own.
    let first: &[Op] = &[Start(1), Sleep(1_000_000), Send(1), Done];
    let second: &[Op] = &[SpinFor(0), Done];
    for seed in 0..50 {
        let board = run_to(OFF, 2, "vcpus=2\nmemory=4194304", seed, &[first, second]);
        assert!(counted(board, Counter::KickEvent) >= 1, "seed {seed}");
    }
}

#[test]
fn a_timer_wakes_its_vcpu_at_its_time() {
    let sleeper: &[Op] = &[Start(1), Sleep(3_000_000), Back(1, 20), Done];
    let other: &[Op] = &[Sleep(700_000), Back(0, 20), Done];
    for cpus in 1..=2 {
        for seed in 0..20 {
            let board = run_to(OFF, cpus, "vcpus=2\nmemory=4194304", seed, &[sleeper, other]);
            let latest = board.machine().guest.latest.load(core::sync::atomic::Ordering::Relaxed);
            assert!(latest < 20_000, "woken {latest} ticks late: seed {seed}");
            assert!(board.time() > 60_000_000);
        }
    }
}

#[test]
fn a_timer_of_one_that_waits_interrupts_another_that_works() {
    // Its slice is longer than all of the sleeps.
    let sleeper: &[Op] = &[Start(1), Sleep(300_000), Back(1, 10), Done];
    let worker: &[Op] = &[Work(40_000_000), Done];
    for seed in 0..20 {
        let board = run_to(OFF, 1, "vcpus=2\nmemory=4194304\nslice_us=20000", seed, &[sleeper, worker]);
        let latest = board.machine().guest.latest.load(core::sync::atomic::Ordering::Relaxed);
        // A waking vCPU preempts one that has run for an eighth of a slice; its credit is half a
        // slice.
        assert!(latest < 12_500_000, "woken {latest} ticks late: seed {seed}");
    }
}

#[test]
fn vcpus_that_work_share_a_cpu_by_slices() {
    let first: &[Op] = &[Start(1), Work(50_000_000), Done];
    let second: &[Op] = &[Work(50_000_000), Done];
    for seed in 0..10 {
        let board = run_to(OFF, 1, "vcpus=2\nmemory=4194304\nslice_us=1000", seed, &[first, second]);
        let preempted = counted(board, Counter::SchedPreempted);
        assert!((80..=120).contains(&preempted), "{preempted} slices of 1 ms in 100 ms: seed {seed}");
        assert!(board.time() < 110_000_000, "nothing is lost");
    }
}

#[test]
fn a_cpu_that_idles_keeps_the_address_space_and_a_vcpu_that_comes_from_another_is_counted() {
    let sleeps: &[Op] = &[Start(1), Sleep(100_000), Back(1, 50), Done];
    let works: &[Op] = &[Work(3_000_000), Done];
    let third: [&[Op]; 3] =
        [&[Start(1), Start(2), Work(50_000_000), Done], &[Work(50_000_000), Done], &[Work(50_000_000), Done]];
    for seed in 0..4 {
        let board = run_to(OFF, 1, "vcpus=2\nmemory=4194304", seed, &[sleeps, works]);
        assert_eq!(board.machine().guest.holders.loads(), 1, "seed {seed}");
        assert_eq!(counted(board, Counter::SchedMigrated), 0, "there is no other CPU");
        let board = run_to(OFF, 2, "vcpus=3\nmemory=4194304\nslice_us=1000", seed, &third);
        let (came, turns) = (counted(board, Counter::SchedMigrated), counted(board, Counter::SchedIn));
        assert!((1..turns).contains(&came), "three share two CPUs: {came} of {turns} turns: seed {seed}");
    }
}

#[test]
fn a_vcpu_that_spins_gives_way_to_the_one_it_waits_for() {
    let spinner: &[Op] = &[Start(1), SpinFor(1), Send(1), Back(1, 30), Done];
    let worker: &[Op] = &[Work(200_000), Send(0), WaitFor(0), Back(0, 30), Done];
    for seed in 0..20 {
        let board = run_to(OFF, 1, "vcpus=2\nmemory=4194304\nslice_us=100000", seed, &[spinner, worker]);
        assert!(counted(board, Counter::SchedYield) >= 20, "seed {seed}");
        assert!(board.time() < 60_000_000, "it keeps its slices: {} ticks", board.time());
    }
}

#[test]
fn a_vcpu_that_waits_for_a_word_is_passed_over_until_it_has_changed() {
    let spinner: &[Op] = &[Start(1), Start(2), SpinOn(0x1000, 7), Note, Done];
    let worker: &[Op] = &[Work(20_000_000), Store(0x1000, 7), Note, Done];
    let other: &[Op] = &[Work(20_000_000), Done];
    for seed in 0..20 {
        let config = "vcpus=3\nmemory=4194304\nslice_us=1000";
        let board = run_to(OFF, 1, config, seed, &[spinner, worker, other]);
        assert!(counted(board, Counter::SchedPassive) >= 1, "seed {seed}");
        assert!(board.time() < 60_000_000, "it has turns while it waits: {} ticks", board.time());
        let (waited, stored) = (notes_of(board, 0)[0], notes_of(board, 1)[0]);
        assert!(waited - stored < 4_000_000, "it goes on {} ticks late: seed {seed}", waited - stored);
    }
}

#[test]
fn a_vcpu_that_waits_for_a_word_goes_on_for_an_interrupt_and_after_a_while() {
    let working: &[Op] = &[Work(100_000_000), Done];
    for seed in 0..10 {
        let waiting: &[Op] =
            &[Start(1), Start(2), SpinOnOr(0x1000, 1), Note, SpinOnFor(0x1000, 10_000_000), Note, Done];
        let sender: &[Op] = &[Work(5_000_000), Note, Send(0), Work(100_000_000), Done];
        let config = "vcpus=3\nmemory=4194304\nslice_us=500";
        let board = run_to(OFF, 1, config, seed, &[waiting, sender, working]);
        let (waited, sent) = (notes_of(board, 0), notes_of(board, 1)[0]);
        assert!(waited[0] - sent < 2_000_000, "{} ticks late: seed {seed}", waited[0] - sent);
        // It is checked at the latest every 32 slices of half a millisecond, and then runs.
        let while_it_waited = waited[1] - waited[0];
        assert!(while_it_waited < 45_000_000, "{while_it_waited} ticks: seed {seed}");
    }
}

#[test]
fn a_timer_interrupts_the_vcpu_that_set_it() {
    let first: &[Op] = &[Start(1), Note, Tick(300_000), Note, Back(1, 10), Done];
    let second: &[Op] = &[Done];
    for seed in 0..10 {
        let board = run_to(OFF, 1, "vcpus=2\nmemory=4194304", seed, &[first, second]);
        for pair in notes_of(board, 0).chunks(2) {
            let took = pair[1] - pair[0];
            assert!((300_000..350_000).contains(&took), "{took} ticks: seed {seed}");
        }
    }
}

#[test]
fn an_interrupt_for_a_vcpu_that_sleeps_preempts_the_one_that_sends_it() {
    let sender: &[Op] =
        &[Start(1), Sleep(1_000_000), Work(15_000_000), Note, Send(1), Work(15_000_000), Done];
    let receiver: &[Op] = &[WaitFor(0), Note, Done];
    // On two CPUs it may have slept where another one works.
    let worker: &[Op] = &[Work(40_000_000), Done];
    let both =
        &[Start(1), Start(2), Sleep(1_000_000), Work(15_000_000), Note, Send(1), Work(15_000_000), Done];
    for seed in 0..10 {
        for (cpus, config, programs) in [
            (1, "vcpus=2\nmemory=4194304\nslice_us=50000", &[sender, receiver][..]),
            (2, "vcpus=3\nmemory=4194304\nslice_us=50000", &[both, receiver, worker]),
        ] {
            let board = run_to(OFF, cpus, config, seed, programs);
            let late = notes_of(board, 1)[0] - notes_of(board, 0)[0];
            assert!(late < 1_000_000, "{late} ticks: seed {seed}, {cpus} CPUs");
        }
    }
}

#[test]
fn vcpus_that_are_woken_for_nothing_keep_no_interrupt_away() {
    let mut first: Vec<Op> = (1..24).map(Start).collect();
    first.push(Sleep(1_000_000));
    first.extend((1..24).map(Send));
    first.extend([Back(24, 20), PowerOff]);
    let mut programs = vec![first];
    programs.extend((1..24).map(|_| vec![WaitFor(40), Done]));
    for seed in 0..20 {
        let board = run_to(OFF, 3, "vcpus=24\nmemory=4194304\nboot_cpu=serve", seed, &refs(&programs));
        let most = board.turns_without_interrupts();
        assert!((4..=TURNS_MAX + 1).contains(&most), "{most} turns: seed {seed}");
    }
}

#[test]
fn what_ends_a_guest_ends_the_run_with_its_code() {
    for (op, policy, end) in [
        (PowerOff, "reboot", ExitCode::GuestPowerOff),
        (Crash, "reboot", ExitCode::GuestInvalid),
        (Reset, "exit", ExitCode::GuestReset),
        (ShutdownBelow(1), "exit", ExitCode::GuestReset),
    ] {
        let config: &'static str = match policy {
            "exit" => "vcpus=2\nmemory=4194304\nreset=exit",
            _ => "vcpus=2\nmemory=4194304",
        };
        run_to(End::Exit(end), 2, config, 3, &[&[Start(1), Work(100_000), op], &[SpinFor(0)]]);
    }
    for op in [Reset, ShutdownBelow(1)] {
        run_to(End::Panic, 1, "vcpus=1\nmemory=4194304\nreset=panic", 3, &[&[op]]);
    }
}

#[test]
fn u56_a_triple_fault_is_a_reset() {
    let second: &[Op] = &[Work(1000), ShutdownBelow(6), Done];
    for cpus in 1..=3 {
        for seed in 0..10 {
            let first: &[Op] = &[ShutdownBelow(3), Start(1), Work(50_000), Done];
            let board = run_to(OFF, cpus, "vcpus=2\nmemory=4194304", seed, &[first, second]);
            assert_eq!(counted(board, Counter::Resets), 6, "{cpus} CPUs, seed {seed}");
        }
    }
}

#[test]
fn what_is_typed_reaches_the_guest() {
    let program: &[Op] = &[Sleep(1_000_000), Done];
    let board = board(1, "vcpus=1\nmemory=4194304", &[program]);
    board.type_in(b"hello");
    assert_eq!(board.run(1), OFF);
    assert_eq!(*board.machine().guest.console.lock().unwrap(), b"hello");
}

/// A level-triggered interrupt would keep the CPU busy until somebody takes what was typed.
#[test]
fn what_is_typed_is_taken_though_no_guest_is_there() {
    // It arrives, or it was never created.
    for start in ["auto", "manual"] {
        let config = String::leak(format!("name=guest\nmemory=4194304\nstart={start}"));
        let board = create_several(1, 16 << 20, &[(config, &[&[Done]])]);
        if let Some(vm) = board.host().guest(0) {
            board.host().set_state(vm, GuestState::Arriving, 0);
        }
        board.type_in(b"lost");
        interrupts::on_serial_interrupt::<MockArch>();
        assert_eq!(mock::board_impl::receive_console::<MockArch>(), None, "{start}");
    }
}

#[test]
fn a_kick_that_is_lost_is_made_up_for_by_the_tick_and_counted() {
    let first: &[Op] = &[Start(1), Sleep(5_000_000), Note, Send(1), Work(250_000_000), PowerOff];
    let second: &[Op] = &[WaitFor(0), Note, Done];
    for (lost_from, count, late) in [(u64::MAX, 0, 0..1_000_000), (4_000_000, 1, 90_000_000..101_000_000)] {
        let guest: (_, &[&[Op]]) = ("name=guest\nvcpus=2\nmemory=4194304", &[first, second]);
        let board = create_several(2, 16 << 20, &[guest]);
        board.lose_kicks(lost_from);
        assert_eq!(board.run(1), OFF);
        assert_eq!(counted(board, Counter::KickMissing), count, "from {lost_from} on");
        assert_eq!(counted(board, Counter::KickLate) > 0, count > 0, "from {lost_from} on");
        let took = notes_of(board, 1)[0] - notes_of(board, 0)[0];
        assert!(late.contains(&took), "{took}");
    }
}
