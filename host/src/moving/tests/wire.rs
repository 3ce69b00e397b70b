//! Addresses, secrets, and places to listen at.

use super::super::wire::{Address, Link, Listener, Secret};
use super::world::secret;
use crate::prelude::*;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

#[test]
fn addresses_are_on_this_machine_and_the_same_wherever_they_are_written() {
    let address = |text: &str| Address::parse(text);
    for text in ["tcp:127.0.0.1:7001", "tcp:localhost:7001", "tcp:[::1]:7001", "unix:/a/b"] {
        address(text).expect(text);
    }
    assert_eq!(address("tcp:localhost:7001"), address("tcp:127.0.0.1:7001"));
    let directory = tempfile::tempdir().expect("makes");
    let link = directory.path().join("link");
    symlink(directory.path(), &link).expect("links");
    let of = |path: &Path| address(&format!("unix:{}", path.join("s").display())).expect("is one");
    assert_eq!(of(&link).tag(), of(directory.path()).tag());
    assert_ne!(of(&link).tag(), address("tcp:127.0.0.1:7001").expect("is one").tag());
    let refused = |text: &str| address(text).expect_err(text);
    assert!(refused("tcp:192.0.2.1:7001").contains("ssh -L"));
    for text in ["", "unix:", "tcp:7001", "tcp:example.org:1", "/a/b"] {
        assert!(refused(text).contains("write unix:PATH"), "{text}");
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
    fs::write(&path, "short").expect("writes");
    assert!(refused().contains("16 to 4096 bytes"));
}

#[test]
fn a_socket_whose_machine_is_gone_is_taken_and_no_other() {
    let directory = tempfile::tempdir().expect("makes");
    let path = directory.path().join("socket");
    let address = Address::parse(&format!("unix:{}", path.display())).expect("is one");
    let connects = || Link::connect(&address, &secret(), &Signals::default()).err().expect("fails");
    let is_gone = |error: &Error| error.is::<super::super::wire::Gone>();
    assert!(!is_gone(&connects()), "that there is no file proves nothing");
    let other = UnixListener::bind(&path).expect("binds");
    assert!(Listener::bind(&address).is_err(), "somebody listens");
    drop(other);
    assert!(is_gone(&connects()), "nobody listens");
    Listener::bind(&address).expect("is taken");
}
