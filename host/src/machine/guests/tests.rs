//! Guests and consoles, as a mock machine shows them.

use super::made::{BEACON, MockGuests, RING_BYTES};
use super::*;

#[test]
fn guests_are_read_from_their_entries() {
    let made = MockGuests::new(3);
    let entries = Entries::find(&made.ram, BEACON).expect("reads").expect("is filled in");
    assert_eq!(entries.guests(&made.ram).expect("reads"), []);
    made.fill(2, "web", GuestState::Running);
    made.fill(0, "db", GuestState::Loaded);
    let guests = entries.guests(&made.ram).expect("reads");
    let names: Vec<_> = guests.iter().map(|guest| (guest.index, guest.name.as_str())).collect();
    assert_eq!(names, [(0, "db"), (2, "web")]);
    let web = &guests[1];
    assert_eq!((web.generation, web.state, web.exit, web.vcpus), (2, GuestState::Running, None, 2));
    assert_eq!((web.counters, web.weight, web.cap, web.memory), (made::COUNTERS, 100, Some(50), 1 << 28));
    assert!(web.consoles.iter().all(|console| console.is_some_and(|ring| ring.size == RING_BYTES)));
    made.set_state(2, GuestState::Failed, ExitCode::GuestInvalid as u32);
    let web = &entries.guests(&made.ram).expect("reads")[1];
    assert_eq!((web.state, web.exit), (GuestState::Failed, Some(ExitCode::GuestInvalid)));
    made.fill(2, "mail", GuestState::Running);
    let mail = &entries.guests(&made.ram).expect("reads")[1];
    assert_eq!((mail.generation, mail.name.as_str(), mail.exit), (4, "mail", None));
}

#[test]
fn the_last_guest_is_seen_to_have_gone_elsewhere() {
    for made in [MockGuests::new(2), MockGuests::new(0)] {
        let have_gone = || Entries::have_gone(&made.ram, BEACON).expect("reads");
        made.fill(0, "web", GuestState::Running);
        assert!(!have_gone());
        made.clear(0);
        assert!(!have_gone(), "it was destroyed");
        made.set_state(0, GuestState::Empty, GONE);
        assert!(have_gone());
        made.fill(0, "web", GuestState::Running);
        assert!(!have_gone(), "and another one came");
    }
    let empty = Ram::new(0x4000, 0).expect("makes");
    assert!(!Entries::have_gone(&empty, BEACON).expect("reads"), "it has not begun");
}

#[test]
fn entries_that_change_or_make_no_sense_are_left_out() {
    let made = MockGuests::new(1);
    let entries = Entries::find(&made.ram, BEACON).expect("reads").expect("is filled in");
    let guests = || entries.guests(&made.ram).expect("reads");
    made.fill(0, "web", GuestState::Running);
    let state = MockGuests::field(0, offset_of!(GuestEntry, state));
    made.put(state, GuestState::Running as u64 | 3 << 32);
    assert_eq!(guests(), [], "it is being changed");
    made.put(state, 99 | 4 << 32);
    assert_eq!(guests(), [], "there is no such state");
    made.put(state, GuestState::Running as u64 | 4 << 32);
    made.put(MockGuests::field(0, 0), u64::from_le_bytes(*b"Web\0\0\0\0\0"));
    assert_eq!(guests(), [], "that is no name");
    made.fill(0, "web", GuestState::Running);
    for (ring, size) in [(0, 64), (0x10000, 0), (0x10000, 65), (0x10000, 1 << 30), (0x10000, 4)] {
        made.put(MockGuests::field(0, offset_of!(GuestEntry, consoles)), ring);
        made.put(MockGuests::field(0, offset_of!(GuestEntry, consoles) + 8), size);
        assert_eq!(guests()[0].consoles[0], None, "{ring:#x} {size}");
    }
}

#[test]
fn a_beacon_may_be_empty_or_of_one_guest_or_nonsense() {
    let ram = Ram::new(0x4000, 0).expect("makes");
    assert_eq!(Entries::find(&ram, BEACON).expect("reads"), None);
    let single = MockGuests::new(0);
    assert!(Entries::find(&single.ram, BEACON).expect("reads").is_some_and(|entries| entries.is_empty()));
    assert!(Entries::find(&MockGuests::new(65).ram, BEACON).is_err());
    assert!(Entries::find(&ram, u64::MAX).is_err());
    let made = MockGuests::new(2);
    made.put(BEACON + offset_of!(Beacon, guests) as u64, u64::MAX - 7);
    let entries = Entries::find(&made.ram, BEACON).expect("reads").expect("is filled in");
    assert!(entries.guests(&made.ram).is_err());
}

#[test]
fn a_console_is_followed_and_what_is_lost_is_counted() {
    let made = MockGuests::new(1);
    made.fill(0, "web", GuestState::Running);
    let entries = Entries::find(&made.ram, BEACON).expect("reads").expect("is filled in");
    let place = entries.guests(&made.ram).expect("reads")[0].consoles[0].expect("has one");
    let mut follower = Follower::new(place);
    let mut buffer = [0; 128];
    let mut read = || {
        let Taken { lost, items: bytes } = follower.read(&made.ram, &mut buffer).expect("reads");
        (lost, String::from_utf8_lossy(bytes).into_owned())
    };
    assert_eq!(read(), (0, String::new()));
    made.write(0, 0, b"hello\r\n");
    assert_eq!(read(), (0, "hello\r\n".to_owned()));
    made.write(0, 0, &[b'x'; 100]);
    assert_eq!(read(), (37, "x".repeat(63)));
}
