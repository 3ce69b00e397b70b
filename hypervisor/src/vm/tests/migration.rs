//! A guest that is sent and received, by a host tool that cuts the connection wherever it likes.
//!
//! Both guests are on one machine: what the first one's channel brings goes to the second one's.

use core::ptr;
use std::sync::{Arc, Mutex};

use baremetal::random::Random;
use hostlink::guests::GuestState;
use migration::channel::{End, Sizes};
use migration::frame::{HEADER, Header, Kind, PAGE, Round};
use zerocopy::{FromBytes, IntoBytes};

use super::Op::*;
use crate::vm::arch::Arch;
use crate::vm::mock::MockBoard as Board;
use crate::vm::mock::processor::{MockArch, OFF, Op, create_several};

const HERE: &str = "name=here\nvcpus=2\nmemory=4194304\nparanoid=on";
const THERE: &str = "name=there\nvcpus=2\nmemory=4194304\nparanoid=on\nstart=manual";

/// The guest runs for so many turns between two rounds.
const ROUND: u32 = 50;

/// Stores and finds what it stored, sleeps, and wakes the other one.
const FIRST: &[Op] = &[
    Start(1),
    Store(0x5000, 1),
    Load(0x5000, 1),
    Store(0x7000, 5),
    Sleep(60_000),
    Load(0x5000, 1),
    Store(0x5000, 2),
    // A page that is sent, and then is one of zeros.
    Store(0x7000, 0),
    Send(1),
    Store(1 << 32, 3),
    Load(0x5000, 2),
    WaitFor(1),
    Load(1 << 32, 3),
    Load(0x7000, 0),
    Back(1, 1200),
    Done,
];
const SECOND: &[Op] = &[Store(0x9000, 4), WaitFor(0), Load(0x9000, 4), Send(0), Back(0, 1200), Done];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Never,
    /// Behind so many frames, in whichever direction.
    After(u64),
    /// The same, by who goes away and says nothing.
    Gone(u64),
}

/// What a tool has seen of both sides.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The first time that each side's hypervisor showed while it served the request, and the last.
    clocks: [[u64; 2]; 2],
    frames: u64,
    pub(super) rounds: u64,
    kinds: Vec<Kind>,
    pub(super) is_cut: bool,
}

impl Seen {
    /// Looks at the clocks of both sides.
    fn look(&mut self, sides: [&Side; 2]) {
        for (seen, side) in self.clocks.iter_mut().zip(sides).filter(|(_, side)| !side.is_left) {
            let now = side.end.clock();
            *seen = [if seen[0] == 0 { now } else { seen[0] }, now];
        }
    }
}

/// One side's end of a channel, until it says Cut.
pub(super) struct Side {
    end: End<'static>,
    pub(super) is_left: bool,
}

impl Side {
    pub(super) fn of(answers: &[String], number: u32, sizes: Sizes) -> Option<Self> {
        let start = std::format!("{number} : channel=");
        let line = answers.iter().find_map(|line| line.strip_prefix(&start))?;
        let at = line.split(' ').next()?.strip_prefix("0x")?;
        let at = usize::from_str_radix(at, 16).ok()?;
        // SAFETY: the hypervisor has taken the memory for this, and frees it after Cut.
        let end = unsafe { End::of_tool(ptr::with_exposed_provenance_mut(at), sizes) };
        Some(Self { end, is_left: false })
    }

    pub(super) fn next(&mut self) -> Option<(Header, Vec<u8>)> {
        if self.is_left || self.end.filled().expect("makes sense") < HEADER {
            return None;
        }
        let mut bytes = [0; HEADER];
        self.end.read_all(0, &mut bytes).expect("is there");
        let header = Header::read_from_bytes(&bytes).expect("a header");
        let mut body = vec![0; header.body()];
        self.end.read_all(HEADER, &mut body).expect("whole frames are published");
        self.end.take(HEADER + body.len());
        Some((header, body))
    }

