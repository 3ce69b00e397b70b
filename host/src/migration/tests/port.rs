//! A channel whose other end is the test's.

use super::super::port::{Ended, Frame, Port, Talk};
use crate::prelude::*;
use core::ptr;
use hostlink::ctl::record::Channel;
use migration::channel::{End, Sizes};
use migration::frame::{HEADER, Kind};
use std::sync::mpsc::{self, Sender};
use zerocopy::IntoBytes;

/// The hypervisor's end.
pub(in super::super) struct Other {
    pub(in super::super) end: End<'static>,
    ram: Arc<Ram>,
}

impl Other {
    fn new(sizes: Sizes) -> Self {
        let ram = Arc::new(Ram::in_place(sizes.total()).expect("makes"));
        let at = ptr::with_exposed_provenance_mut(usize::try_from(ram.base()).expect("is one"));
        // SAFETY: new memory, which is zero, of this size; it lives as long as `ram`.
        let end = unsafe { End::of_hypervisor(at, sizes) };
        Self { end, ram }
    }

    fn port(&self, sizes: Sizes) -> Port {
        Port::new(Arc::clone(&self.ram), self.ram.base(), sizes).expect("is one")
    }

    fn take(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; self.end.filled().expect("makes sense")];
        self.end.read_all(0, &mut bytes).expect("is there");
        self.end.take(bytes.len());
        bytes
    }

    /// The kinds of the frames that it is told.
    pub(in super::super) fn heard(&mut self) -> Vec<Kind> {
        Frame::of_block(&self.take()).expect("makes sense").iter().map(|frame| frame.kind).collect()
    }

    pub(in super::super) fn say(&mut self, frame: &Frame) {
        self.put(&bytes_of(std::slice::from_ref(frame)));
    }

    /// A request with a channel, which ends so when it is told to, or when nobody can tell it.
    pub(in super::super) fn talk(sizes: Sizes, ended: Ended) -> (Talk, Self, Sender<()>) {
        let other = Self::new(sizes);
        let (ends, end) = mpsc::channel();
        let (says, heard) = mpsc::channel();
        let asking = thread::spawn(move || {
            let _ = end.recv();
            (ended, None)
        });
        let mut looked = 0;
        let mut meanwhile = || {
            looked += 1;
            Ok(says.send(Channel { channel: other.ram.base(), session: 5, given: 1 })?)
        };
        let talk = Talk::of(Arc::clone(&other.ram), &heard, asking, sizes, &mut meanwhile).expect("is heard");
        assert_eq!(looked, 1);
        (talk, other, ends)
    }

    fn put(&mut self, bytes: &[u8]) {
        self.end.write_all(0, bytes).expect("has room");
        self.end.publish(bytes.len());
    }
}

fn bytes_of(frames: &[Frame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames {
        bytes.extend_from_slice(frame.header.as_bytes());
        bytes.extend_from_slice(&frame.body);
    }
    bytes
}

#[test]
fn frames_pass_as_they_are_in_both_directions_and_are_taken_as_a_whole() {
    let mut other = Other::new(Sizes::TARGET);
    let mut port = other.port(Sizes::TARGET);
    let frames =
        [Frame::bare(Kind::Next), Frame::new(Kind::Slow, 70, &[]), Frame::new(Kind::State, 3, b"body")];
    let facts = frames.each_ref().map(|frame| (frame.kind, frame.header.argument, frame.content()));
    assert_eq!(facts, [(Kind::Next, 0, &b""[..]), (Kind::Slow, 70, b""), (Kind::State, 3, b"body")]);
    assert!(frames.iter().all(|frame| port.put(frame).expect("makes sense")));
    assert_eq!(other.take(), bytes_of(&frames));
    // The last one comes in pieces, and is there with its last byte.
    let bytes = bytes_of(&frames);
    let last = bytes.len() - frames[2].bytes();
    let mut done = 0;
    for (end, whole) in
        [(last, 2), (last + HEADER - 1, 0), (last + HEADER, 0), (bytes.len() - 1, 0), (bytes.len(), 1)]
    {
        other.put(&bytes[done..end]);
        done = end;
        let found: Vec<_> = std::iter::from_fn(|| port.next().expect("makes sense")).collect();
        assert_eq!(found.len(), whole, "{end}");
        assert!(found.iter().all(|frame| frames.contains(frame)), "{found:?}");
    }
}

#[test]
fn a_frame_is_put_if_there_is_room_for_all_of_it() {
    let mut other = Other::new(Sizes::SOURCE);
    let mut port = other.port(Sizes::SOURCE);
    let room = usize::try_from(Sizes::SOURCE.to_hypervisor).expect("is one");
    let rest = Frame::new(Kind::State, 0, &vec![7; room - 2 * HEADER]);
    for (frame, expected) in
        [(&Frame::bare(Kind::Next), true), (&rest, true), (&Frame::bare(Kind::Cut), false)]
    {
        assert_eq!(port.put(frame).expect("makes sense"), expected, "{}", frame.bytes());
    }
    assert_eq!(other.take().len(), room);
    assert!(port.put(&Frame::bare(Kind::Cut)).expect("makes sense"));
}

#[test]
fn a_port_that_is_dropped_takes_what_is_there_and_cuts_as_soon_as_there_is_room() {
    let mut other = Other::new(Sizes::SOURCE);
    let mut port = other.port(Sizes::SOURCE);
    other.put(&bytes_of(&vec![Frame::new(Kind::State, 0, &[1; 4096]); 8]));
    while port.put(&Frame::bare(Kind::Next)).expect("makes sense") {}
    thread::scope(|scope| {
        scope.spawn(|| drop(port));
        // It has taken all and waits for room, which is made now.
        let room = usize::try_from(Sizes::SOURCE.to_tool).expect("is one");
        super::machines::until("it is taken", || (other.end.room() == Ok(room)).then_some(()));
        other.take();
    });
    assert_eq!(other.take(), bytes_of(&[Frame::bare(Kind::Cut)]), "once");
}

#[test]
fn a_request_has_ended_when_its_last_record_is_there() {
    let (talk, _other, ends) = Other::talk(Sizes::SOURCE, Ok("the last".to_owned()));
    assert_eq!((talk.channel.session, talk.channel.given, talk.has_ended()), (5, 1, false));
    ends.send(()).expect("is heard");
    super::machines::until("it ends", || talk.has_ended().then_some(()));
    assert_eq!(talk.end().expect("is one"), "the last");
}
