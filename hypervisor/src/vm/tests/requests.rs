//! Requests that wait, and others meanwhile.

use core::sync::atomic::Ordering;

use super::Op::*;
use super::migration;
use crate::vm::mock::MockBoard as Board;
use crate::vm::mock::processor::{MockArch, OFF, Op, create_several, notes_of};
use hostlink::guests::GuestState;

/// In the board's ticks.
const MS: u64 = 1_000_000;
/// Of all guests here.
const SLICE: u64 = 5 * MS;
/// Zeroing a page takes so long where a reset is to last for more than a guest that is put first
/// may use.
const PAGE_TICKS: u64 = 16_384;

fn several(cpus: usize, guests: &[(&'static str, &[&[Op]])]) -> &'static Board<MockArch> {
    create_several(cpus, 128 << 20, guests)
}

fn asked(requests: &[(u64, &str)]) -> Vec<(u64, String)> {
    requests.iter().map(|&(when, line)| (when, line.to_owned())).collect()
}

const WORKS: &[Op] = &[Work(u64::MAX)];
const BUSY: &str = "name=busy\nvcpus=1\nmemory=4194304\nweight=1000";

/// Finds its memory zero, and resets.
const RESETS: &[Op] =
    &[Load(0xf000, 0), Store(0xf000, 1), Load(0x1_0000_f000, 0), Store(0x1_0000_f000, 1), Reset];

#[test]
fn u47_a_guest_that_resets_pauses_soon_and_goes_on_where_it_was() {
    let light = "name=low\nvcpus=1\nmemory=33554432\nweight=1";
    let capped = "name=low\nvcpus=1\nmemory=33554432\ncap=1";
    for (low, cpus) in [(light, 1), (light, 2), (capped, 1), (capped, 2)] {
        for seed in 0..2 {
            let board = several(cpus, &[(low, &[RESETS]), (BUSY, &[WORKS])]);
            board.zero_takes(PAGE_TICKS);
            let mut requests = Vec::new();
            for round in 0..4 {
                let time = (20 + 40 * round + seed) * MS;
                requests.push((time, "guest-pause low"));
                requests.push((time, "@busy slots"));
                requests.push((time + 25 * MS, "guest-resume low"));
            }
            for (at, (answer, took)) in board.answer_each(seed, &asked(&requests)).into_iter().enumerate() {
                assert_eq!(answer, "ok", "{low:?}, seed {seed}");
                let bound = if at % 3 == 1 { SLICE } else { 3 * SLICE };
                assert!(took < bound, "{low:?}, {cpus} CPUs, seed {seed}: {:?} took {took}", requests[at]);
            }
            assert!(board.machine().guest.resets.load(Ordering::Relaxed) > 0, "{low:?}: no reset has begun");
        }
    }
}

#[test]
fn a_guest_that_is_paused_amid_a_reset_finishes_it_with_all_its_vcpus() {
    let first: &[Op] =
        &[Load(0x7000, 0), Store(0x7000, 1), Start(1), Start(2), Work(10_000), ResetBelow(4), PowerOff];
    let other: &[Op] = &[Load(0x8000, 0), StoreTry(0x9000), WaitFor(9), Done];
    let mut amid = 0;
    for cpus in 1..=3 {
        for seed in 0..6 {
            let low = "name=low\nvcpus=3\nmemory=16777216";
            let board =
                several(cpus, &[(low, &[first, other, other]), ("name=busy\nmemory=4194304", &[WORKS])]);
            board.zero_takes(PAGE_TICKS / 16);
            let mut requests: Vec<_> = (1..12)
                .flat_map(|round| {
                    let time = round * (400_000 + 31_000 * seed);
                    [
                        (time, "guest-pause low"),
                        (time + 100_000, "guest-resume low"),
                        (time + 100_000, "guests"),
                    ]
                })
                .collect();
            requests.push((60 * MS, "guests"));
            let answers = board.answer_each(seed, &asked(&requests));
            assert!(answers.iter().all(|(line, _)| line == "ok" || line.contains("is off")), "{answers:?}");
            assert_eq!(board.host().state_of(0), GuestState::Off, "{cpus} CPUs, seed {seed}: {answers:?}");
            assert_eq!(board.machine().guest.resets.load(Ordering::Relaxed), 4);
            amid += board.machine().guest.paused_amid.load(Ordering::Relaxed);
        }
    }
    assert!(amid > 0, "no reset was paused");
}

#[test]
fn u47_a_light_guest_that_resets_all_the_time_is_sent() {
    let here = "name=here\nmemory=16777216\nweight=1";
    let there = "name=there\nmemory=16777216\nstart=manual";
    for (seed, way) in [(1, "live"), (2, "live"), (3, "still")] {
        let board = several(1, &[(here, &[RESETS]), (there, &[RESETS]), (BUSY, &[WORKS])]);
        // A reset takes 67 ms, if its guest has the CPU.
        board.zero_takes(PAGE_TICKS);
        migration::carry(board, migration::Cut::Never, 2);
        let send = format!("guest-send here 0x7 {way}");
        for (answer, took) in
            board.answer_each(seed, &asked(&[(20 * MS, &send), (20 * MS, "guest-receive there 0x9")]))
        {
            assert_eq!(answer, "ok", "{way}");
            assert!(took < 500 * MS, "{way}: {took}");
        }
        let states = [0, 1].map(|number| board.host().state_of(number));
        assert_eq!(states, [GuestState::Empty, GuestState::Running], "{way}");
    }
}

#[test]
fn a_guest_is_destroyed_amid_a_reset() {
    let low = "name=low\nvcpus=1\nmemory=33554432\nweight=1";
    for seed in 0..4 {
        let board = several(1, &[(low, &[RESETS]), (BUSY, &[WORKS])]);
        board.zero_takes(PAGE_TICKS);
        let first = if seed % 2 == 0 { "guest-pause low" } else { "memory" };
        let requests = [(20 + seed, first), (40, "guest-destroy low"), (41, "memory"), (41, "@busy vms")];
        let answers = board.answer_each(seed, &asked(&requests.map(|(ms, line)| (ms * MS, line))));
        assert!(answers.iter().all(|(line, _)| line == "ok"), "{answers:?}");
        assert!(answers[2..].iter().all(|(_, took)| *took < SLICE), "{answers:?}");
    }
}

#[test]
fn u47_a_request_that_waits_holds_up_none_about_another_guest() {
    let large = "name=large\nvcpus=1\nmemory=67108864\nstart=manual";
    let light = "name=low\nvcpus=1\nmemory=4194304\nweight=1";
    for seed in 0..4 {
        let board = several(1, &[(BUSY, &[WORKS]), (large, &[WORKS]), (light, &[RESETS])]);
        board.zero_takes(PAGE_TICKS / 16);
        // Nobody takes its records.
        board.hang_up(1);
        let requests = [
            (1, "@busy slots"),
            (1, "guest-create large"),
            (1, "guest-pause low"),
            (1, "memory"),
            (1, "guests"),
            (2, "@low stats"),
            (2, "input low 0 61"),
            (3, "guest-start large"),
            (3, "vms"),
            (40, "guest-pause large"),
        ];
        for (number, (ms, line)) in (1..).zip(requests) {
            board.ask(ms * MS, &format!("{number} {line}"));
        }
        board.enough(9);
        board.run(seed);
        let answers = board.answers();
        let place = |number: u32| {
            let is_last = |line: &String| *line == format!("{number} ok");
            answers.iter().position(is_last).unwrap_or_else(|| panic!("seed {seed}: {number} in {answers:?}"))
        };
        // About one guest they come in their order, and the others before what takes long.
        assert!(place(2) < place(8) && place(8) < place(10) && place(3) < place(6) && place(6) < place(7));
        assert!([4, 5, 9].iter().all(|&number| place(number) < place(2)), "{answers:?}");
        assert!(!answers.contains(&"1 ok".to_owned()), "its records were not taken");
    }
}

#[test]
fn more_requests_than_are_served_at_a_time_are_refused_and_leave_room_for_others() {
    let board = several(1, &[(BUSY, &[WORKS]), ("name=other\nvcpus=1\nmemory=4194304", &[WORKS])]);
    board.hang_up(1);
    let many = (1..200).map(|_| (MS, "@busy slots".to_owned()));
    let requests: Vec<_> =
        many.chain([(2 * MS, "@other vms".to_owned()), (2 * MS, "memory".to_owned())]).collect();
    board.enough(requests.len() - 64);
    for (number, (when, line)) in (1..).zip(&requests) {
        board.ask(*when, &format!("{number} {line}"));
    }
    board.run(1);
    let answers = board.answers();
    let refused = answers.iter().filter(|line| line.contains("error too many requests")).count();
    assert_eq!(refused, 199 - 64, "{answers:?}");
    assert!(["200 ok", "201 ok"].iter().all(|line| answers.iter().any(|answer| answer == line)));
}

#[test]
fn a_change_that_a_guest_of_little_weight_has_begun_is_over_soon() {
    const ADDED: u64 = 1 << 30;
    // A walk is in the way of the change, whose vCPU makes room for others meanwhile.
    let walks: &[Op] = &[Start(1), Sleep(3 * MS - 50_000), Walk(MS), Work(u64::MAX)];
    let moves: &[Op] = &[Sleep(3 * MS), Move(ADDED + (1 << 28)), Work(u64::MAX)];
    let busy = "name=busy\nvcpus=2\nmemory=4194304\nweight=1000";
    let light = "name=low\nvcpus=2\nmemory=4194304\nweight=1";
    let capped = "name=low\nvcpus=2\nmemory=4194304\ncap=1";
    for low in [light, capped] {
        for seed in 0..8 {
            let board = several(2, &[(low, &[walks, moves]), (busy, &[&[Start(1), Work(u64::MAX)], WORKS])]);
            let requests = [
                (2 * MS, format!("@low add {ADDED:#x} 0x200000 rw")),
                (10 * MS, "@low log-start 0 dirty-bits".to_owned()),
                (50 * MS, "@low log-stop 0".to_owned()),
            ];
            for ((answer, took), request) in board.answer_each(seed, &requests).iter().zip(&requests) {
                assert_eq!(answer, "ok", "{low:?}, seed {seed}: {request:?}");
                assert!(*took < 5 * SLICE, "{low:?}, seed {seed}: {request:?} took {took}");
            }
        }
    }
}

#[test]
fn a_guest_that_starts_again_is_as_new_and_the_run_waits_for_it() {
    let first: &[&[Op]] = &[&[Start(1), Note, Work(50_000), Done], &[Note, Done]];
    let second: &[&[Op]] = &[&[Work(20 * MS), Done]];
    for seed in 0..4 {
        let guests = [("name=low\nvcpus=2\nmemory=4194304", first), ("name=other\nmemory=4194304", second)];
        let board = several(2, &guests);
        // It is loaded while the other one ends.
        board.zero_takes(PAGE_TICKS);
        board.ask(10 * MS, "1 guest-start low");
        assert_eq!(board.run(seed), OFF, "seed {seed}");
        assert_eq!(board.answers(), ["1 ok"]);
        assert_eq!(
            [0, 1].map(|vcpu| notes_of(board, vcpu).len()),
            [2, 2],
            "both have run twice: seed {seed}"
        );
    }
}

#[test]
fn requests_that_come_at_once_are_begun_in_their_order() {
    let another = "name=another\nmemory=4194304";
    let board = several(1, &[("name=low\nmemory=4194304", &[WORKS]), (BUSY, &[WORKS]), (another, &[WORKS])]);
    let requests = [(MS, "guest-destroy low"), (MS, "guests"), (50 * MS, "vms")];
    let answers = board.answer_each(1, &asked(&requests));
    assert!(answers.iter().all(|(line, _)| line == "ok"), "{answers:?}");
    let listed =
        board.answers().into_iter().filter_map(|line| line.strip_prefix("3 : vm=").map(str::to_owned));
    assert_eq!(listed.map(|line| line[..1].to_owned()).collect::<String>(), "12");
    let says = |state: &str| board.answers().iter().any(|line| line.contains(state));
    assert!(says("guest=low state=leaving") && says("guest=busy state=running"), "{:?}", board.answers());
}
