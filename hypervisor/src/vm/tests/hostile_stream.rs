//! Streams that no honest source sends: frames of a recorded guest are changed, dropped, repeated
//! and exchanged, and what comes of it is received. A failure names its seed;
//! `QUELL_STREAMS_SEED` runs from that one on, and `QUELL_STREAMS_RUNS` so many, with twelve
//! streams each. The tests of each architecture change states of vCPUs as often.

use alloc::format;
use alloc::string::String;
use alloc::vec::{self, Vec};
use std::sync::{Arc, Mutex};

use baremetal::random::Random;
use migration::channel::Sizes;
use migration::frame::{BODY_MAX, HEADER, Header, Kind};
use zerocopy::{FromBytes, IntoBytes};

use super::Op::*;
use super::migration::Side;
use crate::vm::mock::processor::{OFF, Op, create_several};
use crate::vm::mock::{self, End};

const HERE: &str = "name=here\nvcpus=2\nmemory=2097152\nparanoid=on";
const THERE: &str = "name=there\nvcpus=2\nmemory=2097152\nparanoid=on\nstart=manual";

/// The guest goes on with any memory: it expects nothing of what it loads.
const FIRST: &[Op] = &[Start(1), StoreTry(0x5000), Sleep(90_000), Send(1), Try(0x5000), Back(1, 9), Done];
const SECOND: &[Op] = &[StoreTry(0x9000), StoreTry(1 << 32), Sleep(50_000), Back(0, 9), Done];
/// Keeps the machine running.
const BESIDE: &[Op] = &[Sleep(1_000_000), Back(0, u32::MAX)];

const STREAMS: usize = 12;
const RUNS: u64 = 4;
/// So many looks after the last frame, the tool waits for nothing any more.
const PATIENCE: u32 = 2000;

type Frame = (Header, Vec<u8>);

/// The frames of a guest that is sent, up to its end; it stays.
fn recorded() -> Vec<Frame> {
    let board = create_several(2, 16 << 20, &[(HERE, &[FIRST, SECOND])]);
    let frames = Arc::new(Mutex::new(Vec::new()));
    let (shared, mut source) = (Arc::clone(&frames), None);
    board.set_tool(Box::new(move |answers| {
        source = source.take().or_else(|| Side::of(answers, 1, Sizes::SOURCE));
        let Some(source) = source.as_mut() else { return Vec::new() };
        while let Some((header, body)) = source.next() {
            match header.kind().expect("is one") {
                Kind::Round => source.say(Kind::Finish),
                Kind::End => source.say(Kind::Cut),
                _ => {}
            }
            shared.lock().expect("nobody panics with it").push((header, body));
        }
        Vec::new()
    }));
    board.ask(100_000, "1 guest-send here 0x7 live");
    assert_eq!(board.run(1), OFF, "{:?}", board.answers());
    let frames = frames.lock().expect("nobody panics with it").clone();
    assert_eq!(frames.last().expect("has frames").0.kind(), Ok(Kind::End));
    frames
}

/// Changes one thing about a stream.
fn change(frames: &mut Vec<Frame>, random: &mut Random) {
    // Most frames are pages; what is behind them matters as much.
    let len = frames.len() as u64;
    let mut place =
        || if random.below(2) == 0 { random.below(len) } else { len - 1 - random.below(len.min(7)) };
    let (at, other) = (place() as usize, place() as usize);
    match random.below(7) {
        0 => drop(frames.remove(at)),
        1 => frames.insert(at, frames[other].clone()),
        2 => frames.swap(at, other),
        3 => {
            let mut bytes = [0; HEADER];
            frames[at].0.write_to(&mut bytes).expect("has its size");
            bytes[random.below(HEADER as u64) as usize] ^= 1 << random.below(8);
            frames[at].0 = Header::read_from_bytes(&bytes).expect("has its size");
        }
        4 => {
            let ends =
                [0, 1, 4096, (2 << 20) - 4096, 2 << 20, 1 << 32, 1 << 52, 0xffff_ffff_ffff_f000, u64::MAX];
            frames[at].0.argument =
                ends[random.below(ends.len() as u64) as usize].wrapping_add(random.below(2));
        }
        5 => {
            let (header, _) = &frames[at];
            if let Ok(kind) = header.kind() {
                let len = [0, 8, 4096, 8192, BODY_MAX as u64, random.below(BODY_MAX as u64)];
                frames[at].0 = Header::new(kind, header.argument, len[random.below(6) as usize] as u32);
            }
        }
        // What a vCPU of this architecture does then is no matter of the stream's.
        _ if matches!(frames[at].0.kind(), Ok(Kind::State | Kind::Pages)) => {}
        _ => {
            let body = &mut frames[at].1;
            if !body.is_empty() {
                let at = random.below(body.len() as u64) as usize;
                body[at] ^= 1 << random.below(8);
            }
        }
    }
}

