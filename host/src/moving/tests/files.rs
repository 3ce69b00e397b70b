//! Snapshots: what is in them, and what is wrong with them.

use super::super::described::Described;
use super::super::outflow::Manner;
use super::super::policy::Wanted;
use super::super::snapshot::{Snapshot, Writer};
use super::super::source::{Origin, save_by};
use super::super::target::restore;
use super::hypervisor::{Guest, HZ, Runs, Side};
use crate::machine::control::Found;
use crate::prelude::*;
use transfer::frame::Clock;
use transfer::handover::Source;

pub(super) fn described() -> Described {
    Described::made_up(&[7; 300_000], "vcpus=1\nmemory=67108864\n")
}

pub(super) fn origin(directory: &Path) -> Origin {
    Origin {
        machine: Found::made_up("1", directory),
        guest: Name::GUEST,
        described: described(),
        ram: Arc::new(Ram::new(4096, 0).expect("makes")),
        hz: HZ,
    }
}

pub(super) fn manner(wanted: Wanted) -> Manner {
    Manner { wanted, bandwidth: None, shows: false, signals: Signals::default() }
}

pub(super) const LIVE: Wanted =
    Wanted { downtime: Duration::from_millis(50), rounds: 30, throttle: false, at_any_cost: true };

fn saved(directory: &Path, side: &Arc<Side>, keeps_running: bool) -> Result<PathBuf> {
    let path = directory.join("guest.snapshot");
    let of = origin(directory);
    let file = Writer::create(&path, &of.described)?;
    let wanted = if keeps_running { LIVE } else { Wanted::STILL };
    let moved = save_by(&of, side.send(1, 9), file, keeps_running, &manner(wanted))?;
    assert_eq!(moved.away, !keeps_running);
    Ok(path)
}

fn restored(path: &Path, runs: &Arc<Runs>) -> (Arc<Side>, Result<()>) {
    let side = Side::new(None, runs, 5);
    let arrives = || -> Result<()> {
        let mut file = Snapshot::open(path)?;
        let (kernel, initrd) = file.files()?;
        assert_eq!((kernel, initrd), (vec![7; 300_000], Some(b"initrd".to_vec())));
        restore(side.receive(), file).map(drop)
    };
    let result = arrives();
    (side, result)
}

#[test]
fn a_guest_is_restored_as_it_was_saved() {
    for keeps_running in [false, true] {
        let directory = tempfile::tempdir().expect("makes");
        let runs = Arc::new(Runs::default());
        let side = Side::new(Some(Guest::new(3)), &runs, 77);
        let path = saved(directory.path(), &side, keeps_running).expect("saves");
        assert_eq!(runs.count(), u8::from(keeps_running));
        let expected = if keeps_running { Source::Here } else { Source::Away };
        assert_eq!(*side.source.lock().unwrap(), expected);
        let others = fs::read_dir(directory.path()).expect("reads").count();
        assert_eq!(others, 2, "the socket that is none, and the file");

        let (there, result) = restored(&path, &Arc::new(Runs::default()));
        result.expect("restores");
        let guest = there.guest.lock().unwrap().take().expect("has arrived");
        assert_eq!(guest.memory, Guest::new(3).memory);
        let was = Guest::new(3).clock;
        assert_eq!((guest.clock.ticks, guest.clock.at), (was.ticks, Clock::NOW), "it was off");
        let passed = guest.clock.wall_ns - was.wall_ns;
        assert!(passed > 0 && passed < 60 * HZ, "its date is right: {passed}");
    }
}

#[test]
fn m6_m10_no_prefix_and_no_flipped_byte_of_a_file_starts_anything() {
    let directory = tempfile::tempdir().expect("makes");
    let side = Side::new(Some(Guest::new(9)), &Arc::new(Runs::default()), 0);
    let whole = fs::read(saved(directory.path(), &side, false).expect("saves")).expect("reads");
    let path = directory.path().join("bad");
    let refused = |bytes: &[u8], what: &str| {
        fs::write(&path, bytes).expect("writes");
        let runs = Arc::new(Runs::default());
        let error = match (restored(&path, &runs).1, runs.count()) {
            (Err(error), 0) => format!("{error:#}"),
            (result, count) => panic!("{what}: {result:?}, and it runs {count} times"),
        };
        assert!(error.contains("bad"), "{what}: {error}");
    };
    // All of what comes first and last, and some of what is between.
    let places = (0..700).chain((700..whole.len() - 400).step_by(7919)).chain(whole.len() - 400..whole.len());
    for at in places {
        refused(&whole[..at], &format!("cut at {at}"));
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        refused(&flipped, &format!("flipped at {at}"));
    }
    refused(&[&whole[..], b"x"].concat(), "a byte more");
    refused(b"#!/bin/sh\n", "something else");
}

#[test]
fn m10_a_file_whose_writer_is_killed_at_any_block_is_absent() {
    let directory = tempfile::tempdir().expect("makes");
    let path = directory.path().join("guest.snapshot");
    for blocks in 0..5 {
        let mut writer = Writer::create(&path, &described()).expect("begins");
        (0..blocks).for_each(|_| writer.put(&[7; 4096]).expect("writes"));
        // Nothing of it is done any more.
        std::mem::forget(writer);
        assert!(!path.exists(), "{blocks}");
    }
}

#[test]
fn m10_a_file_that_cannot_be_completed_is_absent_and_the_guest_runs() {
    let directory = tempfile::tempdir().expect("makes");
    let runs = Arc::new(Runs::default());
    let side = Side::new(Some(Guest::new(9)), &runs, 0);
    // The name is taken by a directory when the file is complete.
    let path = directory.path().join("guest.snapshot");
    let of = origin(directory.path());
    let file = Writer::create(&path, &of.described).expect("begins");
    fs::create_dir(&path).expect("makes");
    let error = save_by(&of, side.send(1, 9), file, false, &manner(Wanted::STILL)).expect_err("fails");
    assert!(format!("{error:#}").contains("cannot complete"), "{error:#}");
    let begun = Instant::now();
    while runs.count() != 1 && begun.elapsed() < Duration::from_secs(5) {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(runs.count(), 1, "it runs on");
    assert_eq!(fs::read_dir(directory.path()).expect("reads").count(), 2, "nothing else is left");
}
