//! Processors that share a physical TLB over time: virtual ones, which a hypervisor has run on
//! different CPUs, in turn. Each must see only what its own tables and TLBIs imply.
//!
//! A processor yields by WFI until its timer: the hypervisor below moves it, or runs another one.

use super::prelude::*;
use crate::arch::aarch64::watch::is_translation_fault;

/// Rounds of a row: their number ends it, not the clock; a busy machine checks just as much.
const ROUNDS: u64 = 2000;
const SLEEPS_EVERY: u64 = 8;

/// Number of wrong observations, and the last one.
static WRONG: AtomicU32 = AtomicU32::new(0);
static SEEN: AtomicU64 = AtomicU64::new(0);

/// Checks what the processor sees at an address: this word, or nothing.
fn expect(place: u64, word: Option<u64>) {
    let seen = guarded::load(place);
    if !word.map_or_else(|| is_translation_fault(seen), |word| seen == Ok(word)) {
        SEEN.store(seen.unwrap_or(u64::MAX), Ordering::Relaxed);
        WRONG.fetch_add(1, Ordering::AcqRel);
    }
}

fn verdict() -> Verdict {
    let (wrong, seen) = (WRONG.load(Ordering::Acquire), SEEN.load(Ordering::Relaxed));
    ensure!(wrong == 0, "{wrong} times a processor saw what its tables do not say, at last {seen:#x}");
    Ok(())
}

/// Yields in some rounds.
pub(super) fn pause(round: u64) {
    if round.is_multiple_of(SLEEPS_EVERY) {
        machine::sleep();
    } else {
        clock::relax();
    }
}

/// The ASID that all processors use, each for its own tables.
const ASID: u16 = 5;
/// Address of each one's page.
const PLACE: u64 = WINDOW + 8 * PAGE;

/// A space and a page for each processor, created by the first.
static SPACES: spin::Once<arrayvec::ArrayVec<TestSpace, { processors::MAX_PROCESSORS }>> = spin::Once::new();
static PAGES: [[Page; 2]; processors::MAX_PROCESSORS] =
    [const { [const { Page::new() }; 2] }; processors::MAX_PROCESSORS];

/// The page of processor `number` in a round, and its word.
fn own_page(number: usize, round: u64) -> (u64, u64) {
    let (page, word) = (&PAGES[number][(round % 2) as usize], (number as u64) << 32 | round);
    page.write(&[word]);
    (page_entry(page.address()), word)
}

fn look_at_own(number: usize) {
    let Some(space) = SPACES.get().and_then(|spaces| spaces.get(number)) else { return };
    let (_, word) = own_page(number, 0);
    window::enter(space.register());
    for round in 0..ROUNDS {
        expect(PLACE, Some(word));
        pause(round);
    }
    window::leave();
}

fn change_own(number: usize) {
    let Some(space) = SPACES.get().and_then(|spaces| spaces.get(number)) else { return };
    let leaf = space.leaf(PLACE);
    window::enter(space.register());
    for round in 0..ROUNDS {
        let (entry, word) = own_page(number, round);
        replace(leaf, 0);
        let kind = if round % 3 == 0 { Kind::All } else { Kind::Va };
        tlbi::flush(Form(Scope::Local, kind), TlbiOperand::page(PLACE, ASID));
        expect(PLACE, None);
        pause(round);
        write(leaf, entry);
        expect(PLACE, Some(word));
        pause(round + 1);
    }
    window::leave();
}

/// All use the same ASID and the same address, each with its own tables: TTBR0_EL1.CnP is 0, so one
/// processor's TLB must not serve another, even where two alternate on a CPU (A3). `changes`: each
/// changes its own, with local TLBIs.
pub(super) fn own_tables(changes: bool) -> Verdict {
    machine::others()?;
    let count = machine::get().processors;
    let spaces = SPACES.call_once(|| (0..count).map(|_| TestSpace::new(ASID)).collect());
    for (number, space) in spaces.iter().enumerate() {
        replace(space.leaf(PLACE), own_page(number, 0).0);
    }
    // Drops translations of the ASID from an earlier row.
    tlbi::settle();
    WRONG.store(0, Ordering::Release);
    let done = machine::on_all(if changes { change_own } else { look_at_own });
    spaces.iter().for_each(|space| replace(space.leaf(PLACE), 0));
    tlbi::settle();
    done.and(verdict())
}

/// Pages of each processor in the common tables, so that various TLBs hold some of them.
const PAGES_EACH: u64 = 4;
/// The TLBI that the processors use: 1 is everything.
static ALL: AtomicU32 = AtomicU32::new(0);

const fn place(number: usize, page: u64) -> u64 {
    WINDOW + (1 << 28) + (number as u64 * PAGES_EACH + page) * PAGE
}

/// Has all its pages in TLBs, exchanges one with a local TLBI, and checks it wherever it then runs.
fn exchange(number: usize) {
    let space = TestSpace::shared();
    let kind = if ALL.load(Ordering::Relaxed) != 0 { Kind::All } else { Kind::Va };
    window::enter(space.register());
    for page in 0..PAGES_EACH {
        write(space.leaf(place(number, page)), own_page(number, 0).0);
    }
    for round in 0..ROUNDS {
        let page = round % PAGES_EACH;
        let (place, leaf) = (place(number, page), space.leaf(place(number, page)));
        pause(round);
        let _ = guarded::load(place);
        replace(leaf, 0);
        tlbi::flush(Form(Scope::Local, kind), TlbiOperand::page(place, space.asid()));
        // TLBs where it ran before may still hold the page.
        pause(round + 2);
        expect(place, None);
        // A different page from the previous one.
        let (entry, word) = own_page(number, round / PAGES_EACH + 1);
        write(leaf, entry);
        pause(round + 4);
        expect(place, Some(word));
    }
    (0..PAGES_EACH).for_each(|page| replace(space.leaf(place(number, page)), 0));
    window::leave();
}

/// A TLBI for the processor's own TLB is effective wherever the processor continues (A2, A21).
pub(super) fn local(kind: Kind) -> Verdict {
    ALL.store(u32::from(kind == Kind::All), Ordering::Relaxed);
    WRONG.store(0, Ordering::Release);
    // The tables are created before there are several processors.
    let places =
        (0..machine::get().processors).flat_map(|number| (0..PAGES_EACH).map(move |page| (number, page)));
    places.for_each(|(number, page)| replace(TestSpace::shared().leaf(place(number, page)), 0));
    tlbi::settle();
    let done = machine::on_all(exchange);
    tlbi::settle();
    done.and(verdict())
}