fn changed(recorded: &[Frame], random: &mut Random) -> Vec<Frame> {
    let mut frames = recorded.to_vec();
    (0..=random.below(3)).for_each(|_| change(&mut frames, random));
    // Whoever changes a stream counts its frames.
    if random.below(3) > 0
        && let Some(end) = frames.iter().position(|(header, _)| header.kind() == Ok(Kind::End))
    {
        frames[end].0.argument = end as u64;
    }
    // The host tool passes on no others.
    frames.retain(|(header, _)| header.kind().is_ok());
    frames.iter_mut().for_each(|(header, body)| body.resize(header.body(), 0));
    frames
}

/// What is asked for each stream, one after the other.
const ASKED: [&str; 3] = ["guest-receive there 0x9", "guest-destroy there", "memory"];

/// A tool that receives changed streams, and destroys what runs.
struct Tool {
    streams: Vec<vec::IntoIter<Frame>>,
    /// The number of the last request.
    asked: usize,
    side: Option<Side>,
    /// So many looks until it waits no more: for Ready, and with its next request.
    left: u32,
}

impl Tool {
    fn look(&mut self, answers: &[String]) -> Vec<String> {
        let of = format!("{} ", self.asked);
        let is_end = |line: &String| line.strip_prefix(&of).is_some_and(|end| !end.starts_with(": "));
        if self.asked == 0 || answers.iter().any(is_end) {
            self.side = None;
            self.left = self.left.saturating_sub(1);
            return if self.left == 0 { self.ask() } else { Vec::new() };
        }
        self.side = self.side.take().or_else(|| Side::of(answers, self.asked as u32, Sizes::TARGET));
        if let Some(side) = self.side.as_mut() {
            deliver(side, &mut self.streams[self.asked / ASKED.len()], &mut self.left);
        }
        Vec::new()
    }

    fn ask(&mut self) -> Vec<String> {
        self.left = PATIENCE;
        self.asked += 1;
        vec![format!("{} {}", self.asked, ASKED[(self.asked - 1) % ASKED.len()])]
    }
}

fn deliver(side: &mut Side, stream: &mut vec::IntoIter<Frame>, left: &mut u32) {
    while side.has_room()
        && let Some((header, body)) = stream.next()
    {
        side.put(header, &body);
    }
    match side.next().map(|(header, _)| header.kind()) {
        Some(Ok(Kind::Ready)) => side.say(Kind::Go),
        // It runs, or cannot.
        Some(_) => side.say(Kind::Cut),
        None if *left == 0 => side.say(Kind::Cut),
        None => *left -= u32::from(stream.len() == 0),
    }
}

/// Returns how many of the streams are guests that run.
fn run(recorded: &[Frame], seed: u64) -> usize {
    let guests: [(_, &[&[Op]]); 2] = [("name=beside\nmemory=2097152", &[BESIDE]), (THERE, &[FIRST, SECOND])];
    let board = create_several(2, 24 << 20, &guests);
    let mut random = Random::new(seed);
    let streams = (0..STREAMS).map(|_| changed(recorded, &mut random).into_iter()).collect();
    let mut tool = Tool { streams, asked: 0, side: None, left: 0 };
    board.set_tool(Box::new(move |answers| tool.look(answers)));
    board.enough(STREAMS * ASKED.len());
    assert_eq!(board.run(seed), End::Quiet, "seed {seed}: {:?}", board.answers());

    let answers = board.answers();
    let mut free: Vec<_> = answers.iter().filter_map(|line| Some(line.split_once(" : free=")?.1)).collect();
    assert_eq!(free.len(), STREAMS, "seed {seed}: {answers:?}");
    free.dedup();
    assert_eq!(free.len(), 1, "seed {seed}: memory is as before: {answers:?}");
    let ran = |at: &usize| answers.contains(&format!("{} ok", at * ASKED.len() + 1));
    (0..STREAMS).filter(ran).count()
}

#[test]
fn m6_whatever_stream_arrives_it_is_refused_or_a_guest_and_memory_is_as_before() {
    let recorded = recorded();
    let first = mock::number("QUELL_STREAMS_SEED").unwrap_or(1);
    let runs = mock::number("QUELL_STREAMS_RUNS").unwrap_or(RUNS);
    let ran: usize = (first..first + runs).map(|seed| run(&recorded, seed)).sum();
    std::println!("{ran} of {} streams are a guest", runs * STREAMS as u64);
    assert!(ran > 0 && (ran as u64) < runs * STREAMS as u64);
}
