//! Conversations with machines that a test plays, and the directory in which they are found.

use super::*;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

/// A hypervisor that answers the first real request with `answer`, `#` being its number.
fn answering(answer: &'static str) -> (tempfile::TempDir, Found, thread::JoinHandle<String>) {
    let directory = tempfile::tempdir().expect("makes");
    let socket = directory.path().join("m");
    let listener = UnixListener::bind(&socket).expect("binds");
    let server = thread::spawn(move || {
        let (stream, _) = listener.accept().expect("is asked");
        let mut lines = BufReader::new(stream.try_clone().expect("clones")).lines();
        let request = lines.by_ref().map_while(Result::ok).find(|line| !line.is_empty()).expect("asks");
        let (number, text) = request.split_once(' ').expect("has a number");
        (&stream).write_all(answer.replace('#', number).as_bytes()).expect("takes it");
        text.to_owned()
    });
    (directory, Found { name: "1".into(), socket }, server)
}

#[test]
fn records_are_collected_and_others_answers_are_skipped() {
    let (_directory, machine, server) = answering("7 ok\n8 error old\n# : a=1\n# : b=2\r\n# ok\n");
    let records = Control::open(&machine).expect("opens").ask(&Request::Slots).expect("is answered");
    assert_eq!(records, ["a=1", "b=2"]);
    assert_eq!(server.join().expect("ends"), "slots");
}

#[test]
fn a_refusal_and_an_end_are_errors_that_say_so() {
    for (answer, expected) in
        [("# error it overlaps slot 0\n", "it overlaps slot 0"), ("# : a=1\n", "before it had answered")]
    {
        let (_directory, machine, server) = answering(answer);
        let request = Request::Delete { slot: 3 };
        let error = Control::open(&machine).expect("opens").ask(&request).expect_err("fails");
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(server.join().expect("ends"), "delete 3");
    }
}

#[test]
fn patience_has_an_end() {
    let directory = tempfile::tempdir().expect("makes");
    let machine = Found { name: "1".into(), socket: directory.path().join("m") };
    // It takes the conversation, and says nothing.
    let _silent = UnixListener::bind(&machine.socket).expect("binds");
    let mut patient = Control::open(&machine).expect("opens").with_patience(Duration::from_secs(1));
    let error = patient.ask(&Request::Slots).expect_err("is not answered");
    assert!(error.to_string().contains("has not answered for 1 s"), "{error}");
}

#[test]
fn u17_a_signal_ends_the_wait_for_an_answer() {
    let directory = tempfile::tempdir().expect("makes");
    let machine = Found { name: "1".into(), socket: directory.path().join("m") };
    let _silent = UnixListener::bind(&machine.socket).expect("binds");
    let mut control = Control::open(&machine).expect("opens").until(&Signals::with_caught(15));
    let error = control.ask(&Request::Slots).expect_err("is not answered");
    assert!(error.to_string().contains("ended by signal 15"), "{error}");
}

#[test]
fn u17_a_directory_that_others_can_use_is_not_looked_into() {
    let (uid, top) = (getuid().as_raw(), tempfile::tempdir().expect("makes"));
    let place = top.path().join("quell");
    assert_eq!(running_in(&place, uid).expect("nothing is there"), []);
    let refused = |path: &Path, uid| format!("{:#}", running_in(path, uid).expect_err("is refused"));

    DirBuilder::new().mode(0o700).create(&place).expect("makes");
    let socket = place.join(process::id().to_string()).with_extension(SUFFIX);
    fs::write(&socket, "").expect("writes");
    // Of a process that has ended: it is removed if the directory is ours, and left if it is not.
    let stale = place.join("999999999.ctl");
    fs::write(&stale, "").expect("writes");
    for mode in [0o777, 0o770, 0o755, 0o701] {
        fs::set_permissions(&place, Permissions::from_mode(mode)).expect("changes");
        assert!(refused(&place, uid).contains("open to others"), "{mode:o}");
    }
    fs::set_permissions(&place, Permissions::from_mode(0o700)).expect("changes");
    assert!(refused(&place, uid + 1).contains("somebody else"));
    let link = top.path().join("link");
    symlink(&place, &link).expect("links");
    assert!(refused(&link, uid).contains("not a directory"));
    assert!(refused(&socket, uid).contains("not a directory"));
    assert!(stale.exists(), "nothing was done there");

    let found = running_in(&place, uid).expect("is ours");
    assert!(found.len() == 1 && found[0].socket == socket && !stale.exists(), "{found:?}");
}

