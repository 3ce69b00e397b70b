//! No processor sees a page after the flush that took it away has returned.
//!
//! | first processor | second processor, interrupts off |
//! |---|---|
//! | a: write round n to the page that is not mapped | |
//! | b: map it instead of the other | |
//! | c: flush the second processor by hypercall | |
//! | d: RELEASED = n | e: r = RELEASED |
//! | | f: v = what is at the mapped address |
//! | g: wait for CHECKED = n | h: v < r is stale; CHECKED = r |
//!
//! If e sees n of d, then the flush of c has returned, so f reads the page of a or a later one. g before
//! the next a: a stale translation shows round n - 1 at h, and nothing newer.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::forms::Form;
use crate::clock;
use crate::hypercall::enable;
use crate::paging::{self, Page, WINDOW};
use crate::processors::{self, SECOND};
use crate::report::{Verdict, ensure};

/// Rounds of each form of the flush.
const ROUNDS: u64 = 50;
const PATIENCE_MS: u64 = 5000;

static PAGES: [Page; 2] = [const { Page::new() }; 2];
static RELEASED: AtomicU64 = AtomicU64::new(0);
static CHECKED: AtomicU64 = AtomicU64::new(0);
static STALE: AtomicU64 = AtomicU64::new(0);
static ENDS: AtomicBool = AtomicBool::new(false);

fn watch() {
    while !ENDS.load(Ordering::Acquire) {
        let released = RELEASED.load(Ordering::Acquire);
        // SAFETY: a page is mapped there as long as this runs; the first processor exchanges it meanwhile.
        let value = unsafe { (WINDOW as *const u64).read_volatile() };
        if value < released {
            STALE.fetch_add(1, Ordering::Relaxed);
        }
        CHECKED.store(released, Ordering::Release);
    }
}

pub(super) fn stale() -> Verdict {
    enable()?;
    let mask = 1 << super::hypercalls::second_vp()?;
    paging::map(0, Some(&PAGES[0]));
    processors::give(SECOND, watch);
    let result = rounds(mask);
    ENDS.store(true, Ordering::Release);
    processors::join(SECOND)?;
    paging::map(0, None);
    result
}

fn rounds(mask: u64) -> Verdict {
    let mut round = 0;
    for form in Form::all() {
        for _ in 0..ROUNDS {
            round += 1;
            let page = &PAGES[(round % 2) as usize];
            page.write(&[round]);
            paging::exchange(0, Some(page));
            let result = form.flush(mask, WINDOW);
            RELEASED.store(round, Ordering::Release);
            ensure!(result == Ok(form.success()), "{form:?}: {result:?}");
            let checked = clock::wait_until(PATIENCE_MS, || CHECKED.load(Ordering::Acquire) == round);
            ensure!(checked, "the second processor does not look at round {round}, {form:?}");
            let stale = STALE.load(Ordering::Relaxed);
            ensure!(stale == 0, "{stale} stale reads in round {round}, {form:?}");
        }
    }
    Ok(())
}
