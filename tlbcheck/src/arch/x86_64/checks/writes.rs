//! A processor's accesses through a translation are complete, and recorded in the entry, when the
//! flush of the translation returns (O1, O2).

use baremetal::x86_64::guarded::{load, store};
use x86_64::instructions::interrupts;

use super::prelude::*;
use crate::arch::x86_64::window::{ACCESSED, DIRTY};

const ROUNDS: u32 = 1000;
/// Maximum time for which the page is mapped, in addition to the writer's turns, in microseconds:
/// the page is removed at a random point in a turn.
const MAPPED_US_MAX: u64 = 40;
/// Turns of the writer of which the last is a whole one: counting may begin in the first.
const WHOLE_TURN: u64 = 2;

/// The checks after the flush.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Looks {
    /// Whether the page still changes.
    AtStores,
    /// Whether the entry recorded the accesses, and still changes.
    AtBits,
}

static PAGE: Page = Page::new();
static ENDS: AtomicBool = AtomicBool::new(false);
static TAKES_INTERRUPTS: AtomicBool = AtomicBool::new(false);
/// Turns of the writer, which show that it is running also while the page is absent.
static TURNS: AtomicU64 = AtomicU64::new(0);

/// Reads and writes all the time, whether or not there is a page.
fn read_and_write(_: usize) {
    if TAKES_INTERRUPTS.load(Ordering::Relaxed) {
        interrupts::enable();
    }
    let mut turn = 0;
    while !ENDS.load(Ordering::Acquire) {
        turn += 1;
        // The read creates a translation of a page that is not dirty yet.
        if load(WINDOW).is_ok() {
            // SAFETY: the page is for this row's stores. If it is removed before, the store faults.
            let _ = unsafe { store(WINDOW, turn) };
        }
        // Pairs with the first processor's load: one that sees the turn's end sees its stores.
        TURNS.store(turn, Ordering::Release);
    }
    interrupts::disable();
}

/// By every way in which a kind of call names its targets, in memory and in registers.
pub(super) fn by_hypercall(kind: Kind, looks: Looks) -> Verdict {
    offers(kind, Via::Memory)?;
    let processor = machine::second()?;
    let vp = machine::vp(processor);
    race(processor, false, looks, |rounds| {
        for via in [Via::Memory, Via::Xmm] {
            if offers(kind, via).is_ok() {
                each_form(kind, via, vp, WINDOW, |flush| rounds(&|| hypercall::flush(flush)))?;
            }
        }
        Ok(())
    })
}

pub(super) fn by_engine(back_ends: &[BackEnd], looks: Looks) -> Verdict {
    let processor = machine::second()?;
    let flush = |back_end: &BackEnd| back_end.flush(&[processor], Scope::Pages(&[WINDOW]));
    among(&[processor], || {
        race(processor, true, looks, |rounds| {
            back_ends.iter().try_for_each(|back_end| rounds(&|| flush(back_end)))
        })
    })
}

/// Rounds with one kind of flush.
type Rounds<'a> = dyn FnMut(&dyn Fn() -> Verdict) -> Verdict + 'a;

/// Makes the processor read and write during the rounds of every flush that `flushes` gives.
fn race(
    processor: usize,
    interrupts: bool,
    looks: Looks,
    flushes: impl FnOnce(&mut Rounds<'_>) -> Verdict,
) -> Verdict {
    let entry = window::leaf(WINDOW);
    entry.store(0, Ordering::SeqCst);
    window::invlpg(WINDOW);
    ENDS.store(false, Ordering::Release);
    TAKES_INTERRUPTS.store(interrupts, Ordering::Relaxed);
    // An earlier row's page may be in its TLB; the job begins without any of these.
    machine::on(processor, |_| window::enter_space(window::space()))?;
    machine::give(processor, read_and_write)?;
    let (mut random, mut written) = (Random::new(0xd1e7), 0);
    let verdict = flushes(&mut |flush| {
        for _ in rounds(ROUNDS) {
            written += u64::from(round(&mut random, looks, flush)?);
        }
        Ok(())
    });
    ENDS.store(true, Ordering::Release);
    machine::join(processor)?;
    entry.store(0, Ordering::SeqCst);
    window::invlpg(WINDOW);
    verdict?;
    needs!(written > 0, "no page was written to before it went");
    Ok(())
}

/// Waits until the writer has completed this many more turns, or has stopped for good.
fn wait_for_turns(turns: u64, meanwhile: &mut dyn FnMut() -> bool) -> Verdict {
    let last = TURNS.load(Ordering::Acquire) + turns;
    let ended = clock::wait_until(PATIENCE_MS, || meanwhile() || TURNS.load(Ordering::Acquire) >= last);
    ensure!(ended, "the other processor stands still");
    Ok(())
}

/// Maps the page, removes it by one exchange, and flushes it; returns whether it was written to.
///
/// After the flush the writer makes a whole turn, in which it uses a translation that it still has.
fn round(random: &mut Random, looks: Looks, flush: &dyn Fn() -> Verdict) -> Result<bool, Stop> {
    let (entry, word) = (window::leaf(WINDOW), &PAGE.words()[0]);
    word.store(0, Ordering::SeqCst);
    entry.store(PAGE.address() | RIGHTS, Ordering::SeqCst);
    // It has a translation then; or it may have one, and the bits are not all set.
    wait_for_turns(if looks == Looks::AtStores { WHOLE_TURN } else { 1 }, &mut || false)?;
    let end = clock::now() + clock::ticks(random.below(MAPPED_US_MAX));
    while clock::now() < end {}
    // No longer present; a late access shows in the bits.
    let taken = entry.swap(PAGE.address(), Ordering::SeqCst);
    let flushed = flush();
    // Anything written after this is visible.
    let left = word.swap(0, Ordering::SeqCst);
    flushed?;
    let is_written = left != 0;
    let told = !is_written || taken & DIRTY != 0;
    ensure!(looks == Looks::AtStores || told, "written to, by the entry {taken:#x}");
    let has_changed = || match looks {
        Looks::AtStores => word.load(Ordering::Acquire) != 0,
        Looks::AtBits => entry.load(Ordering::Acquire) & (ACCESSED | DIRTY) != 0,
    };
    wait_for_turns(WHOLE_TURN, &mut || has_changed())?;
    let bits = entry.load(Ordering::Acquire);
    match looks {
        Looks::AtStores => ensure!(!has_changed(), "the page is written to after the flush has returned"),
        Looks::AtBits => ensure!(!has_changed(), "the entry becomes {bits:#x} after the flush has returned"),
    }
    Ok(is_written)
}
