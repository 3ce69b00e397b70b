//! The second processor looks at an address all the time, and tells if it sees what was taken away.
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
//! the next a: a stale translation shows round n - 1 at h, and nothing newer. The second processor leaves guest mode
//! only where it is kicked, for an exit drops translations on some machines.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::clock;
use crate::paging::{self, GLOBAL, PAGE, Page, RIGHTS, WINDOW};
use crate::processors::{self, SECOND};
use crate::report::{Failure, Verdict, ensure, failure};

const PATIENCE_MS: u64 = 5000;
/// Rounds without a flush, one of which has to be noticed.
const TRIES: u32 = 1000;

/// What is looked at.
#[derive(Clone, Copy)]
pub(super) struct What {
    /// The first of the words, one in each 4 KiB.
    pub(super) address: u64,
    /// How many there are.
    pub(super) words: u64,
    /// In which address space.
    pub(super) space: u64,
    /// Whether global pages are on.
    pub(super) global: bool,
}

impl What {
    /// The small page that [`replace`] replaces, in the address space that all begin with.
    pub(super) fn page() -> Self {
        Self { address: WINDOW, words: 1, space: paging::space(), global: false }
    }
}

static ADDRESS: AtomicU64 = AtomicU64::new(0);
static WORDS: AtomicU64 = AtomicU64::new(0);
static SPACE: AtomicU64 = AtomicU64::new(0);
static IS_GLOBAL: AtomicBool = AtomicBool::new(false);
static RELEASED: AtomicU64 = AtomicU64::new(0);
static CHECKED: AtomicU64 = AtomicU64::new(0);
static STALE: AtomicU64 = AtomicU64::new(0);
static ENDS: AtomicBool = AtomicBool::new(false);

static PAGES: [Page; 2] = [const { Page::new() }; 2];

/// The page that is mapped at page 0 of the window in a round.
pub(super) fn page_of(round: u64) -> &'static Page {
    &PAGES[(round % 2) as usize]
}

/// Maps the page of this round at page 0 of the window, global or not.
pub(super) fn replace(round: u64, global: bool) {
    let page = page_of(round);
    page.write(&[round]);
    let bits = RIGHTS | if global { GLOBAL } else { 0 };
    paging::entry(0).store(page.address() | bits, Ordering::SeqCst);
}

/// Looks once; an NMI's handler may do so as well, on the second processor.
pub(super) fn look() {
    let released = RELEASED.load(Ordering::Acquire);
    let address = ADDRESS.load(Ordering::Relaxed);
    for word in 0..WORDS.load(Ordering::Relaxed) {
        let word = (address + word * PAGE) as *const u64;
        // SAFETY: a page is mapped there as long as this runs; the first processor exchanges it meanwhile.
        if unsafe { word.read_volatile() } < released {
            STALE.fetch_add(1, Ordering::Relaxed);
        }
    }
    CHECKED.store(released, Ordering::Release);
}

/// What the second processor does.
fn watch() {
    let own = paging::space();
    paging::enter_space(SPACE.load(Ordering::Relaxed));
    paging::set_global_pages(IS_GLOBAL.load(Ordering::Relaxed));
    while !ENDS.load(Ordering::Acquire) {
        look();
    }
    paging::set_global_pages(false);
    paging::enter_space(own);
}

/// Rounds in which it looks.
pub(super) struct Watch(u64);

/// Has the second processor look while `rounds` runs. `map` maps round 0.
pub(super) fn during(
    what: What,
    map: impl FnOnce(u64),
    rounds: impl FnOnce(&mut Watch) -> Verdict,
) -> Verdict {
    map(0);
    ADDRESS.store(what.address, Ordering::Relaxed);
    WORDS.store(what.words, Ordering::Relaxed);
    SPACE.store(what.space, Ordering::Relaxed);
    IS_GLOBAL.store(what.global, Ordering::Relaxed);
    RELEASED.store(0, Ordering::Relaxed);
    CHECKED.store(0, Ordering::Relaxed);
    STALE.store(0, Ordering::Relaxed);
    ENDS.store(false, Ordering::Relaxed);
    processors::start(SECOND)?;
    processors::give(SECOND, watch);
    let result = rounds(&mut Watch(0));
    ENDS.store(true, Ordering::Release);
    processors::join(SECOND)?;
    result
}

impl Watch {
    /// One round: `replace` maps its page, `flush` makes it known. Returns how many stale words have been seen.
    pub(super) fn round(
        &mut self,
        replace: impl FnOnce(u64),
        flush: impl FnOnce() -> Verdict,
    ) -> Result<u64, Failure> {
        self.0 += 1;
        replace(self.0);
        let flushed = flush();
        RELEASED.store(self.0, Ordering::Release);
        let checked = clock::wait_until(PATIENCE_MS, || CHECKED.load(Ordering::Acquire) == self.0);
        flushed?;
        ensure!(checked, "the second processor does not look at round {}", self.0);
        Ok(STALE.swap(0, Ordering::Relaxed))
    }

    /// Succeeds if a flush that is left out is noticed: then rounds without stale words say something.
    pub(super) fn notices(
        &mut self,
        mut replace: impl FnMut(u64),
        flush: impl FnOnce() -> Verdict,
    ) -> Verdict {
        for _ in 0..TRIES {
            if self.round(&mut replace, || Ok(()))? != 0 {
                // What was seen before this one's flush does not count.
                return self.round(replace, flush).map(drop);
            }
        }
        Err(failure(format_args!("{TRIES} pages are replaced without a flush, and each is seen at once")))
    }
}
