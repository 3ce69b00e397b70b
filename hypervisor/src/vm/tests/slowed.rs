//! A guest that is slowed down while it is sent.

use std::sync::{Arc, Mutex};

use hostlink::guests::GuestState;
use migration::channel::Sizes;
use migration::frame::{Header, Kind};

use super::Op::*;
use super::migration::Side;
use crate::stopping::PAUSE;
use crate::vm::mock::processor::{OFF, Op, create_several};

/// To stand still is no reason for a turn: neither beyond its weight, nor beyond its cap.
#[test]
fn a_guest_that_is_slowed_down_has_no_more_than_its_share_and_its_cap() {
    const BUSY: &[Op] = &[Work(400_000_000), Done];
    for (share, most) in [("weight=1", 400_000_000 / 1001), ("weight=1000\ncap=2", 8_000_000)] {
        let here = String::leak(std::format!("name=here\nvcpus=1\nmemory=4194304\n{share}"));
        let busy = "name=busy\nvcpus=1\nmemory=4194304\nweight=1000";
        let guests: &[(&str, &[&[Op]])] = &[(here, &[&[Work(40_000_000), Done]]), (busy, &[BUSY])];
        let board = create_several(1, 64 << 20, guests);
        let (mut source, seen) = (None, Arc::new(Mutex::new((0, 0, 0))));
        let shared = Arc::clone(&seen);
        board.set_tool(Box::new(move |answers| {
            source = source.take().or_else(|| Side::of(answers, 1, Sizes::SOURCE));
            let Some(source) = source.as_mut() else { return Vec::new() };
            if board.host().state_of(1) == GuestState::Running {
                let mut seen = shared.lock().expect("nobody panics with it");
                (seen.0, seen.1) = (board.time(), board.host().sched.used(0, board.time()));
                seen.2 += u64::from(board.host().guest(0).is_some_and(|vm| vm.attention() & PAUSE != 0));
            } else if !source.is_left {
                source.say(Kind::Cut);
            }
            while let Some((header, _)) = source.next() {
                if header.kind() == Ok(Kind::Round) {
                    source.put(Header::new(Kind::Slow, 50, 0), &[]);
                    source.say(Kind::Next);
                }
            }
            Vec::new()
        }));
        board.ask(4_000_000, "1 guest-send here 0x7 live");
        assert_eq!(board.run(5), OFF, "{:?}", board.answers());
        let (time, used, stood) = *seen.lock().expect("nobody panics with it");
        assert!(time > 400_000_000 && stood > 100, "{share}: {time} ticks, {stood} times");
        // A turn of its own, or its burst, more.
        assert!(used < most + 3_000_000, "{share}: {used} ticks instead of {most}");
        assert!(used > most / 4, "{share}: {used} ticks: it has its turns");
    }
}
