//! Conversations through the relay with a made-up hypervisor, which answers when the test says so.

use super::*;
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicU32, Ordering};

struct Played {
    relay: Relay,
    public: PathBuf,
    hypervisor: BufReader<UnixStream>,
    _directory: TempDir,
}

fn played() -> Played {
    played_from(|| true)
}

fn played_from(has_begun: impl Fn() -> bool + Send + 'static) -> Played {
    let directory = tempfile::tempdir().expect("makes");
    let (public, private) = (directory.path().join("public"), directory.path().join("private"));
    let relay = Relay::start(&public, &private, has_begun).expect("starts");
    let hypervisor = BufReader::new(UnixStream::connect(private).expect("connects"));
    Played { relay, public, hypervisor, _directory: directory }
}

impl Played {
    fn talker(&self) -> BufReader<UnixStream> {
        BufReader::new(UnixStream::connect(&self.public).expect("connects"))
    }

    fn told(&mut self) -> (String, String) {
        let line = line(&mut self.hypervisor);
        let (number, rest) = line.split_once(' ').unwrap_or((&line, ""));
        (number.to_owned(), rest.to_owned())
    }

    fn says(&mut self, text: &str) {
        say(&mut self.hypervisor, text);
    }
}

fn line(from: &mut BufReader<UnixStream>) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("comes");
    line.trim_end().to_owned()
}

fn say(to: &mut BufReader<UnixStream>, text: &str) {
    to.get_mut().write_all(text.as_bytes()).expect("takes it");
}

#[test]
fn what_is_asked_before_the_hypervisor_has_begun_waits_for_that() {
    const LOOKS: u32 = 5;
    let looks = Arc::new(AtomicU32::new(0));
    let looked = Arc::clone(&looks);
    let mut played = played_from(move || looked.fetch_add(1, Ordering::Relaxed) + 1 == LOOKS);
    let mut asks = played.talker();
    say(&mut asks, "1 vms\n");
    let (number, rest) = played.told();
    assert_eq!((&*rest, looks.load(Ordering::Relaxed)), ("vms", LOOKS));
    played.says(&format!("{number} ok\n"));
    assert_eq!(line(&mut asks), "1 ok");
}

#[test]
fn u47_who_waits_for_an_answer_keeps_nobody_waiting() {
    let mut played = played();
    let (mut waits, mut asks) = (played.talker(), played.talker());
    // Both choose the same number.
    say(&mut waits, "\n7 guest-pause low\n");
    let (pause, rest) = played.told();
    assert_eq!(rest, "guest-pause low");
    say(&mut asks, "7 memory\n");
    let (memory, rest) = played.told();
    assert_eq!(rest, "memory");
    assert_ne!(pause, memory);
    played.says(&format!("{memory} : free=0x1000\n"));
    assert_eq!(line(&mut asks), "7 : free=0x1000");
    assert_eq!(played.told().0, format!("+{memory}"));
    played.says(&format!("{memory} ok\n"));
    assert_eq!(line(&mut asks), "7 ok");
    played.says(&format!("{pause} error why\n"));
    assert_eq!(line(&mut waits), "7 error why");
}

#[test]
fn u47_who_takes_no_record_keeps_no_request_waiting_about_the_same_guest_either() {
    let mut played = played();
    let (mut slow, mut quick) = (played.talker(), played.talker());
    say(&mut slow, "1 slots\n2 pause\n");
    let (slots, pause) = (played.told().0, played.told().0);
    // The hypervisor does not say more, or serve others about this guest, before this is taken.
    let mut records = 0;
    loop {
        played.says(&format!("{slots} : slot={records:0>100}\n"));
        records += 1;
        let (taken, _) = played.told();
        if taken == format!("-{slots}") {
            break;
        }
        assert_eq!(taken, format!("+{slots}"));
    }
    say(&mut slow, "3 vms\n");
    say(&mut quick, "1 destroy\n");
    let (destroy, _) = played.told();
    played.says(&format!("{slots} : slot=9\n{slots} ok\n{pause} ok\n{destroy} ok\n"));
    assert_eq!(line(&mut quick), "1 ok");
    // It reads late. What it says of records is nobody's.
    for record in 0..records {
        say(&mut slow, "+");
        assert_eq!(line(&mut slow), format!("1 : slot={record:0>100}"));
    }
    assert_eq!(line(&mut slow), "1 error its answer was not read");
    assert_eq!(line(&mut slow), "2 ok");
    let (vms, rest) = played.told();
    assert_eq!(rest, "vms", "it is listened to again");
    played.says(&format!("{vms} ok\n"));
    assert_eq!(line(&mut slow), "3 ok");
}

#[test]
fn the_hypervisor_is_told_who_has_gone_and_others_get_none_of_it() {
    let mut played = played();
    let (mut goes, mut stays) = (played.talker(), played.talker());
    say(&mut goes, "1 vms\n2 slots\n");
    let (first, second) = (played.told().0, played.told().0);
    drop(goes);
    assert_eq!([played.told().0, played.told().0], [format!("-{first}"), format!("-{second}")]);
    say(&mut stays, "1 vms\n");
    let (vms, _) = played.told();
    played.says(&format!("{first} : vm=0\n{first} ok\n{vms} ok\n"));
    assert_eq!(line(&mut stays), "1 ok");
}

#[test]
fn what_is_no_request_takes_nobodys_answer() {
    let mut played = played();
    let (mut bad, mut good) = (played.talker(), played.talker());
    say(&mut good, "1 vms\n");
    let (vms, _) = played.told();
    // Replies to requests of others are not passed on.
    say(&mut bad, &format!(" +{vms}\n -{vms}\n-{vms}\n"));
    for _ in 0..3 {
        assert_eq!(line(&mut bad), "0 error a request begins with a number");
    }
    say(&mut bad, "++x\nnoise\n");
    assert_eq!(played.told().0, "x");
    assert_eq!(played.told().0, "noise");
    played.says("0 error a request begins with a number\n99 ok\nwhat\n");
    assert_eq!(line(&mut bad), "0 error a request begins with a number");
    played.says(&format!("{vms} ok\n"));
    assert_eq!(line(&mut good), "1 ok");
    // The first of too many is refused here.
    for number in 0..=ASKED_MAX {
        say(&mut bad, &format!("{} vms\n", number + 10));
    }
    assert_eq!(line(&mut bad), format!("{} error too many requests at a time", ASKED_MAX + 10));
}

#[test]
fn conversations_end_with_the_machine_and_the_relay_with_its_owner() {
    let ended = played();
    let mut talker = ended.talker();
    say(&mut talker, "1 vms\n");
    let Played { relay, public, mut hypervisor, _directory } = ended;
    assert!(line(&mut hypervisor).ends_with("vms"));
    drop(hypervisor);
    assert_eq!(line(&mut talker), "", "the end of the connection");
    drop(relay);
    assert!(!public.exists());

    // QEMU never connects.
    let directory = tempfile::tempdir().expect("makes");
    let public = directory.path().join("public");
    let relay = Relay::start(&public, &directory.path().join("private"), || true).expect("starts");
    let mut early = BufReader::new(UnixStream::connect(&public).expect("connects"));
    say(&mut early, "1 vms\n");
    drop(relay);
    let mut rest = Vec::new();
    // The request was not read, which may be an error here.
    let _ = early.read_to_end(&mut rest);
    assert_eq!(rest, b"");
}