    pub(super) fn put(&mut self, header: Header, body: &[u8]) {
        if self.is_left {
            return;
        }
        self.end.write_all(0, header.as_bytes()).expect("has room");
        self.end.write_all(HEADER, body).expect("has room");
        self.end.publish(HEADER + body.len());
        self.is_left |= header.kind() == Ok(Kind::Cut);
    }

    pub(super) fn say(&mut self, kind: Kind) {
        self.put(Header::new(kind, 0, 0), &[]);
    }

    pub(super) fn has_room(&self) -> bool {
        self.end.room().expect("makes sense") > 80 << 10
    }
}

/// What a round says that it has sent is what came.
fn compare(sent: &mut Round, header: Header, body: &[u8]) {
    match header.kind() {
        Ok(Kind::Pages) => sent.add((body.len() / PAGE) as u64, false),
        Ok(Kind::Zeros) => sent.add(header.len() as u64, true),
        Ok(Kind::Hello) => *sent = Round::default(),
        Ok(Kind::Round) => {
            let said = Round::read_from_bytes(body).expect("is one");
            let sent = core::mem::take(sent);
            assert_eq!((said.pages, said.zeros), (sent.pages, sent.zeros));
        }
        _ => {}
    }
}

/// Sends from the first side to the second, with so many rounds at most; asks after a cut what came
/// of it. Request 6, to send, is given up at once.
pub(crate) fn carry<A: Arch>(board: &Board<A>, cut: Cut, rounds: u64) -> Arc<Mutex<Seen>> {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let shared = Arc::clone(&seen);
    let (mut source, mut target, mut asks, mut gives_up) = (None, None, None, None);
    let (mut decides, mut sent) = (None, Round::default());
    board.set_tool(Box::new(move |answers| {
        let mut seen = shared.lock().expect("nobody panics with it");
        gives_up = gives_up.take().or_else(|| Side::of(answers, 6, Sizes::SOURCE));
        gives_up.iter_mut().for_each(|side| side.say(Kind::Cut));
        source = source.take().or_else(|| Side::of(answers, 1, Sizes::SOURCE));
        target = target.take().or_else(|| Side::of(answers, 2, Sizes::TARGET));
        let (Some(source), Some(target)) = (source.as_mut(), target.as_mut()) else { return Vec::new() };
        decides = match decides {
            Some((0, kind)) => {
                source.say(kind);
                None
            }
            waits => waits.map(|(left, kind)| (left - 1, kind)),
        };
        let cut_now = |seen: &mut Seen, source: &mut Side, target: &mut Side| {
            seen.frames += 1;
            if cut == Cut::After(seen.frames) {
                seen.is_cut = true;
                [&mut *source, &mut *target].into_iter().for_each(|side| side.say(Kind::Cut));
            }
            if cut == Cut::Gone(seen.frames) {
                seen.is_cut = true;
                [&mut *source, &mut *target].into_iter().for_each(|side| side.is_left = true);
            }
        };
        seen.look([source, target]);
        let goes = matches!(cut, Cut::Gone(_)) && !seen.is_cut;
        while target.has_room()
            && let Some((header, body)) = source.next()
        {
            let kind = header.kind().expect("is one");
            seen.kinds.push(kind);
            compare(&mut sent, header, &body);
            match kind {
                Kind::Round => {
                    seen.rounds += 1;
                    source.put(Header::new(Kind::Slow, 20 * seen.rounds, 0), &[]);
                    decides = Some((ROUND, if seen.rounds < rounds { Kind::Next } else { Kind::Finish }));
                    target.put(header, &body);
                }
                Kind::Failed => {
                    let text = String::from_utf8_lossy(&body).into_owned();
                    panic!("the source says: {text}");
                }
                _ => target.put(header, &body),
            }
            cut_now(&mut seen, source, target);
        }
        while let Some((header, body)) = target.next() {
            let kind = header.kind().expect("is one");
            assert_ne!(kind, Kind::Failed, "{}", String::from_utf8_lossy(&body));
            seen.kinds.push(kind);
            source.put(header, &body);
            cut_now(&mut seen, source, target);
            if kind == Kind::Runs {
                [&mut *source, &mut *target].into_iter().for_each(|side| side.say(Kind::Cut));
            }
        }
        if goes && seen.is_cut {
            return ["-1", "-2"].map(str::to_owned).into();
        }
        ask_again(&mut asks, answers)
    }));
    seen
}

