//! Snapshots: what is in them, and what is wrong with them.

use super::super::arrivals::restore_from;
use super::super::manifest::Described;
use super::super::outflow::Manner;
use super::super::policy::Wanted;
use super::super::port::Meanwhile;
use super::super::snapshot::{Snapshot, Writer};
use super::super::source::{InDoubt, Moved, fill, give, save, save_by};
use super::super::target::receive;
use super::machines::{LONG, Side, described};
use super::world::WANTED;
use crate::cli::Overrides;
use crate::machine_file::MachineFile;
use crate::prelude::*;
use hostlink::ctl::SendWay;
use hostlink::guests::GuestState::{Empty, Given, Running};
use std::os::unix::fs::{PermissionsExt, symlink};

fn saved(side: &Side, path: &Path, keeps_running: bool) -> Result<Moved> {
    let wanted = if keeps_running { WANTED } else { Wanted::STILL };
    save(&side.origin, path, keeps_running, &Manner::new(wanted, Signals::default()))
}

fn restored(path: &Path, to: &Side) -> Result<()> {
    let mut file = Snapshot::open(path)?;
    let (kernel, initrd) = file.files()?;
    assert_eq!((kernel, initrd), (vec![7; 300_000], Some(b"initrd".to_vec())));
    let begin =
        |meanwhile: &mut Meanwhile<'_>| receive(&to.origin.machine, &to.origin.ram, Name::GUEST, meanwhile);
    assert!(!restore_from(Name::GUEST, path, &file.description, begin)?, "it was not paused");
    Ok(())
}

/// A machine whose guest runs, and one without a guest.
fn sides() -> (TempDir, Side, Side) {
    let directory = tempfile::tempdir().expect("makes");
    let side = |name, has_guest| Side::start(directory.path(), name, has_guest, LONG);
    let (here, there) = (side("here", true), side("there", false));
    (directory, here, there)
}

/// What is in a directory besides what machines have there.
fn files(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).expect("reads").map(|entry| entry.expect("is one").file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| ![".ctl", ".port", ".socket"].iter().any(|end| name.ends_with(end))).collect()
}

