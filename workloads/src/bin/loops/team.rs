//! Threads that make rounds together.

use std::io;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder};

/// Stack size of a thread: a round needs little.
const STACK_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) enum Trouble {
    Refused(io::Error),
    Wrong(String),
    /// The partner ended early, and reports the reason itself.
    Left,
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Refused(error)
    }
}

/// One round of a thread; the argument is the round's number, from 0.
pub(crate) type Worker = Box<dyn FnMut(u64) -> Result<(), Trouble> + Send>;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    pub(crate) thread: usize,
    pub(crate) round: u64,
    pub(crate) what: String,
}

#[inline]
pub(crate) fn expect(what: &str, found: u64, expected: u64) -> Result<(), Trouble> {
    if found == expected {
        return Ok(());
    }
    Err(Trouble::Wrong(format!("{what} is {found:#x} instead of {expected:#x}")))
}

/// Lets each worker make `rounds` rounds in a thread of its own. They begin when all threads have
/// started, and end early if one of them has trouble.
pub(crate) fn run(workers: Vec<Worker>, rounds: u64) -> io::Result<Option<Damage>> {
    let stop = &AtomicBool::new(false);
    // Held for writing until all threads have started; its value says whether to begin.
    let gate = &RwLock::new(false);
    thread::scope(|scope| {
        let mut begin = gate.write().map_err(|_| io::Error::other("a thread panicked"))?;
        let mut threads = Vec::new();
        for (index, worker) in workers.into_iter().enumerate() {
            let work = move || {
                let may_begin = gate.read().is_ok_and(|begin| *begin);
                let ended = if may_begin { go_round(worker, rounds, stop) } else { Ok(()) };
                ended.map_err(|(round, trouble)| (index, round, trouble))
            };
            threads.push(Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work)?);
        }
        *begin = true;
        drop(begin);
        let mut damage = None;
        let mut refused = None;
        for thread in threads {
            match thread.join().map_err(|_| io::Error::other("a thread panicked"))? {
                Err((thread, round, Trouble::Wrong(what))) if damage.is_none() => {
                    damage = Some(Damage { thread, round, what });
                }
                Err((thread, round, Trouble::Refused(error))) if refused.is_none() => {
                    refused = Some(io::Error::new(
                        error.kind(),
                        format!("thread {thread}, round {round}: {error}"),
                    ));
                }
                _ => {}
            }
        }
        // A refusal may be a consequence of damage.
        match (damage, refused) {
            (None, Some(error)) => Err(error),
            (damage, _) => Ok(damage),
        }
    })
}

/// Makes the rounds of one thread; the error contains the round in which there was trouble.
fn go_round(mut worker: Worker, rounds: u64, stop: &AtomicBool) -> Result<(), (u64, Trouble)> {
    for round in 0..rounds {
        // A hint: it orders nothing, and a thread that sees it late makes a few more rounds.
        if stop.load(Ordering::Relaxed) {
            break;
        }
        worker(round).map_err(|trouble| {
            stop.store(true, Ordering::Relaxed);
            (round, trouble)
        })?;
    }
    Ok(())
}
