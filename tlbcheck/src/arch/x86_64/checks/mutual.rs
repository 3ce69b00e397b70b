//! Flushes of the caller itself, and two processors that flush each other.

use super::local;
use super::prelude::*;

/// The caller is flushed if it is among the targets (H27).
pub(super) fn own() -> Verdict {
    machine::flushes()?;
    for kind in kinds() {
        each_form(kind, Via::Memory, machine::vp(0), WINDOW, |flush| {
            let stale = local::takes_by(|| hypercall::flush(flush))?;
            ensure!(stale == 0, "the old page in {stale} rounds, {kind:?} of {:x?}", flush.targets);
            Ok(())
        })?;
    }
    Ok(())
}

/// Number of calls of each of the two.
const CALLS: u64 = 500;

/// Processors at the start; calls with a wrong result, and translations that outlived them.
static ARRIVALS: AtomicU32 = AtomicU32::new(0);
static FAILED: AtomicU32 = AtomicU32::new(0);
static STALE: AtomicU32 = AtomicU32::new(0);

static PAGES: [[Page; 2]; 2] = [const { [const { Page::new() }; 2] }; 2];

/// Two processors flush each other and themselves, and both finish (O13).
pub(super) fn by_hypercall() -> Verdict {
    machine::flushes()?;
    let second = machine::second()?;
    for counter in [&ARRIVALS, &FAILED, &STALE] {
        counter.store(0, Ordering::Relaxed);
    }
    // The tables for both are created before both run.
    (0..2).for_each(|me| window::leaf(place(me)).store(0, Ordering::SeqCst));
    machine::give(second, flush_both)?;
    flush_both(0);
    machine::join(second)?;
    let (failed, stale) = (FAILED.load(Ordering::Acquire), STALE.load(Ordering::Acquire));
    ensure!(failed == 0, "{failed} calls fail");
    ensure!(stale == 0, "{stale} times the caller saw what it had taken away");
    Ok(())
}

const fn place(number: usize) -> u64 {
    WINDOW + (number as u64 % 2 + 1) * PAGE
}

fn flush_both(number: usize) {
    let me = number % 2;
    ARRIVALS.fetch_add(1, Ordering::AcqRel);
    clock::wait_until(PATIENCE_MS, || ARRIVALS.load(Ordering::Acquire) == 2);
    for call in 1..=CALLS {
        let page = &PAGES[me][(call % 2) as usize];
        page.write(&[call]);
        window::leaf(place(me)).store(page.address() | RIGHTS, Ordering::SeqCst);
        let kind = if call % 2 == 0 { Kind::List } else { Kind::Space };
        let elements = [Element::Plain.word(place(me), 0)];
        if hypercall::flush(&plain(kind, Targets::AllFlag, &elements)).is_err() {
            FAILED.fetch_add(1, Ordering::AcqRel);
        }
        if window::read(place(me)) != call {
            STALE.fetch_add(1, Ordering::AcqRel);
        }
    }
}
