//! Several guests on one machine.

use core::sync::atomic::{AtomicU32, Ordering};

use super::Op::*;
use crate::sched::{CpuIndex, Policy, Scheduler, Share, VcpuIndex};
use crate::vm::arch::Clock;
use crate::vm::host::wall_clock;
use crate::vm::mock::processor::{MockArch, OFF, Op, board, counted, create_several};
use crate::vm::mock::{End, MockBoard as Board};
use crate::vm::{Charged, GUEST, caused_by};
use baremetal::random::Random;
use hostlink::counters::Counter;
use hostlink::exit::ExitCode;
use hostlink::guests::GuestState;
use hostlink::name::Name;

const FIRST: &str = "name=first\nvcpus=2\nmemory=4194304";
const SECOND: &str = "name=second\nvcpus=2\nmemory=4194304";
const THIRD: &str = "name=third\nvcpus=1\nmemory=2097152\nstart=manual";
/// Goes on for long, and uses some memory.
const LONG: &[Op] = &[Load(0x2000, 0), Store(0x2000, 7), Work(400_000), Sleep(100_000), Back(2, 120), Done];
const LONG_FIRST: &[Op] =
    &[Load(0x1000, 0), Store(0x1000, 9), Start(1), Work(400_000), Sleep(100_000), Back(3, 120), Done];

