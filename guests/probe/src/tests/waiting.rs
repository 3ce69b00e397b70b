//! Flushes of processors that do not respond: they wait for nothing (O15).

use super::prelude::*;
use x86_64::instructions::hlt;

/// More than the time of any call that does not wait. The fastest of many is compared with it,
/// because this processor may itself have to wait for the machine's CPU.
const AT_ONCE_US: u64 = 1000;
const ROUNDS: u32 = 5;

/// Every form of the flush for the processors of `mask` succeeds at once.
fn flushes_at_once(what: &str, mask: u64) -> Verdict {
    let mut fastest = u64::MAX;
    for form in Form::all() {
        let begin = clock::now();
        let result = form.flush(mask, WINDOW);
        fastest = fastest.min(clock::now() - begin);
        ensure!(result == Ok(form.success()), "{what}, {form:?}: {result:?}");
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
            processors::give(SECOND, || {
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
    processors::run(SECOND, || ())
}

static HALTS: AtomicBool = AtomicBool::new(false);
static AWAKE: AtomicBool = AtomicBool::new(false);

/// A processor in HLT without interrupts: a flush neither waits for it nor wakes it; an NMI does.
pub(super) fn flush_halted() -> Verdict {
    enable()?;
    let mask = 1 << second_vp()?;
    for _ in 0..ROUNDS {
        HALTS.store(false, Ordering::Release);
        AWAKE.store(false, Ordering::Release);
        processors::give(SECOND, || {
            HALTS.store(true, Ordering::Release);
            hlt();
            AWAKE.store(true, Ordering::Release);
        });
        ensure!(clock::wait_until(PATIENCE_MS, || HALTS.load(Ordering::Acquire)), "it does not do its job");
        // Until it has reached its HLT.
        clock::wait_until(1, || false);
        let flushed = flushes_at_once("halted", mask);
        let was_awake = AWAKE.load(Ordering::Acquire);
        let woken = clock::wait_until(PATIENCE_MS, || {
            // More than one, in case the first arrives before the HLT.
            apic::send_nmi(SECOND);
            clock::wait_until(5, || AWAKE.load(Ordering::Acquire))
        });
        flushed?;
        ensure!(!was_awake, "a flush has woken it");
        ensure!(woken, "an NMI does not wake it");
        processors::join(SECOND)?;
    }
    // It takes the last of the NMIs before this.
    processors::run(SECOND, || ())
}
