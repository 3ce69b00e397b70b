//! Requests of the host tool.

use super::Op;
use super::Op::*;
use crate::vm::mock::processor::{DEVICE, OFF, board};

/// The answers to these requests, while a guest stores to some pages of its memory all the time.
fn answers(seed: u64, cpus: usize, config: &'static str, requests: &[&str]) -> Vec<String> {
    let first: &[Op] = &[Start(1), Store(0x5000, 1), Store(0x9000, 1), Sleep(100_000), Back(1, 3000), Done];
    let second: &[Op] = &[StoreTry(1 << 32), Sleep(100_000), Back(0, 3000), Done];
    let board = board(cpus, config, &[first, second]);
    for (time, line) in (1..).zip(requests) {
        board.ask(time * 9_000_000, line);
    }
    assert_eq!(board.run(seed), OFF, "seed {seed}, {config:?}");
    board.answers()
}

const CONFIG: &str = "vcpus=2\nmemory=4194304\nparanoid=on";

#[test]
fn lists_say_what_there_is() {
    let answers = answers(1, 2, CONFIG, &["1 vms", "2 slots", "3 stats"]);
    assert_eq!(answers[0], "1 : vm=0 vcpus=2 memory=0x400000 generation=2");
    assert_eq!(answers[1], "1 ok");
    assert!(answers[2].starts_with("2 : slot=0 gpa=0x0 size=0x200000"), "{answers:?}");
    assert!(answers[3].starts_with("2 : slot=1 gpa=0x100000000 size=0x200000"), "{answers:?}");
    assert_eq!(answers[4], "2 ok");
    let stats = answers.iter().filter(|line| line.starts_with("3 : ")).count();
    assert_eq!(stats, hostlink::counters::Counter::COUNT);
    assert_eq!(answers.last().map(String::as_str), Some("3 ok"));
}

#[test]
fn what_cannot_be_done_is_refused_and_changes_nothing() {
    let device = format!("10 add {DEVICE:#x} 0x1000 rw");
    let cases: &[(&str, &str)] = &[
        ("1 delete 0", "not added by a request"),
        ("2 delete 77", "there is no slot 77"),
        ("3 add 0x100000 0x1000 rw", "it overlaps slot 0, which is at 0x0"),
        ("4 add 0x40000000 0 rw", "the size is 0"),
        ("5 add 0x40000001 0x1000 rw", "multiples of 4096"),
        ("6 add 0x10000000000 0x1000 rw", "physical address width"),
        ("7 add 0x40000000 0x40000000 rw", "of free memory in one piece"),
        ("8 log-fetch 0", "not logged"),
        ("9 log-stop 0", "not logged"),
        (&device, "overlaps the device"),
        ("11 log-start 9 dirty-bits", "there is no slot 9"),
        ("13 jump", "13 error"),
        ("14 delete", "14 error"),
        ("15 delete 0 0", "15 error"),
        ("nonsense", "0 error"),
    ];
    let mut requests: Vec<&str> = cases.iter().map(|case| case.0).collect();
    requests.push("99 vms");
    let answers = answers(2, 1, CONFIG, &requests);
    assert_eq!(answers.len(), cases.len() + 2, "{answers:#?}");
    for (answer, (request, why)) in answers.iter().zip(cases) {
        assert!(answer.contains("error") && answer.contains(why), "{request}: {answer}");
    }
    assert!(answers.iter().any(|line| line.contains("memory=0x400000 generation=2")), "{answers:#?}");
}

#[test]
fn memory_is_added_and_removed() {
    for seed in 0..5 {
        let requests = ["1 add 0x40000000 0x200000 rw", "2 vms", "3 delete 2", "4 vms", "5 delete 2"];
        let answers = answers(seed, 2, CONFIG, &requests);
        assert_eq!(answers[0], "1 : slot=2");
        assert!(answers[2].contains("memory=0x600000"), "{answers:#?}");
        assert!(answers[4].starts_with("3 : visited="), "{answers:#?}");
        assert!(answers[6].contains("memory=0x400000"), "{answers:#?}");
        assert!(answers[8].contains("there is no slot 2"), "{answers:#?}");
    }
}

#[test]
fn a_log_has_the_pages_that_were_stored_to() {
    for way in ["dirty-bits", "write-protection"] {
        for (seed, cpus) in [(1, 1), (2, 2), (3, 3)] {
            let start = format!("1 log-start 0 {way}");
            let requests = [
                &start,
                "2 log-fetch 0",
                "3 log-fetch 0",
                "4 log-start 0 dirty-bits",
                "5 log-stop 0",
                "6 log-stop 0",
            ];
            let answers = answers(seed, cpus, CONFIG, &requests);
            let fetched: Vec<&String> = answers.iter().filter(|line| line.contains("dirty=")).collect();
            assert_eq!(fetched.len(), 2, "{way}: {answers:#?}");
            for line in fetched {
                assert!(line.contains("dirty=0x5+0x1,0x9+0x1"), "{way}: {line}");
            }
            assert!(answers.iter().any(|line| line.starts_with("4 error")), "{answers:#?}");
            assert!(
                answers.contains(&"5 ok".into()) && answers.iter().any(|line| line.starts_with("6 error"))
            );
        }
    }
}

#[test]
fn a_request_too_long_or_cut_off_is_not_answered_twice() {
    let long = format!("1 {}", "x".repeat(4000));
    let answers = answers(1, 1, CONFIG, &[&long, "2 vms", "", "3 vms"]);
    assert_eq!(answers.iter().filter(|line| line.ends_with(" ok")).count(), 2, "{answers:#?}");
}

#[test]
fn stores_to_memory_that_is_read_only_are_not_logged() {
    let answers = answers(1, 1, CONFIG, &["1 add 0x40000000 0x200000 ro", "2 log-start 2 dirty-bits"]);
    assert!(
        answers.iter().filter(|line| line.contains("error the guest cannot store to slot 2")).count() == 1,
        "{answers:#?}"
    );
}

#[test]
fn whoever_goes_away_gets_no_more_records_and_keeps_nobody_waiting() {
    let board = board(1, "vcpus=1\nmemory=4194304", &[&[Sleep(60_000_000), Done]]);
    board.hang_up(1);
    board.ask(2000, "1 slots");
    // Before it is said that nobody waits for it, requests about other guests are served, or about
    // none; afterwards all are.
    board.ask(10_000_000, "2 vms");
    board.ask(10_000_000, "3 stats");
    board.ask(20_000_000, "-1");
    board.ask(30_000_000, "4 vms");
    assert_eq!(board.run(1), OFF);
    let answers = board.answers();
    assert!(answers[0].starts_with("1 : slot=0") && answers[1].starts_with("2 : vm=0"), "{answers:#?}");
    assert!(answers[2] == "2 ok" && answers[3].starts_with("3 : "), "{answers:#?}");
    assert_eq!(answers.iter().filter(|line| line.starts_with("1 ")).count(), 1, "{answers:#?}");
    assert_eq!(answers.last().map(String::as_str), Some("4 ok"));
}
