//! What counts as passed.

use super::*;

fn made(runs: &str) -> Step {
    Step { name: "made".to_owned(), runs: runs.to_owned(), ..Step::default() }
}

fn reading(lines: &[&str]) -> Reading {
    let mut reading = Reading::default();
    for line in lines {
        reading.line((*line).to_owned());
    }
    reading
}

#[test]
fn results_of_all_binaries_are_added_up() {
    let reading = reading(&[
        "running 2 tests",
        "test a ... ok",
        "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.25s",
        "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s",
    ]);
    assert_eq!(reading.tally, Tally { passed: 15, failed: 3, ..Tally::default() }, "what is ignored fails");
    assert_eq!(reading.passed_so_far(), 1);
}

#[test]
fn a_failure_without_tests_is_shown_from_its_beginning() {
    let detail = reading(&["Compiling x", "test a ... ok", "error: why", "more"]).detail();
    assert_eq!(detail, "error: why\nmore");
    assert_eq!(reading(&["error: no such package"]).detail(), "error: no such package");
    assert_eq!(reading(&["one", "test a ... ok", "two"]).detail(), "one\ntwo");
}

/// Many tests fail, with long messages and backtraces, of two programs; a third one crashes.
#[test]
fn u50_all_failed_tests_are_named_with_their_messages() {
    let names: Vec<String> = (0..100).map(|number| format!("part::test_{number}")).collect();
    let mut script = String::new();
    let mut say = |line: &str| script += &format!("echo '{line}'\n");
    for half in names.chunks(50) {
        say("running 51 tests");
        say("test part::test_1000 ... ok");
        half.iter().for_each(|name| say(&format!("test {name} - should panic ... FAILED")));
        say("");
        say("failures:");
        for name in half {
            for line in [
                &format!("---- {name} stdout ----"),
                "printed before",
                "",
                &format!("thread \"{name}\" (17) panicked at src/part.rs:7:9:"),
                &format!("why {name} failed"),
                "  left: 1",
                "stack backtrace:",
                "   0: core::panicking::panic",
                "             at ./src/part.rs:7:9",
                "note: run with a variable",
                "",
            ] {
                say(line);
            }
        }
        say("");
        say("failures:");
        half.iter().for_each(|name| say(&format!("    {name}")));
        say("test result: FAILED. 1 passed; 50 failed; 0 ignored");
    }
    for line in [
        "running 9 tests",
        "test crashes::early ... FAILED",
        "error: test failed, to rerun pass -p third",
        "  process did not exit successfully: (signal: 6, SIGABRT)",
    ] {
        say(line);
    }
    let shown = shown(&format!("{script}exit 101"));
    for name in &names {
        let message = format!(
            "---- {name} - should panic ----\nthread \"{name}\" (17) panicked at src/part.rs:7:9:\nwhy {name} failed\n  left: 1\n"
        );
        assert!(shown.contains(&format!("FAILED {name} - should panic\n")), "{name}: {shown}");
        assert!(shown.contains(&message), "{name}: {shown}");
    }
    assert!(shown.contains("FAILED crashes::early\n") && shown.contains("SIGABRT"), "{shown}");
    assert!(!["printed before", "core::panicking", "note: ", " ... ok"].iter().any(|it| shown.contains(it)));
}

#[test]
fn a_test_without_an_end_is_named() {
    let shown = shown(
        "echo running 2 tests; echo 'test long has been running for over 60 seconds'; echo 'test long ... ok'; \
         echo 'test endless has been running for over 60 seconds'; (while :; do :; done); echo goes on; exit 1",
    );
    assert!(shown.contains("NO END endless") && shown.contains("goes on"), "{shown}");
    assert!(!shown.contains("NO END long"), "{shown}");
}

/// What is shown of a step of tests that runs this script in cargo's place.
fn shown(script: &str) -> String {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", script]);
    let signals = Signals::default();
    let step = Step { cpu_seconds: Some(1), ..made("test ") };
    let (_, reading) = step.read(shell, &signals, |_, _| {}).expect("starts");
    reading.detail()
}

/// The counts of a step that runs this script in cargo's place.
fn told(args: &'static str, script: &str) -> (usize, usize) {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", script]);
    let (progress, signals) = (ProgressView::new(), Signals::default());
    let tally = Box::leak(Box::new(made(args))).run_by(shell, &progress, &signals).expect("starts");
    (tally.passed, tally.failed)
}

#[test]
fn u50_a_step_has_passed_only_if_cargo_says_so_and_each_binary_has() {
    let ok = "echo running 2 tests; echo 'test result: ok. 2 passed; 0 failed; 0 ignored'";
    let bad = "echo running 1 test; echo 'test result: FAILED. 0 passed; 1 failed; 0 ignored'";
    let begun = "echo running 7 tests; echo 'test a ... ok'";
    let said = "echo 'error: test failed' >&2";
    for (script, expected) in [
        (ok.to_owned(), (2, 0)),
        (format!("{ok}; {ok}"), (4, 0)),
        (format!("{ok}; {bad}; exit 101"), (2, 1)),
        // It cannot be: cargo knows of no failure.
        (format!("{ok}; {bad}"), (2, 1)),
        // A binary crashes before, between and after others, or cannot be started.
        (format!("{ok}; {begun}; {said}; exit 101"), (2, 1)),
        (format!("{begun}; {ok}; exit 101"), (2, 1)),
        (format!("{bad}; {begun}; {ok}; exit 101"), (2, 2)),
        (format!("{ok}; {said}; exit 101"), (2, 1)),
        (format!("{ok}; exit 1"), (2, 1)),
        // A test ends its process as if all were well.
        (format!("{ok}; {begun}"), (2, 1)),
        // Cargo itself is killed.
        (format!("{ok}; kill -9 $$"), (2, 1)),
        (format!("{ok}; kill -15 $$"), (2, 1)),
        // Nothing was run.
        (":".to_owned(), (0, 1)),
        ("exit 101".to_owned(), (0, 1)),
        ("echo running 0 tests; echo 'test result: ok. 0 passed; 0 failed'".to_owned(), (0, 1)),
    ] {
        assert_eq!(told("test ", &script), expected, "{script}");
    }
    for (script, expected) in
        [(":", (1, 0)), ("echo warning", (1, 0)), ("exit 1", (0, 1)), ("kill -9 $$", (0, 1))]
    {
        assert_eq!(told("clippy", script), expected, "{script}");
    }
}
