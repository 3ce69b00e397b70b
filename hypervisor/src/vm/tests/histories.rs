//! Guests with a history, that are sent.

use baremetal::random::Random;
use core::sync::atomic::Ordering;
use hostlink::ctl::record::{self, Record};
use hostlink::guests::{GONE, GuestState};
use migration::channel::Sizes;
use migration::frame::Kind;

use super::Op::*;
use super::migration::{Cut, Side, board, board_with, carry, states};
use crate::vm::mock::MockBoard as Board;
use crate::vm::mock::processor::{MockArch, OFF, Op};

/// Stores to, clears and reads 32 pages in a random order, and reads all of them in the end.
fn history(random: &mut Random, vcpu: usize) -> Vec<Op> {
    let mut pages = [0; 32];
    let at = |page: usize| (page as u64 / 16) << 32 | (32 * vcpu as u64 + page as u64) << 12;
    // It begins when it is sent.
    let mut program = vec![[Start(1), Work(1)][vcpu], Sleep(3_900_000)];
    for _ in 0..20_000 {
        let page = random.below(32) as usize;
        let value = [0, 1 + random.below(1 << 60)][random.below(2) as usize];
        match random.below(64) {
            0..30 => {
                pages[page] = value;
                program.push(Store(at(page), value));
            }
            30..60 => program.push(Load(at(page), pages[page])),
            _ => program.push(Sleep(1 << random.below(13))),
        }
    }
    program.extend((0..32).map(|page| Load(at(page), pages[page])).chain([Done]));
    program
}

#[test]
fn m1_m5_a_guest_goes_on_at_the_other_side_with_what_it_stored() {
    for (seed, rounds, way) in
        (1..=8).map(|rounds| (rounds, rounds, "live")).chain([(9, 30, "live"), (10, 0, "still")])
    {
        let mut random = Random::new(seed);
        let programs = [0, 1].map(|vcpu| history(&mut random, vcpu));
        let board = board_with(&programs.each_ref().map(|program| &program[..]));
        let seen = carry(board, Cut::Never, rounds);
        let (wall, here) = (&board.host().wall, board.host().guest(0).expect("it is there"));
        here.clock.set(wall, 1 << 20, 17, 1 << 60);
        let date = here.clock.wall_ns(wall, 1 << 21);
        board.ask(4_000_000, &std::format!("1 guest-send here 0x7 {way}"));
        board.ask(4_000_000, "2 guest-receive there 0x9");
        assert_eq!(board.run(seed), OFF, "{way}: {:?}, {:?}", board.answers(), seen);
        assert_eq!(states(board), [GuestState::Empty, GuestState::Off], "{:?}", board.answers());
        let answers = board.answers();
        assert!(answers.iter().any(|line| line.starts_with("1 : away=1")), "{answers:?}");
        assert!(answers.contains(&"1 ok".to_owned()) && answers.contains(&"2 ok".to_owned()), "{answers:?}");
        assert_eq!(seen.lock().unwrap().rounds, rounds);
        let sent = answers.iter().find_map(|line| record::Sent::parse(line.strip_prefix("1 : ")?).ok());
        let again = sent.is_some_and(|sent| sent.pages + sent.zeros > 1024);
        assert_eq!(again, rounds > 0, "pages are stored to between rounds: {answers:?}");
        let clock = &board.host().guest(1).expect("it has ended").clock;
        let (ticks, ns) = (clock.at(1 << 20), clock.wall_ns(wall, 1 << 21));
        // Each machine rounds by itself.
        assert!(ticks == 17 && ns.abs_diff(date) <= 1, "its own clock goes on: {ticks}, {ns}, {date}");
    }
}

#[test]
fn a_guest_that_paused_and_was_not_sent_in_the_end_runs_when_it_is_sent_later() {
    for way in ["still", "live"] {
        let board = board();
        carry(board, Cut::Never, 1);
        let in_vain = std::format!("6 guest-send here 0x6 {way}");
        let sent = ["1 guest-send here 0x7 live", "2 guest-receive there 0x9"];
        let asked = ["9 guest-pause here", &*in_vain, "8 guest-resume here"].into_iter().chain(sent);
        (3..).zip(asked).for_each(|(time, line)| board.ask(time * 1_000_000, line));
        assert_eq!(board.run(5), OFF, "{:?}", board.answers());
        assert!(board.answers().contains(&"6 ok".to_owned()), "{:?}", board.answers());
        assert_eq!(states(board), [GuestState::Empty, GuestState::Off]);
    }
}

