//! What rows expect of a run: each expectation is disappointed by what it must not accept.

use super::expect::*;
use crate::test::prelude::*;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

fn outcome(end: End, reports: &[Value]) -> Outcome {
    Outcome {
        end,
        wall: Duration::ZERO,
        console: String::new(),
        log: String::new(),
        emulator: "QEMU",
        qemu_messages: String::new(),
        unwritten: Vec::new(),
        reports: reports.to_vec(),
        reports_dropped: 0,
        counters: None,
    }
}

const OFF: End = End::Hypervisor(ExitCode::GuestPowerOff);

#[test]
fn u50_a_run_ends_as_expected_and_no_other_way() {
    let ended = |end| expect_end(&outcome(end, &[]), ExitCode::GuestPowerOff).is_ok();
    assert!(ended(OFF));
    let codes = [ExitCode::GuestReset, ExitCode::Panic].map(End::Hypervisor);
    let failures = [0, 1 << 8].map(|status| End::Failed(ExitStatus::from_raw(status)));
    for end in codes.into_iter().chain(failures).chain([End::PowerOff, End::TimedOut]) {
        assert!(!ended(end), "{end:?}");
    }
}

#[test]
fn u50_a_command_has_its_status_if_it_has_come_to_its_end() {
    let status = |reports: &[Value]| expect_status(&outcome(OFF, reports), 0).is_ok();
    assert!(status(&[json!({"event": "exit", "status": 0})]));
    assert!(!status(&[]));
    assert!(!status(&[json!({"event": "exit", "status": 1})]));
    assert!(!status(&[json!({"event": "exit"})]));
    assert!(!status(&[json!({"event": "begin", "status": 0})]));
}

#[test]
fn u50_a_search_has_remapped_in_each_way_and_seen_changes() {
    let searched = |reports: &[Value]| expect_a_search(&outcome(OFF, reports)).is_ok();
    let end = |one: u64, other: u64, changes: u64| json!({"event": "end", "remaps": {"a": one, "b": other}, "changes": changes});
    assert!(searched(&[end(1, 2, 3)]));
    assert!(searched(&[end(1, 0, 3), end(0, 1, 0)]), "of all runs together");
    for reports in [&[][..], &[end(1, 0, 3)], &[end(1, 2, 0)], &[json!({"event": "end", "changes": 3})]] {
        assert!(!searched(reports), "{reports:?}");
    }
}

#[test]
fn u50_what_is_not_reported_is_not_taken_for_as_much_as_was_wanted() {
    let why = |begin: Value, end: Value| {
        let reports = [begin, end];
        expect_toggles(&outcome(OFF, &reports)).expect_err("there are no counters").to_string()
    };
    let begin = json!({"event": "begin", "toggles": 5, "threads": 2, "passes": 3});
    let end = json!({"event": "end", "toggles": 5, "passes": 6, "rom_errors": 0, "canary_errors": 0});
    assert_eq!(why(begin.clone(), end.clone()), "there are no counters", "all else is right");
    for (in_begin, name) in
        [(true, "toggles"), (true, "threads"), (true, "passes"), (false, "toggles"), (false, "passes")]
    {
        let (mut begin, mut end) = (begin.clone(), end.clone());
        if in_begin { &mut begin } else { &mut end }.as_object_mut().expect("one").remove(name);
        let found = why(begin, end);
        assert!(found.contains(name) && found.contains("reported"), "{name}: {found}");
    }
    for (name, value) in [("toggles", 4), ("passes", 5), ("rom_errors", 1), ("canary_errors", 1)] {
        let mut end = end.clone();
        end[name] = value.into();
        assert_ne!(why(begin.clone(), end), "there are no counters", "{name}");
    }
}

#[test]
fn u50_without_counters_nothing_that_is_counted_is_as_expected() {
    let end = json!({"event": "end", "tlb_ipis": 0});
    let outcome = outcome(OFF, &[end]);
    assert!(expect_generations(&outcome).is_err() && expect_pieces(&outcome).is_err());
    assert!(expect_few_lost(&outcome).is_err() && expect_tlb_ipis(&outcome, false).is_err());
    assert!(expect_date(&outcome).is_err() && expect_loops(&outcome).is_err());
    assert!(expect_stolen(&outcome, 1).is_err());
}
