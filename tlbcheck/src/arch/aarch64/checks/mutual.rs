//! Processors that flush each other all the time, and while they sleep.

use core::sync::atomic::AtomicBool;

use super::prelude::*;
use baremetal::aarch64::interrupts;

/// Maximum number of flushes of each processor, and their time limit.
const FLUSHES: u64 = 300;
const BUDGET_US: u64 = 1_000_000;

/// The processor's own translations that outlived their flush, or were missing.
static WRONG: AtomicU32 = AtomicU32::new(0);
static PAGES: [Page; processors::MAX_PROCESSORS] = [const { Page::new() }; processors::MAX_PROCESSORS];

const fn place(number: usize) -> u64 {
    WINDOW + (64 + number as u64) * PAGE
}

/// Kinds that are used in turn.
const KINDS: [Kind; 4] = [Kind::Va, Kind::VaAllLast, Kind::Asid, Kind::All];

/// Each processor's job: maps and unmaps its own page, flushed on all processors.
fn flush_all(number: usize) {
    let space = TestSpace::shared();
    let (place, leaf) = (place(number), space.leaf(place(number)));
    window::enter(space.register());
    let end = clock::now() + clock::ticks(BUDGET_US);
    for round in (0..FLUSHES).take_while(|_| clock::now() <= end) {
        PAGES[number].write(&[round]);
        write(leaf, page_entry(PAGES[number].address()));
        let is_there = guarded::load(place) == Ok(round);
        replace(leaf, 0);
        let kind = KINDS[(round % 4) as usize];
        tlbi::flush(Form(Scope::Inner, kind), TlbiOperand::page(place, space.asid()));
        if !is_there || !is_gone(place) {
            WRONG.fetch_add(1, Ordering::AcqRel);
        }
    }
    window::leave();
}

/// All flush all at the same time: each finishes, and each flush is effective (O13).
pub(super) fn all() -> Verdict {
    machine::others()?;
    WRONG.store(0, Ordering::Release);
    // The tables are created before there are several processors.
    (0..machine::get().processors).for_each(|number| replace(TestSpace::shared().leaf(place(number)), 0));
    machine::on_all(flush_all)?;
    let wrong = WRONG.load(Ordering::Acquire);
    ensure!(wrong == 0, "{wrong} pages are not as they were mapped, or seen after their flush");
    Ok(())
}

static SLEEPS: AtomicBool = AtomicBool::new(false);
static WAKES: AtomicBool = AtomicBool::new(false);
static SEEN: AtomicU64 = AtomicU64::new(0);
const GONE: u64 = 1;
const OLD: u64 = 2;

/// Checks the page, sleeps, and checks again when it is woken.
fn look_sleep_look(_: usize) {
    window::enter(TestSpace::shared().register());
    let _ = guarded::load(WINDOW);
    SLEEPS.store(true, Ordering::Release);
    while !WAKES.load(Ordering::Acquire) {
        interrupts::wait();
    }
    tlbi::synchronise();
    SEEN.store(if is_gone(WINDOW) { GONE } else { OLD }, Ordering::Release);
    window::leave();
}

/// A page that is flushed while a processor sleeps is unmapped when that continues (O15).
pub(super) fn asleep() -> Verdict {
    let others = machine::others()?;
    let space = TestSpace::shared();
    let leaf = space.leaf(WINDOW);
    for (round, number) in rounds(20).zip(others.cycle()) {
        SLEEPS.store(false, Ordering::Release);
        WAKES.store(false, Ordering::Release);
        write(leaf, page_entry(page_of(round.into()).address()));
        machine::give(number, look_sleep_look)?;
        let sleeps = machine::wait_until(|| SLEEPS.load(Ordering::Acquire));
        // Until it has reached its WFI.
        clock::delay(1000);
        replace(leaf, 0);
        tlbi::flush(Form(Scope::Inner, Kind::Va), TlbiOperand::page(WINDOW, space.asid()));
        WAKES.store(true, Ordering::Release);
        processors::wake(number);
        machine::join(number)?;
        ensure!(sleeps, "processor {number} does not come to sleep");
        let seen = SEEN.load(Ordering::Acquire);
        ensure!(seen == GONE, "processor {number} sees the page that went while it slept, round {round}");
    }
    tlbi::settle();
    Ok(())
}
