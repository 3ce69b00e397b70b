//! Addresses, secrets, and places to listen at.

use super::super::outflow::Manner;
use super::super::place::{Address, Listener};
use super::super::source::{Destination, migrate};
use super::super::wire::{Link, Secret};
use super::machines::{LONG, Side, address as at};
use super::world::WANTED;
use crate::prelude::*;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};

#[test]
fn addresses_are_sockets_on_this_machine() {
    assert_eq!(Address::parse("unix:/a/b").expect("is one").to_string(), "unix:/a/b");
    for text in ["", "unix:", "tcp:127.0.0.1:7001", "/a/b"] {
        assert!(Address::parse(text).expect_err(text).contains("write unix:PATH"), "{text}");
    }
}

#[test]
fn a_secret_is_its_users_alone_and_long_enough() {
    let directory = tempfile::tempdir().expect("makes");
    let path = directory.path().join("secret");
    let refused = || format!("{:#}", Secret::read(&path).err().expect("is refused"));
    assert!(refused().contains("cannot open") && refused().contains("/dev/urandom"));
    fs::write(&path, "sixteen bytes ..").expect("writes");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("sets");
    assert!(refused().contains("open to others (mode 640)"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("sets");
    Secret::read(&path).expect("is one");
    for length in [15, 4097] {
        fs::write(&path, vec![b'x'; length]).expect("writes");
        assert!(refused().contains("16 to 4096 bytes"), "{length}");
    }
}

#[test]
fn a_socket_whose_machine_is_gone_is_taken_and_nothing_else() {
    let directory = tempfile::tempdir().expect("makes");
    let path = |name: &str| directory.path().join(name);
    let refused = |path: &Path| format!("{:#}", Listener::bind(&at(path)).expect_err("is refused"));
    fs::write(path("file"), "a disk").expect("writes");
    symlink(path("file"), path("link")).expect("links");
    for name in ["file", "link"] {
        assert!(refused(&path(name)).contains("is not a socket"), "{name}");
    }
    assert_eq!(fs::read(path("file")).expect("is there"), b"a disk");
    let other = UnixListener::bind(path("socket")).expect("binds");
    assert!(refused(&path("socket")).contains("somebody listens there already"));
    drop(other);
    let listener = Listener::bind(&at(&path("socket"))).expect("is taken");
    let mode = fs::metadata(path("socket")).expect("is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it is its user's alone");
    drop(listener);
    // Of those that start together one listens, and it is the one that is found.
    for _ in 0..50 {
        let address = at(&path("socket"));
        let bound: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| Listener::bind(&address))).collect();
            threads.into_iter().filter_map(|thread| thread.join().expect("ends").ok()).collect()
        });
        let [listener] = &bound[..] else { panic!("{} listen", bound.len()) };
        let _found = UnixStream::connect(path("socket")).expect("connects");
        let begun = Instant::now();
        let accepted = listener.accept(|| begun.elapsed() > LONG).expect("listens");
        assert!(accepted.is_some(), "whoever connects finds the one that listens");
    }
}

#[test]
fn who_finds_the_queue_full_waits_for_a_place_or_a_signal() {
    let directory = tempfile::tempdir().expect("makes");
    let address = at(&directory.path().join("socket"));
    let listener = Listener::bind(&address).expect("binds");
    let ended = Signals::default();
    ended.catch(2);
    let (mut queue, mut is_full) = (Vec::new(), None);
    while is_full.is_none() {
        match address.connect(&ended, LONG) {
            Ok(stream) => queue.push(stream),
            Err(error) => is_full = Some(error.kind()),
        }
    }
    assert_eq!(is_full, Some(ErrorKind::WouldBlock), "who waits hears signals");
    let impatient = address.connect(&Signals::default(), Duration::ZERO).map_err(|error| error.kind());
    assert_eq!(impatient.err(), Some(ErrorKind::WouldBlock));
    let has_place = thread::scope(|scope| {
        let waits = scope.spawn(|| address.connect(&Signals::default(), LONG));
        // However long it has waited.
        thread::sleep(Duration::from_millis(100));
        listener.accept(|| false).expect("listens");
        waits.join().expect("ends")
    });
    assert!(has_place.is_ok(), "{has_place:?}");
}

#[test]
fn m2_a_side_that_takes_nothing_is_given_up_when_patience_ends() {
    let [mut source, _target] = Link::pair(Duration::from_millis(300));
    let lost = (0..1000).find_map(|_| source.send(&[7; 65536]).err()).expect("there is no such queue");
    assert!(lost.to_string().starts_with("the other side has taken nothing for "), "{lost:#}");
}

#[test]
fn those_who_connect_and_say_nothing_keep_nobody_waiting_and_fill_no_log() {
    let directory = tempfile::tempdir().expect("makes");
    let side = |name, has_guest| Side::start(directory.path(), name, has_guest, LONG);
    let (here, there) = (side("here", true), side("there", false));
    let silent: Vec<_> = (0..40).map(|_| UnixStream::connect(&there.path).expect("connects")).collect();
    let (address, secret) = (at(&there.path), super::machines::secret());
    let manner = Manner::new(WANTED, Signals::default());
    let moved = migrate(&here.origin, &Destination { address, secret }, &manner).expect("moves");
    assert!(moved.away);
    drop(silent);
    for _ in 0..200 {
        drop(UnixStream::connect(&there.path));
    }
    let lines = there.said.lock().expect("is read").len();
    assert!(lines <= 3, "{lines} lines about connections without the secret");
}
