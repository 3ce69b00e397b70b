//! Loops of threads that wait for each other.

use crate::Size;
use crate::memory::each;
use crate::team::{Trouble, Worker, expect};
use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};
use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Pairs of threads that send each other the low byte of the round by pipes.
pub(crate) fn pipes(size: Size) -> io::Result<Vec<Worker>> {
    let mut workers = Vec::new();
    for _ in 0..size.threads / 2 {
        let ((there, to), (back, from)) = (pipe()?, pipe()?);
        workers.push(sender(to, back));
        workers.push(answerer(there, from));
    }
    Ok(workers)
}

fn sender(mut to: PipeWriter, mut back: PipeReader) -> Worker {
    Box::new(move |round| {
        send(&mut to, round)?;
        receive(&mut back, !round)
    })
}

fn answerer(mut there: PipeReader, mut from: PipeWriter) -> Worker {
    Box::new(move |round| {
        receive(&mut there, round)?;
        send(&mut from, !round)
    })
}

fn send(to: &mut PipeWriter, value: u64) -> Result<(), Trouble> {
    match to.write_all(&[value as u8]) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Trouble::Left),
        sent => Ok(sent?),
    }
}

fn receive(from: &mut PipeReader, expected: u64) -> Result<(), Trouble> {
    let mut byte = [0];
    match from.read(&mut byte)? {
        0 => Err(Trouble::Left),
        _ => expect("a byte of the pipe", byte[0].into(), u64::from(expected as u8)),
    }
}

/// Whose turn it is in a pair: the number of finished turns, by which each waits for its own.
///
/// ```text
/// one of the two                              the other
/// A  store of the message                     C  the turn has arrived (Acquire)
/// B  turn passed on (Release), then wake-up   D  load of the message
/// ```
///
/// A is before D, because C reads from B.
#[derive(Default)]
struct Turns {
    word: AtomicU32,
    /// The message to the partner.
    told: AtomicU64,
}

/// One of the two has left: it takes no more turns, but a turn that was passed on before counts.
const LEFT: u32 = 1 << 31;

impl Turns {
    /// Waits for turn number `turn`, whose low bits are compared.
    fn wait_for(&self, turn: u64) -> Result<(), Trouble> {
        loop {
            // Acquire: C, reads from B in `pass`.
            let word = self.word.load(Ordering::Acquire);
            if word & !LEFT == turn as u32 & !LEFT {
                return Ok(());
            }
            if word & LEFT != 0 {
                return Err(Trouble::Left);
            }
            wait(&self.word, word)?;
        }
    }

    fn pass(&self) -> Result<(), Trouble> {
        // Never carries into the bit of who has left, and keeps it: the partner passes no turn on
        // meanwhile. Release: B, with C.
        let next = |word: u32| Some(word & LEFT | (word.wrapping_add(1) & !LEFT));
        let _ = self.word.fetch_update(Ordering::Release, Ordering::Relaxed, next);
        wake(&self.word, 1)
    }
}

struct End(Arc<Turns>);

impl Drop for End {
    fn drop(&mut self) {
        // Relaxed, because it publishes nothing but the departure.
        self.0.word.fetch_or(LEFT, Ordering::Relaxed);
        // An error could not be handled by a waiting partner either.
        let _ = wake(&self.0.word, 1);
    }
}

pub(crate) fn wake_ups(size: Size) -> io::Result<Vec<Worker>> {
    let mut workers = Vec::new();
    for _ in 0..size.threads / 2 {
        let turns = Arc::new(Turns::default());
        for first in [0, 1] {
            workers.push(turn_taker(End(Arc::clone(&turns)), first));
        }
    }
    Ok(workers)
}

/// Takes every second turn, and checks what the partner stored in the turn before.
fn turn_taker(end: End, first: u64) -> Worker {
    Box::new(move |round| {
        let turn = 2 * round + first;
        end.0.wait_for(turn)?;
        // Stored in the turn before; there is none at the beginning.
        expect("what the partner tells", end.0.told.load(Ordering::Relaxed), turn)?;
        end.0.told.store(turn + 1, Ordering::Relaxed);
        end.0.pass()
    })
}

/// A lock: free, taken, or taken while others sleep until it is free.
#[derive(Default)]
struct Lock(AtomicU32);

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const AWAITED: u32 = 2;

impl Lock {
    fn take(&self) -> Result<(), Trouble> {
        // Acquire, here and below: reads from `leave`.
        let taken = self.0.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_ok() {
            return Ok(());
        }
        while self.0.swap(AWAITED, Ordering::Acquire) != FREE {
            wait(&self.0, AWAITED)?;
        }
        Ok(())
    }

    fn leave(&self) -> Result<(), Trouble> {
        // Release: with `take`.
        match self.0.swap(FREE, Ordering::Release) {
            AWAITED => wake(&self.0, 1),
            _ => Ok(()),
        }
    }
}

/// A lock, the number of times it was taken, and the same by a counter that only the lock protects.
#[derive(Default)]
struct Locked {
    lock: Lock,
    taken: AtomicU64,
    counted: AtomicU64,
}

pub(crate) fn lock(size: Size) -> io::Result<Vec<Worker>> {
    let locked = Arc::new(Locked::default());
    each(size, |_| {
        let locked = Arc::clone(&locked);
        Ok(Box::new(move |_| {
            locked.lock.take()?;
            let taken = locked.taken.fetch_add(1, Ordering::Relaxed);
            // Load and store: with two holders at once one of their counts would be lost.
            let counted = locked.counted.load(Ordering::Relaxed);
            locked.counted.store(counted + 1, Ordering::Relaxed);
            locked.lock.leave()?;
            expect("the counter under the lock", counted, taken)
        }))
    })
}

/// Sleeps while the word is `expected`; returns at once if it is not.
fn wait(word: &AtomicU32, expected: u32) -> Result<(), Trouble> {
    match futex::wait(word, Flags::PRIVATE, expected, None) {
        // The word has changed, or a signal arrived: the caller checks again.
        Ok(()) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

fn wake(word: &AtomicU32, count: u32) -> Result<(), Trouble> {
    futex::wake(word, Flags::PRIVATE, count).map_err(io::Error::from)?;
    Ok(())
}