#[test]
fn who_observes_records_sees_each_and_may_end_the_conversation() {
    let (_directory, machine, server) = answering("# : a=1\n# : b=2\n# ok\n");
    let mut seen = Vec::new();
    let mut control = Control::open(&machine).expect("opens").with_patience(Duration::from_secs(5));
    let error = control
        .ask_each(&Request::Slots, |record| {
            seen.push(record.to_owned());
            if record == "b=2" { bail!("enough") } else { Ok(()) }
        })
        .expect_err("fails");
    assert_eq!((error.to_string().as_str(), seen), ("enough", vec!["a=1".to_owned(), "b=2".to_owned()]));
    assert_eq!(server.join().expect("ends"), "slots");
}

#[test]
fn notices_of_dead_processes_are_removed_and_none_is_a_machine() {
    let (uid, directory) = (getuid().as_raw(), tempfile::tempdir().expect("makes"));
    let place = directory.path();
    fs::set_permissions(place, Permissions::from_mode(0o700)).expect("changes");
    let file = |name: &str| {
        let path = place.join(name);
        fs::write(&path, "").expect("writes");
        path
    };
    let dead = ["999999999.json", "999999999-2.json", "999999999.part"].map(file);
    let me = process::id();
    let alive = [format!("{me}.json"), format!("{me}.part")].map(|name| file(&name));
    let others = file("999999999.txt");
    assert_eq!(running_in(place, uid).expect("looks"), [], "a notice alone is no machine");
    assert!(dead.iter().all(|path| !path.exists()) && alive.iter().all(|path| path.exists()));
    assert!(others.exists(), "what is not ours is left");
}

#[test]
fn a_notice_goes_with_the_registration() {
    let directory = tempfile::tempdir().expect("makes");
    let machine = Found::made_up(&process::id().to_string(), directory.path());
    let ram = crate::machine::ram::Ram::new(4096, 0).expect("makes");
    let notice = Notice::new(crate::arch::Arch::Aarch64, &ram, 0, Path::new("/b")).expect("says");
    let registration = Registration(machine.socket.clone());
    assert_eq!(machine.notice().expect("none is there"), None);
    registration.publish(&notice).expect("writes");
    assert_eq!(machine.notice().expect("reads"), Some(notice));
    assert!(machine.is_alive());
    drop(registration);
    assert_eq!(machine.notice().expect("it has gone"), None);
    assert!(!machine.is_alive(), "its process, which is this one, goes on");
}

#[test]
fn the_machine_that_is_meant_is_the_only_one_or_named() {
    let machine = |name: &str| Found::made_up(name, Path::new("/nowhere"));
    let error = |name, all: &[Found]| format!("{:#}", choose(name, all).expect_err("is refused"));
    assert!(error(None, &[]).contains("./quell run") && error(Some("1"), &[]).contains("./quell run"));
    let two = [machine("1"), machine("2")];
    assert!(error(None, &two).contains("by --vm: 1, 2") && error(Some("3"), &two).contains("no machine 3"));
    assert_eq!(choose(Some("2"), &two).expect("is there"), two[1]);
    assert_eq!(choose(None, &two[..1]).expect("is there"), two[0]);
}

#[test]
fn names_of_dead_processes_are_not_alive() {
    assert!(is_alive(&process::id().to_string()) && is_alive(&format!("{}-3", process::id())));
    assert!(!is_alive("0") && !is_alive("x") && !is_alive("999999999"));
}
