//! A stream in which one frame is wrong is refused by its name, and leaves nothing.

use hostlink::guests::GuestState;
use migration::channel::Sizes;
use migration::frame::{Header, Kind};

use super::migration::{Side, board, states};
use crate::vm::mock::processor::OFF;

type Change = fn(&mut Header, &mut Vec<u8>);

#[test]
fn m7_what_is_wrong_about_a_stream_is_named() {
    let cases: [(Kind, Change, &str); 14] = [
        (Kind::Hello, |_, bytes| bytes[0] ^= 1, "version of the stream"),
        (Kind::Hello, |_, bytes| bytes[8] ^= 1, "instruction set"),
        (Kind::Hello, |_, bytes| bytes[16] ^= 1, "number of vCPUs"),
        (Kind::Hello, |_, bytes| bytes[24] ^= 1, "guest's memory"),
        (Kind::Pages, |header, _| header.argument += 8, "address of a page"),
        (Kind::Pages, |header, _| header.argument = (4 << 20) - 4096, "address of a page"),
        (Kind::Pages, |header, _| header.argument = 0_u64.wrapping_sub(4096), "address of a page"),
        (Kind::Zeros, |header, _| header.argument = 2 << 20, "address of a page"),
        (Kind::Zeros, |header, _| *header = Header::new(Kind::Zeros, 0, 17), "order of the frames"),
        // Twice as fast, or nearly.
        (Kind::Clock, |_, bytes| bytes[27] ^= 0x40, "rate of the clock"),
        (Kind::State, |header, _| header.argument ^= 1, "order of the states"),
        (
            Kind::State,
            |header, bytes| {
                bytes.extend([0; 8]);
                *header = Header::new(Kind::State, header.argument, bytes.len() as u32);
            },
            "bytes follow its end",
        ),
        (Kind::End, |header, _| header.argument += 1, "order of the frames"),
        (Kind::End, |_, _| (), ""),
    ];
    let mut free = Vec::new();
    for (changed, change, name) in cases {
        let board = board();
        let (mut source, mut target, mut change) = (None, None, Some(change));
        board.set_tool(Box::new(move |answers| {
            source = source.take().or_else(|| Side::of(answers, 1, Sizes::SOURCE));
            target = target.take().or_else(|| Side::of(answers, 2, Sizes::TARGET));
            let (Some(source), Some(target)) = (source.as_mut(), target.as_mut()) else { return Vec::new() };
            while target.has_room()
                && let Some((mut header, mut body)) = source.next()
            {
                let kind = header.kind().expect("is one");
                if kind == Kind::Round {
                    source.say(Kind::Finish);
                }
                if kind == changed
                    && let Some(change) = change.take()
                {
                    change(&mut header, &mut body);
                }
                target.put(header, &body);
            }
            if target.next().is_some() {
                // It is refused, or could run.
                [source, target].into_iter().for_each(|side| side.say(Kind::Cut));
            }
            Vec::new()
        }));
        board.ask(4_000_000, "1 guest-send here 0x7 live");
        board.ask(4_000_000, "2 guest-receive there 0x9");
        assert_eq!(board.run(1), OFF, "{name}: {:?}", board.answers());
        assert_eq!(states(board), [GuestState::Off, GuestState::Empty], "{name}");
        let says = |line: &String| line.starts_with("2 error") && line.contains(name);
        assert!(board.answers().iter().any(says), "{name}: {:?}", board.answers());
        free.push(board.host().free.lock().total());
    }
    free.dedup();
    assert_eq!(free.len(), 1, "memory is as before: {free:?}");
}
