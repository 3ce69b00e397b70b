//! Programs as a guest starts them, on this machine.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{self, Command, Output};
use std::{env, fs};

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// Runs a program that succeeds; its last report.
fn end_of(program: &str, args: &[&str]) -> Value {
    let output = run(program, args);
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{args:?}: {:?}: {said}{errors}", output.status);
    let last = said.lines().last().unwrap_or_else(|| panic!("{args:?}: says nothing"));
    let end: Value = serde_json::from_str(last).unwrap_or_else(|error| panic!("{last}: {error}"));
    assert_eq!(end["event"], "end", "{end}");
    end
}

const LOOPS: &str = env!("CARGO_BIN_EXE_loops");
const MIXED: &str = env!("CARGO_BIN_EXE_mixed");

/// Each program, a part of its help, and command lines that are wrong in their first option.
const PROGRAMS: [(&str, &str, &[&str]); 8] = [
    (LOOPS, "--loop NAME", &["--colour blue", "--threads 0"]),
    (
        MIXED,
        "--jobs N",
        &["--jobs 0", "--jobs many", "--tasks", "--tasks -1", "--colour blue", "--compile x"],
    ),
    (
        env!("CARGO_BIN_EXE_thrash"),
        "--chunks N",
        &["--threads 0", "--threads many", "--rounds", "--pages -1", "--chunks 65537", "--colour blue"],
    ),
    (
        env!("CARGO_BIN_EXE_battery"),
        "--only NAME",
        &["--only nothing", "--rounds 0", "--report", "--colour blue"],
    ),
    (env!("CARGO_BIN_EXE_stale"), "--seconds N", &["--threads 1", "--seconds 0", "--pages", "--colour blue"]),
    (
        env!("CARGO_BIN_EXE_mmtest"),
        "--toggles N",
        &["--threads 0", "--memory x", "--toggles", "--passes 0", "--colour 1"],
    ),
    (
        env!("CARGO_BIN_EXE_kvmslots"),
        "--elsewhere N",
        &[
            "--mib 0",
            "--mib 2561",
            "--pages 0",
            "--elsewhere 2561",
            "--rounds",
            "--part some",
            "--log manually",
            "--colour blue",
        ],
    ),
    (env!("CARGO_BIN_EXE_occupy"), "--at ADDRESS", &["--at 0", "--mib 0", "--colour blue"]),
];

#[test]
fn help_is_no_error_and_what_is_wrong_is() {
    for (program, says, all_wrong) in PROGRAMS {
        let help = run(program, &["--help"]);
        assert_eq!(help.status.code(), Some(0));
        assert!(String::from_utf8_lossy(&help.stdout).contains(says));
        for wrong in all_wrong {
            let words: Vec<_> = wrong.split(' ').collect();
            let output = run(program, &words);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{wrong}: {said}");
            let why = said.split_once(": ").map_or("", |(_, why)| why);
            assert!(why.starts_with(words[0]) && said.contains(says), "{wrong}: {said}");
            assert!(words[0] != "--colour" || why.starts_with("--colour: unknown"), "{said}");
        }
    }
}

#[test]
fn a_loop_touches_the_pages_that_it_says() {
    let faults = |name| {
        let args = ["--loop", name, "--threads", "1", "--rounds", "500", "--pages", "5"];
        end_of(LOOPS, &args)["faults"].as_u64().expect("is a number")
    };
    assert!(faults("page_fault") >= 2500, "each page of each mapping");
    assert!(faults("tlb_flush1") >= 500, "each page that was discarded");
    assert!(faults("tlb_flush3") >= 500, "each page of the file");
    assert!(faults("mmap") < 500, "none of it");
}

/// A directory for a test's files.
fn directory(name: &str) -> PathBuf {
    let path = env::temp_dir().join(format!("quell-{name}-{}", process::id()));
    fs::create_dir(&path).expect("makes");
    path
}

#[test]
fn all_tasks_are_done_and_their_files_removed() {
    let parent = directory("mixed");
    let path = parent.to_str().expect("is text");
    let end = end_of(MIXED, &["--jobs", "3", "--tasks", "10", "--directory", path]);
    assert_eq!((&end["tasks"], &end["processes"], &end["damaged"]), (&10.into(), &30.into(), &false.into()));
    let ns = end["ns"].as_f64().expect("is a number");
    assert!(ns > 0.0 && (end["ns_per_task"].as_f64().expect("is a number") * 10.0 - ns).abs() < 10.0);
    // Each driver has 64 pages that it writes to twice while another process has them.
    assert!(end["faults"].as_u64() > Some(10 * 128), "{end}");
    assert_eq!(fs::read_dir(&parent).expect("reads").count(), 0);
    fs::remove_dir(parent).expect("removes");
}

#[test]
fn a_task_that_fails_is_an_error() {
    let parent = directory("mixed-fails");
    let path = parent.to_str().expect("is text");
    let driver = run(MIXED, &["--directory", path, "--drive", "0"]);
    assert_eq!(driver.status.code(), Some(3));
    let said = String::from_utf8_lossy(&driver.stderr);
    assert!(said.contains("mixed: --drive: compile ended with status 3"), "{said}");
    fs::remove_dir(&parent).expect("removes");
    let nowhere = run(MIXED, &["--directory", path]);
    assert_eq!(nowhere.status.code(), Some(3));
}
