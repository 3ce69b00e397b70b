//! Processors that flush each other all the time, and that sleep meanwhile.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use baremetal::aarch64::{clock, guarded, interrupts, processors};
use baremetal::pages::{PAGE, Page};
use tlbcheck::ensure;
use tlbcheck::report::Verdict;

use super::local::{is_gone, page_of};
use crate::arch::aarch64::machine::{self, rounds};
use crate::arch::aarch64::tlbi::{self, Form, Kind, Scope, TlbiOperand};
use crate::arch::aarch64::window::{self, TestSpace, WINDOW, page_entry, replace, write};

/// Flushes of each processor at most, and how long they may take.
const FLUSHES: u64 = 300;
const BUDGET_US: u64 = 1_000_000;

/// Own translations that outlived their flush, or were not there.
static WRONG: AtomicU32 = AtomicU32::new(0);
static PAGES: [Page; processors::MAX_PROCESSORS] = [const { Page::new() }; processors::MAX_PROCESSORS];

const fn place(number: usize) -> u64 {
    WINDOW + (64 + number as u64) * PAGE
}

/// Kinds that take turns.
const KINDS: [Kind; 4] = [Kind::Va, Kind::VaAllLast, Kind::Asid, Kind::All];

/// What each processor does: its own page comes and goes, flushed on all.
fn flush_all(number: usize) {
    let space = TestSpace::shared();
    let (place, leaf) = (place(number), space.leaf(place(number)));
    window::enter(space.register());
    let end = clock::now() + clock::ticks(BUDGET_US);
    for round in 0..FLUSHES {
        if clock::now() > end {
            break;
        }
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

/// All flush all at the same time: each comes to its end, and each flush is done (O13).
pub(super) fn all() -> Verdict {
    machine::others()?;
    WRONG.store(0, Ordering::Release);
    // The tables are made before they are many.
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

/// Looks at the page, sleeps, and looks again when it is woken.
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

/// What is flushed while a processor waits for an interrupt is gone when it goes on (O15).
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
        // Until it has come to its WFI.
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