#[test]
fn m8_a_tool_that_goes_away_leaves_the_guest_and_all_memory_as_they_were() {
    let mut free = Vec::new();
    for frame in [0, 1, 2, 30, 90, 300] {
        let board = board();
        let seen = carry(board, Cut::Gone(frame), u64::MAX);
        if frame > 0 {
            board.ask(4_000_000, "1 guest-send here 0x7 live");
            board.ask(4_000_000, "2 guest-receive there 0x9");
        }
        assert_eq!(board.run(frame), OFF, "{frame}: {:?}", board.answers());
        assert_eq!(
            (states(board), seen.lock().unwrap().is_cut),
            ([GuestState::Off, GuestState::Empty], frame > 0)
        );
        free.push(board.host().free.lock().total());
        board.machine().space.slots().memory().for_each(|slot| assert!(!slot.is_logged(), "{frame}"));
    }
    free.dedup();
    assert_eq!(free.len(), 1, "{free:?}");
}

/// Saves a guest as a tool does that writes it to a file: nobody else is asked. Says `what` when it
/// has all of it.
fn save(board: &Board<MockArch>, what: &'static [Kind]) {
    let mut source = None;
    board.set_tool(Box::new(move |answers| {
        source = source.take().or_else(|| Side::of(answers, 1, Sizes::SOURCE));
        let Some(source) = source.as_mut() else { return Vec::new() };
        while let Some((header, _)) = source.next() {
            match header.kind().expect("is one") {
                Kind::End => what.iter().for_each(|kind| source.say(*kind)),
                Kind::Go => [Kind::Runs, Kind::Cut].into_iter().for_each(|kind| source.say(kind)),
                _ => {}
            }
        }
        Vec::new()
    }));
}

#[test]
fn a_guest_that_nobody_took_goes_on_or_pauses_here() {
    for what in [&[Kind::Absent, Kind::Cut][..], &[Kind::Cut]] {
        for pauses in [false, true] {
            let board = board();
            save(board, what);
            if pauses {
                board.ask(3_000_000, "9 guest-pause here");
            }
            board.ask(4_000_000, "1 guest-send here 0x7 still");
            if pauses {
                board.ask(600_000_000, "8 guest-resume here");
            }
            assert_eq!(board.run(3), OFF, "{what:?}: {:?}", board.answers());
            assert_eq!(states(board), [GuestState::Off, GuestState::Empty]);
            let resumed = board.answers().iter().any(|line| line == "8 ok");
            assert_eq!(resumed, pauses, "{what:?}: {:?}", board.answers());
        }
    }
}

#[test]
fn the_tool_learns_that_the_last_guest_has_gone() {
    let exit = |board: &'static Board<MockArch>| board.host().entry(0).exit.load(Ordering::Relaxed);
    for pauses in [false, true] {
        let board = board();
        save(board, &[Kind::Ready]);
        if pauses {
            for (number, line) in
                [(7, "guest-create there"), (8, "guest-start there"), (9, "guest-pause there")]
            {
                board.ask(1_000_000, &std::format!("{number} {line}"));
            }
        }
        board.ask(4_000_000, "1 guest-send here 0x7 still");
        let later = if pauses {
            ["guest-resume there", "guests"]
        } else {
            ["guest-create there", "guest-start there"]
        };
        for (number, line) in (10..).zip(later) {
            board.ask(600_000_000, &std::format!("{number} {line}"));
        }
        assert_eq!(board.run(3), OFF, "{:?}", board.answers());
        assert!(board.answers().contains(&"1 ok".to_owned()), "{:?}", board.answers());
        assert_eq!(states(board), [GuestState::Empty, GuestState::Off]);
        assert_eq!(exit(board), if pauses { 0 } else { GONE }, "one is left that pauses: {pauses}");
    }
}
