//! Flushes of processors that do not respond: they wait for nothing, and are not forgotten (O15).

use super::prelude::*;
use crate::arch::x86_64::window::FILLER;
use x86_64::instructions::hlt;

/// More than the time of any call that does not wait. The fastest of many is compared with it,
/// because this processor may itself have to wait for the machine's CPU.
const AT_ONCE_US: u64 = 2000;
const ROUNDS: u64 = 3;

static HALTS: AtomicBool = AtomicBool::new(false);
static AWAKE: AtomicBool = AtomicBool::new(false);
static SEEN: AtomicU64 = AtomicU64::new(0);

/// Reads the page, halts with interrupts off, and reads the page again after an NMI.
fn read_halt_read(_: usize) {
    window::read(WINDOW);
    HALTS.store(true, Ordering::Release);
    hlt();
    SEEN.store(window::read(WINDOW), Ordering::Relaxed);
    AWAKE.store(true, Ordering::Release);
}

/// Replaces a halted processor's page, calls `flush`, and wakes it, and does `as_it_wakes`
/// repeatedly; returns what it then sees.
fn while_halted(
    processor: usize,
    round: u64,
    is_global: bool,
    flush: impl FnOnce() -> Verdict,
    as_it_wakes: impl Fn() -> Verdict,
) -> Result<u64, Stop> {
    HALTS.store(false, Ordering::Release);
    AWAKE.store(false, Ordering::Release);
    replace(WINDOW, 2 * round, is_global);
    machine::on(processor, |_| window::enter_space(window::space()))?;
    machine::give(processor, read_halt_read)?;
    let halts = clock::wait_until(PATIENCE_MS, || HALTS.load(Ordering::Acquire));
    // Until it has reached its HLT.
    clock::delay(1000);
    replace(WINDOW, 2 * round + 1, is_global);
    let flushed = flush();
    let was_awake = AWAKE.load(Ordering::Acquire);
    let mut meanwhile = Ok(());
    let woken = clock::wait_until(PATIENCE_MS, || {
        // More than one, in case the first arrives before the HLT.
        apic::send_nmi(processors::id(processor));
        clock::wait_until(5, || {
            meanwhile = meanwhile.clone().and_then(|()| as_it_wakes());
            AWAKE.load(Ordering::Acquire)
        })
    });
    machine::join(processor)?;
    flushed.and(meanwhile)?;
    ensure!(halts, "the other processor does not halt");
    ensure!(!was_awake, "a flush has woken it");
    ensure!(woken, "an NMI does not wake it");
    Ok(SEEN.load(Ordering::Relaxed))
}

/// The flush does not wait for a processor that halts with interrupts off.
pub(super) fn halted() -> Verdict {
    machine::flushes()?;
    let processor = machine::second()?;
    for round in 0..ROUNDS {
        let flush = || {
            let mut fastest = u64::MAX;
            each_of_all(processor, |flush| {
                let begin = clock::now();
                let result = hypercall::flush(flush);
                fastest = fastest.min(clock::now() - begin);
                result
            })?;
            ensure!(fastest < clock::ticks(AT_ONCE_US), "the fastest of the calls took {fastest} cycles");
            Ok(())
        };
        while_halted(processor, round, false, flush, || Ok(()))?;
    }
    Ok(())
}

fn each_of_all(processor: usize, mut each: impl FnMut(&Flush<'_>) -> Verdict) -> Verdict {
    kinds().try_for_each(|kind| each_form(kind, Via::Memory, machine::vp(processor), WINDOW, &mut each))
}

/// Requests made while it halted are complete before it reads.
pub(super) fn halted_sees() -> Verdict {
    machine::flushes()?;
    let processor = machine::second()?;
    let mut round = 0;
    let mut sees = |is_global, flush: &Flush<'_>| {
        round += 1;
        let seen = while_halted(processor, round, is_global, || hypercall::flush(flush), || Ok(()))?;
        ensure!(seen == 2 * round + 1, "{:?}: it sees round {seen}, not {}", flush.kind, 2 * round + 1);
        Ok(())
    };
    each_of_all(processor, |flush| sees(false, flush))?;
    // Its space is named with flags of CR3; and another one is, but its page is of all spaces.
    let non_global = FlushFlags::new().with_non_global_only(true);
    let named = [(false, non_global, window::space() | 5), (true, FlushFlags::new(), window::other_space())];
    named.into_iter().try_for_each(|(is_global, flags, space)| {
        sees(is_global, &Flush { space, flags, ..plain(Kind::Space, Targets::AllFlag, &[]) })
    })
}

/// It wakes amid requests for another page, by list: what was requested before is done as well.
pub(super) fn wakes_amid_lists() -> Verdict {
    machine::flushes()?;
    let processor = machine::second()?;
    for round in 0..ROUNDS {
        let all = || hypercall::flush(&plain(Kind::Space, Targets::AllFlag, &[]));
        let list = || hypercall::flush(&plain(Kind::List, Targets::AllFlag, &[FILLER]));
        let seen = while_halted(processor, round, false, all, list)?;
        ensure!(seen == 2 * round + 1, "it sees round {seen}, not {}", 2 * round + 1);
    }
    Ok(())
}