/// The source is in doubt: it is asked again when the target has said what came of it.
fn ask_again(asks: &mut Option<Option<Side>>, answers: &[String]) -> Vec<String> {
    let is_given = answers.iter().any(|line| line.starts_with("1 error the guest was given away"));
    let is_known = answers.iter().any(|line| line == "2 ok" || line.starts_with("2 error"));
    if is_given && is_known && asks.is_none() {
        *asks = Some(None);
        return vec!["3 guest-send here 0x7 live".to_owned()];
    }
    if let Some(third) = asks.as_mut() {
        *third = third.take().or_else(|| Side::of(answers, 3, Sizes::SOURCE));
        if let Some(third) = third.as_mut().filter(|side| !side.is_left) {
            third.say(if answers.iter().any(|line| line == "2 ok") { Kind::Runs } else { Kind::Absent });
            third.say(Kind::Cut);
        }
    }
    Vec::new()
}

/// Cuts each channel after some frames; those before are read, and rounds follow.
pub(super) fn cut_all(board: &Board<MockArch>, seed: u64) {
    let mut random = Random::new(seed);
    let (mut seen, mut sides) = (0, Vec::new());
    board.set_tool(Box::new(move |answers| {
        for line in &answers[seen..] {
            let Some((number, fields)) = line.split_once(" : channel=") else { continue };
            let sizes = if fields.contains("session=0x0") { Sizes::TARGET } else { Sizes::SOURCE };
            let side = Side::of(answers, number.parse().expect("a number"), sizes).expect("a channel");
            sides.push((side, random.below(200)));
        }
        seen = answers.len();
        for (side, left) in &mut sides {
            if let Some((header, _)) = side.next()
                && header.kind() == Ok(Kind::Round)
            {
                side.say(if random.below(2) == 0 { Kind::Next } else { Kind::Finish });
            }
            *left = left.saturating_sub(1);
            if *left == 0 {
                side.say(Kind::Cut);
            }
        }
        Vec::new()
    }));
}

pub(in crate::vm) fn board() -> &'static Board<MockArch> {
    board_with(&[FIRST, SECOND])
}

pub(super) fn board_with(programs: &[&[Op]]) -> &'static Board<MockArch> {
    create_several(2, 64 << 20, &[(HERE, programs), (THERE, programs)])
}

pub(super) fn states(board: &'static Board<MockArch>) -> [GuestState; 2] {
    [0, 1].map(|number| board.host().state_of(number))
}

#[test]
fn m2_m8_wherever_it_is_cut_one_of_both_runs_to_its_end() {
    let whole = {
        let board = board();
        let seen = carry(board, Cut::Never, 3);
        board.ask(4_000_000, "1 guest-send here 0x7 live");
        board.ask(4_000_000, "2 guest-receive there 0x9");
        assert_eq!(board.run(0), OFF);
        let seen = seen.lock().unwrap();
        let shows_it = |&[first, last]: &[u64; 2]| first >= 4_000_000 && last - first > 1_000_000;
        assert!(seen.clocks.iter().all(shows_it), "{:?}", seen.clocks);
        seen.frames
    };
    let mut random = Random::new(7);
    let (mut here, mut there) = (0, 0);
    for seed in 0..24 {
        // The end, where it matters, more often than the pages.
        let frame = 1 + if seed % 2 == 0 { random.below(whole) } else { whole - random.below(8) };
        let board = board();
        let seen = carry(board, Cut::After(frame), 3);
        board.ask(4_000_000, "1 guest-send here 0x7 live");
        board.ask(4_000_000, "2 guest-receive there 0x9");
        assert_eq!(board.run(seed), OFF, "cut after {frame}: {:?}, {:?}", board.answers(), states(board));
        match states(board) {
            [GuestState::Off, GuestState::Empty] => here += 1,
            [GuestState::Empty, GuestState::Off] => there += 1,
            states => panic!("cut after {frame} of {whole}: {states:?}, {:?}", board.answers()),
        }
        assert!(seen.lock().unwrap().is_cut || frame > whole - 8);
    }
    assert!(here > 6 && there > 1, "{here} stayed and {there} went");
}