#[test]
fn a_guest_is_restored_as_it_was_saved() {
    let (directory, here, there) = sides();
    let path = directory.path().join("guest.snapshot");
    for keeps_running in [true, false] {
        let moved = saved(&here, &path, keeps_running).expect("saves");
        assert_eq!(moved.away, !keeps_running);
        here.until_it_is(if keeps_running { Running } else { Empty });
        assert_eq!(files(directory.path()), ["guest.snapshot"]);
        let mode = fs::metadata(&path).expect("is there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "it has all of the guest's memory");
    }
    restored(&path, &there).expect("restores");
    there.until_it_is(Running);
    // What it stored is there: otherwise its next look ends the machine.
    assert!(saved(&there, &path, false).expect("saves again").away);
}

#[test]
fn m10_a_save_whose_command_was_killed_is_found_out_by_the_same_one() {
    let (directory, here, there) = sides();
    let path = directory.path().join("guest.snapshot");
    let manner = Manner::new(Wanted::STILL, Signals::default());
    let mut file = Writer::create(&path, &described()).expect("begins");
    let mut out = here.origin.outflow(&manner);
    // All that it does before it is killed: the file is complete, and the hypervisor has heard so.
    let talk = here.origin.begin(file.session(), SendWay::Still, &manner.signals).expect("begins");
    let talk = fill(talk, &mut out, &mut file, &manner.signals).expect("is written");
    file.finish().expect("is complete");
    drop(give(talk, &mut out).expect("is given"));
    here.until_it_is(Given);
    let elsewhere = saved(&here, &directory.path().join("other"), false).expect_err("is in doubt");
    assert!(elsewhere.is::<InDoubt>(), "{elsewhere:#}");
    let whole = fs::read(&path).expect("reads");
    fs::write(&path, &whole[..whole.len() - 1]).expect("writes");
    assert!(saved(&here, &path, false).expect_err("was damaged").is::<InDoubt>());
    assert_eq!(here.state(), Given);
    fs::write(&path, whole).expect("writes");
    let moved = saved(&here, &path, false).expect("finds out");
    assert!(moved.away && moved.bytes > 300_000, "{moved:?}");
    here.until_it_is(Empty);
    restored(&path, &there).expect("restores");
    there.until_it_is(Running);
}

#[test]
fn what_is_no_file_is_not_replaced() {
    let (directory, here, _) = sides();
    let path = |name: &str| directory.path().join(name);
    rustix::fs::mkfifoat(rustix::fs::CWD, path("pipe"), rustix::fs::Mode::RUSR).expect("makes");
    symlink("/dev/null", path("link")).expect("links");
    fs::create_dir(path("directory")).expect("makes");
    for name in ["pipe", "link", "directory", "here.ctl"] {
        let error = format!("{:#}", saved(&here, &path(name), false).expect_err(name));
        assert!(error.contains("is not a file"), "{name}: {error}");
    }
    assert_eq!(here.state(), Running);
    // A link to a file stays one.
    fs::write(path("file"), "before").expect("writes");
    symlink(path("file"), path("to-file")).expect("links");
    saved(&here, &path("to-file"), true).expect("saves");
    assert!(path("to-file").is_symlink() && fs::read(path("file")).expect("reads").len() > 300_000);
}

#[test]
fn m6_a_file_names_its_kernel_and_a_guest_that_no_machine_takes_is_not_saved() {
    let directory = tempfile::tempdir().expect("makes");
    let path = directory.path().join("guest.snapshot");
    let mut wrong = described();
    wrong.kernel.fill(8);
    Writer::create(&path, &wrong).expect("begins").finish().expect("completes");
    let error = Snapshot::open(&path).expect("is one").files().expect_err("is another kernel");
    assert!(error.to_string().ends_with("its kernel is not the one that it names"), "{error:#}");
    let wrong = Described::made_up(b"kernel", "reset=panic\n");
    assert!(Writer::create(&path, &wrong).is_err());
}

#[test]
fn m11_a_check_warns_of_a_file_that_was_restored_before() {
    let directory = tempfile::tempdir().expect("makes");
    let path = directory.path().join("guest.snapshot");
    let machine = directory.path().join("m.toml");
    fs::write(&machine, "[[guest]]\nname = \"web\"\nrestore = \"guest.snapshot\"\n").expect("writes");
    let check = || {
        let file = MachineFile::read(&machine, Overrides::default()).expect("is right");
        (file.table().contains("guest.snapshot was restored before, on 2"), file.json()["guests"][0].clone())
    };
    for _ in 0..2 {
        Writer::create(&path, &described()).expect("begins").finish().expect("completes");
        let (warns, json) = check();
        assert!(!warns && json["warning"].is_null(), "{json}");
        Snapshot::open(&path).expect("is one").note_restored().expect("writes");
        let (warns, json) = check();
        assert!(warns && json["warning"].is_string(), "{json}");
    }
}

#[test]
fn m6_m10_no_prefix_and_no_flipped_byte_of_a_file_starts_anything() {
    let (directory, here, there) = sides();
    let path = directory.path().join("bad");
    saved(&here, &path, false).expect("saves");
    let whole = fs::read(&path).expect("reads");
    let refused = |bytes: &[u8], what: &str| {
        fs::write(&path, bytes).expect("writes");
        let error = format!("{:#}", restored(&path, &there).expect_err(what));
        assert_ne!(there.state(), Running, "{what}");
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
        assert_eq!(files(directory.path()), [""; 0], "{blocks}");
    }
}

#[test]
fn m10_a_file_that_cannot_be_completed_is_absent_and_the_guest_runs() {
    let (directory, here, _) = sides();
    // The name is taken by a directory when the file is complete.
    let path = directory.path().join("guest.snapshot");
    let file = Writer::create(&path, &described()).expect("begins");
    fs::create_dir(&path).expect("makes");
    let manner = Manner::new(Wanted::STILL, Signals::default());
    let talk = here.origin.begin(file.session(), SendWay::Still, &manner.signals).expect("begins");
    let error = save_by(&here.origin, talk, file, false, &manner).expect_err("fails");
    assert!(format!("{error:#}").contains("cannot complete"), "{error:#}");
    here.until_it_is(Running);
    assert_eq!(files(directory.path()), ["guest.snapshot"], "nothing else is left");
}
