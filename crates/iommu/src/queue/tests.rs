//! The ring with devices that read it when they like.

use core::sync::atomic::{AtomicU64 as Word, Ordering::SeqCst};
use std::vec::Vec;

use super::*;

const LEN: usize = 8;

/// A device that does as many commands as a test says; whoever waits lets it do one more.
struct Device {
    entries: &'static [Entry; LEN],
    tail: Word,
    head: Word,
    reported: Word,
    /// Whether it reports by a word in memory.
    has_word: bool,
    is_stuck: bool,
    /// Turns of waiting for it.
    turns: Word,
    /// What it has done, syncs included.
    done: std::sync::Mutex<Vec<Command>>,
}

/// A sync, in these tests.
const SYNC: u64 = 77;

impl Device {
    /// Does one command, if there is one.
    fn step(&self) {
        let head = self.head.load(SeqCst);
        if self.is_stuck || head == self.tail.load(SeqCst) {
            return;
        }
        let command = self.entries[head as usize].load();
        self.done.lock().unwrap().push(command);
        if let Command([SYNC, position]) = command {
            self.reported.store(position, SeqCst);
        }
        self.head.store((head + 1) % LEN as u64, SeqCst);
    }
}

impl Port for &'static Device {
    fn set_tail(&self, position: u64) {
        self.tail.store(position % LEN as u64, SeqCst);
    }

    fn head(&self) -> u32 {
        self.head.load(SeqCst) as u32
    }

    fn sync(&self, position: u64) -> Command {
        Command([SYNC, position])
    }

    fn reported(&self) -> Option<u64> {
        self.has_word.then(|| self.reported.load(SeqCst))
    }

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        self.turns.fetch_add(1, SeqCst);
        self.step();
        if turns > 100 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

type Ring = Queue<&'static Device, &'static [Entry; LEN]>;

fn ring(has_word: bool, is_stuck: bool) -> Ring {
    let entries: &'static [Entry; LEN] = std::boxed::Box::leak(Default::default());
    let word = || Word::new(0);
    let device = Device {
        entries,
        tail: word(),
        head: word(),
        reported: word(),
        has_word,
        is_stuck,
        turns: word(),
        done: Default::default(),
    };
    Queue::new(std::boxed::Box::leak(std::boxed::Box::new(device)), entries)
}

fn commands(numbers: core::ops::Range<u64>) -> impl Iterator<Item = Command> {
    numbers.map(|number| Command([1, number]))
}

/// What the device did that was no sync, and how many syncs.
fn done(ring: &Ring) -> (Vec<u64>, usize) {
    let all = ring.port().done.lock().unwrap();
    let others = all.iter().filter(|command| command.0[0] != SYNC).map(|command| command.0[1]).collect();
    (others, all.iter().filter(|command| command.0[0] == SYNC).count())
}

#[test]
fn several_that_wait_share_a_sync() {
    for has_word in [false, true] {
        let ring = ring(has_word, false);
        let tickets = [0..1, 1..2, 2..3].map(|numbers| ring.queue(commands(numbers)).unwrap());
        tickets.into_iter().for_each(|ticket| ring.wait(ticket).unwrap());
        assert_eq!(done(&ring), ((0..3).collect(), 1));
        // A later one is not covered by it.
        let later = ring.queue(commands(3..4)).unwrap();
        ring.wait(later).unwrap();
        assert_eq!(done(&ring), ((0..4).collect(), 2));
        let nothing = ring.queue([]).unwrap();
        ring.wait(nothing).unwrap();
        assert_eq!(done(&ring).1, 2, "nothing is behind the sync");
    }
}

#[test]
fn whoever_waits_for_a_sync_does_not_wait_for_later_commands() {
    for has_word in [false, true] {
        let ring = ring(has_word, false);
        let first = ring.issue(commands(0..1)).unwrap();
        let second = ring.issue(commands(1..2)).unwrap();
        ring.wait(first).unwrap();
        assert_eq!(done(&ring), (std::vec![0], 1));
        ring.wait(second).unwrap();
        assert_eq!(done(&ring), (std::vec![0, 1], 2));
    }
}

#[test]
fn more_commands_than_entries_wait_for_room_and_none_is_lost() {
    for has_word in [false, true] {
        let ring = ring(has_word, false);
        for round in 0..5 {
            let numbers = round * 37..(round + 1) * 37;
            let ticket = ring.issue(commands(numbers.clone())).unwrap();
            ring.wait(ticket).unwrap();
            assert_eq!(done(&ring), ((0..numbers.end).collect(), round as usize + 1));
            let turns = ring.port().turns.load(SeqCst);
            assert_eq!(turns, numbers.end + round + 1, "it does one in each");
        }
    }
}

#[test]
fn a_device_that_stands_still_is_an_error_that_says_where() {
    for has_word in [false, true] {
        let ring = ring(has_word, true);
        let ticket = ring.issue(commands(0..2)).unwrap();
        assert_eq!(ring.wait(ticket), Err(Stuck { head: 0, queued: 3 }));
        assert_eq!(ring.port().turns.load(SeqCst), 102, "turns 0 to 101");
        assert_eq!(ring.issue(commands(0..40)), Err(Stuck { head: 0, queued: LEN as u64 - 1 }));
        // The ring is not left locked, and no entry was overwritten.
        assert!(ring.queue(commands(0..1)).is_err());
        assert_eq!(ring.port().entries[0].load(), Command([1, 0]));
    }
}

#[test]
fn what_is_passed_is_no_sync_until_one_is_behind_it() {
    let ring = ring(false, false);
    let ticket = ring.queue(commands(0..2)).unwrap();
    (0..2).for_each(|_| ring.port().step());
    assert_eq!(ring.port().head(), 2, "read, but not complete");
    ring.wait(ticket).unwrap();
    assert_eq!(done(&ring).1, 1);
}

#[test]
#[should_panic(expected = "2^n entries")]
fn a_ring_of_another_length_is_refused() {
    let ring = ring(true, false);
    let _queue = Queue::new(*ring.port(), &ring.entries.as_slice()[..6]);
}