#[test]
fn m8_a_guest_that_pauses_is_not_woken_by_being_slowed_down() {
    let board = board();
    let seen = carry(board, Cut::After(400), u64::MAX);
    board.ask(3_000_000, "9 guest-pause here");
    board.ask(4_000_000, "1 guest-send here 0x7 live");
    board.ask(4_000_000, "2 guest-receive there 0x9");
    // It would have ended long before, had it run.
    board.ask(600_000_000, "8 guest-resume here");
    assert_eq!(board.run(5), OFF, "{:?}", board.answers());
    assert!(seen.lock().unwrap().rounds > 100, "the tool slows it down after each round");
    assert!(board.answers().contains(&"8 ok".to_owned()), "{:?}", board.answers());
    assert_eq!(states(board), [GuestState::Off, GuestState::Empty]);
}

#[test]
fn a_guest_that_pauses_does_so_where_it_arrives_or_stays() {
    let paused = |cut, resumes: bool| {
        let board = board();
        let seen = carry(board, cut, 1);
        board.ask(3_000_000, "9 guest-pause here");
        board.ask(4_000_000, "1 guest-send here 0x7 live");
        board.ask(4_000_000, "2 guest-receive there 0x9");
        if resumes {
            // It would have ended long before, had it run. Refused if it does not pause.
            board.ask(600_000_000, "8 guest-resume there");
        } else {
            board.ask(600_000_000, "8 guests");
            board.enough(5);
        }
        let end = board.run(5);
        assert_eq!(end == OFF, resumes, "{:?}", board.answers());
        let frames = seen.lock().unwrap().frames;
        (states(board), frames)
    };
    let (there, frames) = paused(Cut::Never, true);
    assert_eq!(there, [GuestState::Empty, GuestState::Off]);
    // Go is lost: it was given away, and is not there.
    let (here, _) = paused(Cut::After(frames - 2), false);
    assert_eq!(here, [GuestState::Paused, GuestState::Empty]);
}

#[test]
fn m6_a_guest_that_a_reset_could_not_load_does_not_arrive() {
    let bad = "name=there\nmemory=4194304\nstart=manual\ncmdline=plans=0";
    for (there, memory, why) in [(bad, 64, "kernel: big-endian"), (THERE, 15, "no 4164 KiB of free memory")] {
        let sleeps: &[&[Op]] = &[&[Sleep(60_000_000), Done]];
        let guests: [(_, &[&[Op]]); 2] = [("name=here\nmemory=2097152", sleeps), (there, &[])];
        let board = create_several(1, memory << 20, &guests);
        let asked = ["memory", "guest-receive there 0x9", "memory", "guest-receive there 0x9", "memory"];
        for (number, line) in (1..).zip(asked) {
            board.ask(number * 4_000_000, &std::format!("{number} {line}"));
        }
        assert_eq!(board.run(1), OFF);
        assert_eq!(states(board), [GuestState::Off, GuestState::Empty]);
        let answers = board.answers();
        let is_refused = |line: &&String| line.contains("error") && line.contains(why);
        assert_eq!(answers.iter().filter(is_refused).count(), 2, "{answers:?}");
        let mut free: Vec<_> = answers.iter().filter_map(|line| Some(line.split_once("free=")?.1)).collect();
        free.dedup();
        assert_eq!(free.len(), 1, "{answers:?}");
    }
}
