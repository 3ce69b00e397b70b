//! The hypercall page moves between two places, and two processors execute both places before and
//! after each move (H18).
//!
//! During the move itself neither does: QEMU discards the translated code of a page before it
//! changes the page, not after. So another processor that executes the page in between keeps the
//! old code for good.

use x86_64::registers::control::Cr0;

use super::prelude::*;
use crate::hypercall::{call_place, move_page};

const MOVES: u32 = 100;

/// `SMSW EAX; RET`, which returns CR0, then a pattern: the contents of each place when the
/// hypercall page is not there. The hypercall page begins with `VMMCALL; RET`.
const FORMER_CODE: u64 = 0x600d_c0de_c3e0_010f;

static PLACES: [Page; 2] = [const { Page::new() }; 2];

fn place_after(moves: u32) -> &'static Page {
    &PLACES[(moves % 2) as usize]
}

/// The value of each word of a place when the hypercall page is not there.
fn former(index: usize) -> u64 {
    FORMER_CODE ^ (index as u64) << 32
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    Hypercall,
    Former,
    Other(u64),
}

fn execute(place: &Page) -> Code {
    // SAFETY: each place contains one of the two codes.
    match unsafe { call_place(place) } {
        0 => Code::Hypercall,
        value if value == Cr0::read_raw() & 0xffff_ffff => Code::Former,
        value => Code::Other(value),
    }
}

/// Moves of the page, those that the second processor has checked, and how often it ran wrong code.
static MOVED: AtomicU32 = AtomicU32::new(0);
static CHECKED: AtomicU32 = AtomicU32::new(0);
static WRONG: AtomicU32 = AtomicU32::new(0);

/// Number of executions of both places after each move.
const EXECUTIONS: u32 = 20;

/// Executes both places after each move, and stays in guest mode during the next.
fn execute_both(_: usize) {
    while !processors::is_over() {
        let moved = MOVED.load(Ordering::Acquire);
        if moved == CHECKED.load(Ordering::Relaxed) {
            core::hint::spin_loop();
            continue;
        }
        // Code that another processor has changed: APM volume 2, section 7.6.1, requires a
        // serializing instruction.
        let _ = __cpuid(0);
        for _ in 0..EXECUTIONS {
            let found = [place_after(moved), place_after(moved + 1)].map(execute);
            if found != [Code::Hypercall, Code::Former] {
                WRONG.fetch_add(1, Ordering::Relaxed);
            }
        }
        CHECKED.store(moved, Ordering::Release);
    }
}

/// Wherever the page is, it works on both processors, and its old place has its former contents.
pub(super) fn hypercall_page_moves() -> Verdict {
    enable()?;
    for place in &PLACES {
        let words = place.words().iter().enumerate();
        words.for_each(|(index, word)| word.store(former(index), Ordering::Relaxed));
    }
    second_vp()?;
    for counter in [&MOVED, &CHECKED, &WRONG] {
        counter.store(0, Ordering::Relaxed);
    }
    let result = processors::beside(SECOND, execute_both, || (1..=MOVES).try_for_each(one_move));
    enable()?;
    result?;
    PLACES.iter().try_for_each(is_former)
}

fn one_move(number: u32) -> Verdict {
    let (place, left) = (place_after(number), place_after(number + 1));
    move_page(place)?;
    let found = [place, left].map(execute);
    is_former(left)?;
    ensure!(found == [Code::Hypercall, Code::Former], "the mover finds {found:x?} after move {number}");
    MOVED.store(number, Ordering::Release);
    let checked = clock::wait_until(PATIENCE_MS, || CHECKED.load(Ordering::Acquire) == number);
    ensure!(checked, "the second processor does not come by after move {number}");
    let wrong = WRONG.load(Ordering::Relaxed);
    ensure!(wrong == 0, "the second processor was wrong {wrong} times up to move {number}");
    Ok(())
}

fn is_former(place: &Page) -> Verdict {
    for (index, word) in place.words().iter().enumerate() {
        let word = word.load(Ordering::Acquire);
        ensure!(word == former(index), "word {index} is {word:#x} instead of {:#x}", former(index));
    }
    Ok(())
}
