//! Flushes of processors that do not respond: they wait for nothing (O15).

use super::hypercalls::flush;
use super::prelude::*;
use tlbcheck::form::Kind;

/// More than the time of any call that does not wait. The fastest of many is compared with it,
/// because this processor may itself have to wait for the machine's CPU.
const AT_ONCE_US: u64 = 1000;
const ROUNDS: u32 = 5;

/// Every kind of flush for the processors of `mask` succeeds at once.
fn flushes_at_once(what: &str, mask: u64) -> Verdict {
    let mut fastest = u64::MAX;
    for kind in Kind::ALL {
        let begin = clock::now();
        flush(kind, mask, WINDOW)?;
        fastest = fastest.min(clock::now() - begin);
    }
    ensure!(fastest < clock::ticks(AT_ONCE_US), "{what}: the fastest of the calls took {fastest} ticks");
    Ok(())
}

/// A processor that has never been started. The test must run before all that start it.
pub(super) fn flush_not_started() -> Verdict {
    ensure!(!processors::runs(SECOND), "the second processor has been started before");
    enable()?;
    let index = rdmsr(tlfs::msr::VP_INDEX).map_err(|fault| failure(format_args!("VP index: {fault:?}")))?;
    flushes_at_once("not started", !(1 << index))
}

static TURNS: AtomicU32 = AtomicU32::new(0);

/// A processor that is reset: while it halts, is in guest mode, or waits for its start.
pub(super) fn flush_reset() -> Verdict {
    enable()?;
    let mask = 1 << second_vp()?;
    for round in 0..ROUNDS {
        processors::start(SECOND)?;
        if round % 2 == 1 {
            let before = TURNS.load(Ordering::Relaxed);
            processors::give(SECOND, |_| {
                loop {
                    TURNS.fetch_add(1, Ordering::Relaxed);
                }
            });
            let spins = clock::wait_until(PATIENCE_MS, || TURNS.load(Ordering::Relaxed) != before);
            ensure!(spins, "the second processor does not do its job");
        }
        processors::reset(SECOND);
        flushes_at_once("just reset", mask)?;
        let turns = TURNS.load(Ordering::Relaxed);
        flushes_at_once("waiting for its start", mask)?;
        clock::wait_until(1, || false);
        ensure!(TURNS.load(Ordering::Relaxed) == turns, "the second processor goes on after its reset");
    }
    // Works as before.
    processors::run(SECOND, |_| ())
}
