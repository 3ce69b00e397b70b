//! Loops, on the host.

use super::*;
use crate::team::{Trouble, Worker};
use serde_json::Value;
use workloads::options::reported;

/// Runs a loop, and returns its last line.
fn end_of(name: &str, threads: &str, rounds: &str) -> Value {
    let args = ["--loop", name, "--threads", threads, "--rounds", rounds, "--pages", "5"];
    let options = Options::program().parse(args).expect("parses");
    let which = options.which.expect("is named");
    let (damage, lines) = reported(|report| run(&options, which, report));
    assert_eq!(damage.unwrap_or_else(|error| panic!("{name}: {error}")), None, "{name}");
    let [_, end] = lines.try_into().expect("are two");
    end
}

#[test]
fn bad_options_are_named() {
    for (args, says) in [
        (&[][..], "--loop: the name of a loop is needed"),
        (&["--loop", "nothing"], "--loop nothing: expected one of page_fault, mmap, "),
        (&["--loop", "mmap", "--threads", "0"], "--threads 0: expected"),
        (&["--loop", "mmap", "--rounds"], "--rounds: "),
        (&["--loop", "mmap", "--pages", "0"], "--pages 0: expected"),
        (&["--loop", "mmap", "--colour", "blue"], "--colour: unknown"),
        (&["--loop", "futex", "--threads", "3"], "--threads 3: futex goes in pairs"),
        (&["--loop", "context_switch", "--threads", "1"], "--threads 1: context_switch goes in pairs"),
    ] {
        let message = Options::program().parse(args.iter().copied()).expect_err("is refused");
        assert!(message.starts_with(says), "{args:?}: {message}");
    }
}

#[test]
fn names_are_unique_and_the_help_has_them() {
    let usage = usage();
    for (index, each) in LOOPS.iter().enumerate() {
        assert!(LOOPS[..index].iter().all(|other| other.name != each.name), "{} twice", each.name);
        assert!(usage.contains(&format!("\n  {} ", each.name)), "{usage}");
        assert!(
            Options::program().parse(["--loop", each.name]).is_ok(),
            "{}: as it is called without more",
            each.name
        );
    }
    for line in usage.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn every_loop_makes_every_round_of_every_thread() {
    for each in &LOOPS {
        // More rounds than a page has words, and than the mapping has pages.
        let end = end_of(each.name, "4", "600");
        assert_eq!((&end["event"], &end["loop"]), (&"end".into(), &each.name.into()));
        assert_eq!((&end["rounds_total"], &end["damaged"]), (&2400.into(), &false.into()), "{end}");
        let ns = end["ns"].as_f64().expect("is a number");
        let per_round = end["ns_per_round"].as_f64().expect("is a number");
        assert!(ns > 0.0 && (per_round * 2400.0 - ns).abs() < 2400.0, "{end}");
    }
}

/// Workers, the second of which has `trouble` in its round 3.
fn with_trouble(trouble: fn() -> Trouble) -> Vec<Worker> {
    let fine: Worker = Box::new(|_| Ok(()));
    vec![fine, Box::new(move |round| if round == 3 { Err(trouble()) } else { Ok(()) })]
}

#[test]
fn damage_is_told_with_its_place() {
    let damage = team::run(with_trouble(|| Trouble::Wrong("it is blue".into())), 10).expect("runs");
    assert_eq!(damage, Some(Damage { thread: 1, round: 3, what: "it is blue".into() }));
    let error = team::run(with_trouble(|| io::Error::other("no").into()), 10).expect_err("is refused");
    assert_eq!(error.to_string(), "thread 1, round 3: no");
}

#[test]
fn a_partner_that_ends_early_is_not_waited_for() {
    for name in ["context_switch", "futex"] {
        let each = Loop::named(name).expect("is there");
        for left in 0..2 {
            let mut workers = (each.workers)(Size { threads: 2, pages: 1 }).expect("makes");
            let mut worker = workers.remove(left);
            let ends_early: Worker =
                Box::new(
                    move |round| {
                        if round == 2 { Err(Trouble::Wrong("left".into())) } else { worker(round) }
                    },
                );
            workers.insert(left, ends_early);
            let damage = team::run(workers, 1000).expect("runs").expect("is found");
            assert_eq!((damage.thread, damage.round), (left, 2), "{name}");
        }
    }
}

#[test]
fn a_page_that_is_not_what_was_stored_is_damage() {
    assert!(
        matches!(team::expect("it", 1, 2), Err(Trouble::Wrong(what)) if what == "it is 0x1 instead of 0x2")
    );
    assert!(team::expect("it", 2, 2).is_ok());
}