fn several(cpus: usize, guests: &[(&'static str, &[&[Op]])]) -> &'static Board<MockArch> {
    create_several(cpus, 64 << 20, guests)
}

fn states(board: &'static Board<MockArch>) -> Vec<GuestState> {
    (0..board.host().bundle.guests.len() as u32).map(|number| board.host().state_of(number)).collect()
}

#[test]
fn the_run_ends_with_the_last_guest() {
    let short: &[&[Op]] = &[&[Start(1), Work(100_000), Done], &[Done]];
    // One after the other, or both at the same time: each finds the other one stopping.
    let together: &[&[Op]] = &[&[Start(1), Work(100_000), PowerOff], &[Walk(100_000), Back(0, 100)]];
    for cpus in 1..=3 {
        for seed in 0..20 {
            let later: &[&[Op]] = if seed % 2 == 0 { together } else { &[LONG_FIRST, LONG] };
            let board =
                several(cpus, &[(FIRST, if seed % 2 == 0 { together } else { short }), (SECOND, later)]);
            assert_eq!(board.run(seed), OFF, "{cpus} CPUs, seed {seed}");
            assert_eq!(states(board), [GuestState::Off; 2]);
        }
    }
}

#[test]
fn a_guest_that_crashes_ends_alone_and_the_run_has_failed() {
    let crash: &[&[Op]] = &[&[Start(1), Work(50_000), Crash], &[Work(10_000_000), Done]];
    for seed in 0..20 {
        let board = several(2, &[(FIRST, crash), (SECOND, &[LONG_FIRST, LONG])]);
        assert_eq!(board.run(seed), End::Exit(ExitCode::GuestInvalid), "seed {seed}");
        assert_eq!(states(board)[0], GuestState::Failed);
    }
}

#[test]
fn a_reset_that_ends_a_guest_is_the_end_of_the_run_wherever_the_guest_is_in_the_file() {
    let reset: &[&[Op]] = &[&[Work(50_000), Reset], &[Done]];
    let off: &[&[Op]] = &[&[Work(100_000), PowerOff], &[Done]];
    let resets = "name=resets\nvcpus=2\nmemory=4194304\nreset=exit";
    for guests in [[(resets, reset), (SECOND, off)], [(SECOND, off), (resets, reset)]] {
        let board = several(2, &guests);
        assert_eq!(board.run(1), End::Exit(ExitCode::GuestReset), "{guests:?}");
        assert_eq!(states(board), [GuestState::Off; 2]);
    }
}

#[test]
fn a_guest_that_runs_out_of_tables_ends_alone() {
    let touch: &[&[Op]] =
        &[&[Store(0x1000, 1), Store(1 << 32, 1), Store(0x20_0000 - 8, 1), Work(1000), Done]];
    let few = "name=few\nmemory=4194304\ntables=3";
    let board = several(1, &[(few, touch), (SECOND, &[LONG_FIRST, LONG])]);
    assert_eq!(board.run(1), End::Exit(ExitCode::GuestOutOfTables));
    assert_eq!(states(board)[0], GuestState::Failed);
}

#[test]
fn a_paused_guest_stands_still_and_goes_on() {
    let ticking: &[Op] = &[Note, Work(100_000), Back(0, 400), PowerOff];
    for seed in 0..10 {
        let first: &[&[Op]] = &[ticking, &[Done]];
        let board = several(
            2,
            &[(FIRST, &[&[Start(1), Note, Work(100_000), Back(1, 300), Done], first[1]]), (SECOND, first)],
        );
        board.ask(4_000_000, "1 guest-pause first");
        board.ask(20_000_000, "2 guest-resume first");
        let vm = board.machine();
        board.run(seed);
        assert_eq!(board.answers(), ["1 ok", "2 ok"], "seed {seed}");
        let notes: Vec<u64> = vm.guest.notes.lock().unwrap().iter().map(|&(_, time)| time).collect();
        let gap = notes.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(gap > Some(14_000_000), "seed {seed}: {gap:?}");
    }
}

#[test]
fn what_a_destroyed_guest_had_is_free_and_the_next_one_finds_zeros() {
    for seed in 0..6 {
        let board = several(2, &[(FIRST, &[LONG_FIRST, LONG]), (SECOND, &[LONG_FIRST, LONG])]);
        let mut time = 2_000_000;
        for round in 0..8 {
            for request in ["guest-destroy first", "memory", "guest-create first", "guest-start first"] {
                board.ask(time, &format!("{} {request}", 10 * round + 1));
                time += 3_000_000;
            }
        }
        assert_eq!(board.run(seed), OFF, "seed {seed}");
        let answers = board.answers();
        let free: Vec<&String> = answers.iter().filter(|line| line.contains("free=")).collect();
        let size = |line: &str| line.split(" : ").nth(1).map(str::to_owned);
        assert_eq!(free.len(), 8, "{answers:?}");
        assert!(free.iter().all(|line| size(line) == size(free[0])), "seed {seed}: {free:?}");
        assert!(answers.iter().all(|line| !line.contains("error")), "seed {seed}: {answers:?}");
    }
}

#[test]
fn guests_are_created_later_and_start_again_after_their_end() {
    let quick: &[&[Op]] = &[&[Load(0x1000, 0), Store(0x1000, 1), Work(50_000), Done]];
    for seed in 0..10 {
        let board =
            several(2, &[(FIRST, &[LONG_FIRST, LONG]), (SECOND, &[LONG_FIRST, LONG]), (THIRD, quick)]);
        let requests = [
            "guest-start third",
            "guest-create third",
            "guest-create third",
            "guest-start third",
            "guest-resume third",
            "guest-start third",
            "guest-destroy third",
            "guest-pause fourth",
        ];
        for (time, request) in (1..).zip(requests) {
            board.ask(time * 4_000_000, &format!("{time} {request}"));
        }
        assert_eq!(board.run(seed), OFF, "seed {seed}");
        assert_eq!(
            board.answers(),
            [
                "1 error guest 'third' is empty: this is for a guest that is there: create it first",
                "2 ok",
                "3 error guest 'third' is loaded: this is for a guest that is empty",
                "4 ok",
                "5 error guest 'third' is off: this is for a guest that is paused",
                "6 ok",
                "7 ok",
                "8 error the machine's file describes no guest 'fourth'",
            ],
            "seed {seed}"
        );
    }
}

#[test]
fn u49_guests_that_come_and_go_in_any_order_find_rows() {
    // As many vCPUs as there are rows.
    let some = "name=some\nvcpus=60\nmemory=2097152\nstart=manual";
    let more = "name=more\nvcpus=120\nmemory=2097152\nstart=manual";
    let most = "name=most\nvcpus=138\nmemory=2097152\nstart=manual";
    let board = several(1, &[(FIRST, &[LONG_FIRST, LONG]), (some, &[]), (more, &[]), (most, &[])]);
    let requests = [
        "guest-create most",
        "guest-create some",
        "guest-destroy most",
        "guest-create more",
        "guest-create most",
        "guest-destroy some",
        "guest-destroy more",
        "guest-create some",
        "guest-create more",
    ];
    let requests = requests.map(|line| (1_000_000, line.to_owned()));
    // They are about different guests, and each is to wait for the one before.
    let asked: Vec<_> = (1..).zip(requests).map(|(number, (time, line))| (number * time, line)).collect();
    assert!(board.answer_each(1, &asked).iter().all(|(line, _)| line == "ok"));
}

#[test]
fn a_guest_that_stops_amid_its_change_holds_up_no_request() {
    const ADDED: u64 = 1 << 30;
    const ROUNDS: u64 = 25;
    let moves: &[Op] = &[Sleep(3_000_000), Move(ADDED + (1 << 28)), Move(ADDED), Back(1, 100_000)];
    let starts: &[Op] = &[Start(1), Sleep(100_000_000), Done];
    for seed in 0..10 {
        let board = several(2, &[(FIRST, &[starts, moves]), (SECOND, &[LONG_FIRST, LONG])]);
        board.ask(2_000_000, &format!("0 @first add {ADDED:#x} 0x200000 rw"));
        let mut time = 4_000_000;
        for _ in 0..ROUNDS {
            for request in [
                "guest-pause first",
                "@first add 0x20000000 0x1000 rw",
                "@first delete 3",
                "guest-resume first",
            ] {
                board.ask(time, &format!("1 {request}"));
                time += 300_000 + 17_000 * seed;
            }
        }
        board.ask(time, "2 guest-destroy first");
        assert_eq!(board.run(seed), OFF, "seed {seed}");
        let answers = board.answers();
        assert_eq!(answers.last().map(String::as_str), Some("2 ok"), "seed {seed}: {answers:?}");
    }
}

#[test]
fn requests_reach_the_guest_that_they_name() {
    let board = several(2, &[(FIRST, &[LONG_FIRST, LONG]), (SECOND, &[LONG_FIRST, LONG])]);
    board.ask(2_000_000, "1 @second add 0x40000000 0x1000 rw");
    board.ask(4_000_000, "2 @first delete 2");
    board.ask(6_000_000, "3 input second 0 6869");
    board.ask(8_000_000, "4 input second 7 6869");
    board.ask(9_000_000, "5 @third slots");
    board.ask(9_000_000, "6 guest-wake second");
    let second = board.host().next_guest(1).expect("it is there");
    assert_eq!(board.run(3), OFF);
    let answers = board.answers();
    let expected = [
        "1 : slot=2",
        "1 ok",
        "2 error there is no slot 2",
        "3 : taken=2",
        "3 ok",
        "4 error the guest has no serial port 7",
        "5 error there is no such guest",
        "6 ok",
    ];
    assert_eq!(answers, expected);
    assert_eq!(*second.guest.console.lock().unwrap(), b"hi, woken");
}

#[test]
fn a_guest_that_resets_all_the_time_takes_no_more_than_its_share() {
    let resets: &[&[Op]] = &[&[Start(1), Work(10_000), Reset], &[Work(10_000_000), Done]];
    let works: &[&[Op]] = &[&[Start(1), Work(u64::MAX), Done], &[Work(u64::MAX), Done]];
    for cpus in 1..=2 {
        let board = several(cpus, &[(FIRST, resets), (SECOND, works)]);
        let second = board.host().next_guest(1).expect("it is there");
        let begin = board.time();
        assert_eq!(board.answer_each(5, &[(400_000_000, "memory".to_owned())])[0].0, "ok");
        let (had, all) = (board.host().used_by(second.number), board.time() - begin);
        let share = had as f64 / (all * cpus as u64) as f64;
        assert!(share > 0.45, "{cpus} CPUs: {share}");
        assert!(board.machine().guest.resets.load(Ordering::Relaxed) > 10);
    }
}

#[test]
fn u62_scheduler_and_host_tool_get_each_guests_own_facts() {
    let one = "name=one\nvcpus=2\nmemory=4194304\nweight=7\ncap=90\ncpus=0";
    let other = "name=other\nvcpus=1\nmemory=2097152\nweight=300\ncpus=1";
    let host = several(2, &[(one, &[]), (other, &[])]).host();
    let known = Scheduler::new([0, 1].map(CpuIndex).into(), 320, 16, Policy::new(1000));
    let shares = [(7, Some(90), 0, 4 << 20), (300, None, 1, 2 << 20)];
    for (number, (weight, cap, cpu, memory)) in (0..).zip(shares) {
        let vm = host.next_guest(number).expect("it is there");
        known.add_group(number, vm.rows(), Share { weight, cap, cpus: [cpu].into_iter().collect() });
        let entry = host.entry(number);
        let load = |word: &AtomicU32| word.load(Ordering::Relaxed);
        let facts = (load(&entry.vcpus), load(&entry.weight), load(&entry.cap));
        assert_eq!(facts, (vm.vcpu_count(), weight, cap.unwrap_or(0)));
        assert_eq!(entry.memory.load(Ordering::Relaxed), memory);
        let counters = host.counters_of(vm.rows().start).as_ptr().addr() as u64;
        assert_eq!(entry.counters.load(Ordering::Relaxed), counters);
    }
    for row in [0, 1, 2].map(VcpuIndex) {
        assert_eq!(host.sched.known_of(row), known.known_of(row), "{row}");
    }
}

#[test]
fn u62_the_machine_has_its_clocks_rate_and_ticks_where_somebody_looks() {
    let host = several(1, &[(FIRST, &[]), (SECOND, &[])]).host();
    let later = MockArch::now() + 3 * MockArch::hz();
    assert_eq!(host.wall.ns(later) - host.wall.ns(later - 2 * MockArch::hz()), 2_000_000_000);
    assert!(wall_clock::<MockArch>(None).ns(MockArch::now()) < 1000, "it does not say what time it is");
    assert_eq!(host.tick_max, MockArch::ticks_of_us(100_000), "the host tool shows what guests have had");
    for (config, tick) in [("", u64::MAX), ("\nboot_cpu=serve", MockArch::ticks_of_us(20_000))] {
        let single = board(2, format!("vcpus=1\nmemory=4194304{config}").leak(), &[]);
        assert_eq!(single.host().tick_max, tick, "{config}");
    }
}

#[test]
fn u62_what_vcpus_had_and_waited_for_is_counted() {
    let works: &[Op] = &[Start(1), Work(30_000_000), Done];
    let board = several(1, &[(FIRST, &[works, &works[1..]])]);
    assert_eq!(board.run(1), OFF);
    let waited = counted(board, Counter::SchedSteal);
    let had = board.host().entry(0).used_ticks.load(Ordering::Relaxed);
    assert!((50_000_000..70_000_000).contains(&waited), "each waits while the other one works: {waited}");
    assert!((50_000_000..70_000_000).contains(&had), "{had}");
}

/// What there is of a guest outside of it: its rows, its account, and what the host tool sees. Not
/// that an event waits: one that came late makes the vCPU look in vain.
fn outside(board: &'static Board<MockArch>, number: u32) -> Vec<String> {
    let host = board.host();
    let vm = host.next_guest(number).expect("it is there");
    let entry = host.entry(number);
    let mut found: Vec<String> = VcpuIndex::each(vm.rows()).map(|row| host.sched.known_of(row)).collect();
    found.extend(VcpuIndex::each(vm.rows()).map(|row| format!("{:?}", host.counters_of(row))));
    found.extend(vm.vcpus.iter().map(|vcpu| format!("{:?}", (vcpu.target.owner().is_some(), &vcpu.awaited))));
    found.push(format!("{:?}", (&entry.name, &entry.state, &entry.vcpus, &entry.exit, &entry.used_ticks)));
    found.push(format!("{:?}", (&entry.weight, &entry.cap, &entry.memory, vm.attention(), vm.has_stopped())));
    found.push(format!("{:?}", (vm.turn_wanted.load(Ordering::Relaxed), vm.is_changing())));
    found
}

#[test]
fn u59_rows_that_another_guest_had_are_as_new_ones() {
    const HABITS: [&[Op]; 7] = [
        &[Start(1), Start(2), Sleep(90_000_000), Done],
        &[Start(1), Start(2), SpinOn(0x3000, 1)],
        &[Start(1), Start(2), Store(0x2000, 1), Work(50_000), Send(1), Back(2, 100_000)],
        &[Start(1), Start(2), Tick(300_000), Back(2, 100_000)],
        &[Start(1), Start(2), WaitFor(1), Done],
        &[Start(1), Start(2), Work(700_000), Reset],
        &[Start(1), Work(u64::MAX)],
    ];
    let other = "name=some\nvcpus=3\nmemory=2097152\nstart=manual\nweight=7\ncap=90\ncpus=1";
    for seed in 0..42 {
        let random = &mut Random::new(seed + 1);
        let habits =
            [seed as usize % 7, random.below(7) as usize, random.below(7) as usize].map(|n| HABITS[n]);
        let outside_after = |requests: &[&str]| {
            let board =
                several(2, &[("name=keeper\nmemory=2097152", &[&[Work(u64::MAX)]]), (other, &habits)]);
            let asked: Vec<_> =
                (1..).zip(requests).map(|(at, line)| (at * 9_000_000, (*line).into())).collect();
            let answers = board.answer_each(seed, &asked);
            assert!(answers.iter().all(|(line, _)| line == "ok"), "{answers:?}");
            outside(board, 1)
        };
        let also =
            ["guests", "guest-pause some", "@some add 0x40000000 0x200000 rw"][random.below(3) as usize];
        let again =
            ["guest-create some", "guest-start some", also, "guest-destroy some", "guest-create some"];
        assert_eq!(outside_after(&again), outside_after(&again[..1]), "seed {seed}, after {also}");
    }
}

#[test]
fn a_guest_for_which_there_is_not_enough_memory_takes_none() {
    let large = "name=third\nvcpus=1\nmemory=67108864\nstart=manual";
    let board = several(2, &[(FIRST, &[LONG_FIRST, LONG]), (SECOND, &[LONG_FIRST, LONG]), (large, &[])]);
    for (time, request) in (1..).zip(["memory", "guest-create third", "memory", "guests"]) {
        board.ask(time * 4_000_000, &format!("{time} {request}"));
    }
    assert_eq!(board.run(3), OFF);
    let answers = board.answers();
    let free = |number: &str| answers.iter().find_map(|line| line.strip_prefix(number)).map(str::to_owned);
    assert!(free("1 : ").is_some() && free("1 : ") == free("3 : "), "{answers:?}");
    assert!(answers.iter().any(|line| line.starts_with("2 error no ")), "{answers:?}");
    assert!(answers.iter().any(|line| line.starts_with("4 : guest=third state=empty")), "{answers:?}");
}

#[test]
fn u64_a_line_is_charged_to_whom_it_names_whoever_is_on_the_cpu() {
    let host = several(1, &[(FIRST, &[&[Done], &[Done]]), (SECOND, &[&[Done], &[Done]])]).host();
    let row = |guest: u32| host.next_guest(guest).expect("it exists").vcpus[0].row;
    assert_eq!(host.charged("hypervisor::vm", Some(row(0))), None, "the hypervisor's own");
    assert_eq!(host.charged(GUEST, None), Some(Charged::NOBODY));
    for here in [row(0), row(1)] {
        let (guest, name) = host.guest_of(here);
        let own = Charged { guest: Some(guest), name, row: Some(here) };
        assert_eq!(host.charged(GUEST, Some(here)), Some(own));
        for (number, text) in [(0, "first"), (1, "second")] {
            let target = caused_by(Name::parse(text).expect("a name"));
            let of = Charged { guest: Some(number), name: None, row: Some(row(number as u32)) };
            assert_eq!(host.charged(&target, Some(here)), Some(of), "whoever runs here");
        }
        let target = caused_by(Name::parse("gone").expect("a name"));
        assert_eq!(host.charged(&target, Some(here)), Some(Charged::NOBODY));
    }
}
