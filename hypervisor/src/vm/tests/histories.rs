//! Guests with a history, that are sent.

use baremetal::random::Random;
use hostlink::ctl::record::{self, Record};
use hostlink::guests::GuestState;

use super::Op::*;
use super::moving::{Cut, board, board_with, carry, states};
use crate::vm::mock::processor::{OFF, Op};

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
