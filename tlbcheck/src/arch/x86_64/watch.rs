//! Another processor looks at an address all the time, and tells if it sees what was taken away.
//!
//! | first processor | the watching one |
//! |---|---|
//! | a: write round n to the page that is not mapped | |
//! | b: map it instead of the other | |
//! | c: flush | |
//! | d: RELEASED = n | e: r = RELEASED |
//! | | f: v = what is at the mapped address |
//! | g: wait for CHECKED = n | h: v < r is stale; CHECKED = r |
//!
//! If e sees n of d, then the flush of c has returned, so f reads the page of a or a later one. g before the next a: a
//! stale translation shows round n - 1 at h, and nothing newer. The watching processor has no timer and makes no exit
//! of its own, for an exit drops translations on some machines; interrupts are off unless they are what flushes.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use baremetal::pages::{PAGE, Page};
use baremetal::x86_64::clock;
use tlbcheck::ensure;
use tlbcheck::report::{Stop, Verdict, skip};
use x86_64::instructions::interrupts;
use x86_64::registers::control::Cr4Flags;

use super::machine::{self, PATIENCE_MS};
use super::window::{self, GLOBAL, RIGHTS};

/// Rounds without a flush, one of which has to be noticed.
const TRIES: u32 = 2000;

/// What is looked at, by whom and how.
#[derive(Clone, Copy)]
pub(super) struct What {
    /// The processor.
    pub(super) processor: usize,
    /// The first of the words.
    pub(super) address: u64,
    /// How many there are, and how far one is from the next.
    pub(super) words: u64,
    pub(super) every: u64,
    /// In which address space.
    pub(super) space: u64,
    /// Whether global pages are on.
    pub(super) global: bool,
    /// Whether interrupts are on.
    pub(super) interrupts: bool,
}

impl What {
    /// One word of a page that is not global, in the address space that all begin with, with interrupts off.
    pub(super) fn page(processor: usize, address: u64) -> Self {
        Self {
            processor,
            address,
            words: 1,
            every: PAGE,
            space: window::space(),
            global: false,
            interrupts: false,
        }
    }
}

static ADDRESS: AtomicU64 = AtomicU64::new(0);
static WORDS: AtomicU64 = AtomicU64::new(0);
static EVERY: AtomicU64 = AtomicU64::new(0);
static SPACE: AtomicU64 = AtomicU64::new(0);
static IS_GLOBAL: AtomicBool = AtomicBool::new(false);
static TAKES_INTERRUPTS: AtomicBool = AtomicBool::new(false);
static RELEASED: AtomicU64 = AtomicU64::new(0);
static CHECKED: AtomicU64 = AtomicU64::new(0);
static STALE: AtomicU64 = AtomicU64::new(0);
static ENDS: AtomicBool = AtomicBool::new(false);

static PAGES: [Page; 2] = [const { Page::new() }; 2];

/// The page of a round, with its number in it.
pub(super) fn page_of(round: u64) -> &'static Page {
    let page = &PAGES[(round % 2) as usize];
    page.write(&[round]);
    page
}

/// Maps the page of this round at `address`, global or not.
pub(super) fn replace(address: u64, round: u64, global: bool) {
    let bits = RIGHTS | if global { GLOBAL } else { 0 };
    window::leaf(address).store(page_of(round).address() | bits, Ordering::SeqCst);
}

/// Looks once; an NMI's handler may do so as well, on the watching processor.
#[inline(always)]
pub(super) fn look() {
    let released = RELEASED.load(Ordering::Acquire);
    let address = ADDRESS.load(Ordering::Relaxed);
    let every = EVERY.load(Ordering::Relaxed);
    for word in 0..WORDS.load(Ordering::Relaxed) {
        if window::read(address.wrapping_add(word * every)) < released {
            STALE.fetch_add(1, Ordering::Relaxed);
        }
    }
    CHECKED.store(released, Ordering::Release);
}

/// What the watching processor does.
fn watch(_: usize) {
    window::enter_space(SPACE.load(Ordering::Relaxed));
    window::set_cr4(Cr4Flags::PAGE_GLOBAL, IS_GLOBAL.load(Ordering::Relaxed));
    if TAKES_INTERRUPTS.load(Ordering::Relaxed) {
        interrupts::enable();
    }
    while !ENDS.load(Ordering::Acquire) {
        look();
    }
    interrupts::disable();
    window::set_cr4(Cr4Flags::PAGE_GLOBAL, false);
    window::enter_space(window::space());
}

/// Rounds in which it looks.
pub(super) struct Watch(u64);

/// Has the processor look while `rounds` runs. `map` maps round 0.
pub(super) fn during(
    what: What,
    map: impl FnOnce(u64),
    rounds: impl FnOnce(&mut Watch) -> Verdict,
) -> Verdict {
    map(0);
    ADDRESS.store(what.address, Ordering::Relaxed);
    WORDS.store(what.words, Ordering::Relaxed);
    EVERY.store(what.every, Ordering::Relaxed);
    SPACE.store(what.space, Ordering::Relaxed);
    IS_GLOBAL.store(what.global, Ordering::Relaxed);
    TAKES_INTERRUPTS.store(what.interrupts, Ordering::Relaxed);
    RELEASED.store(0, Ordering::Relaxed);
    CHECKED.store(0, Ordering::Relaxed);
    STALE.store(0, Ordering::Relaxed);
    ENDS.store(false, Ordering::Relaxed);
    // What the processor kept of an earlier row goes with its CR3.
    machine::give(what.processor, watch)?;
    let result = rounds(&mut Watch(0));
    ENDS.store(true, Ordering::Release);
    machine::join(what.processor)?;
    result
}

impl Watch {
    /// One round: `replace` maps its page, `flush` makes it known. Returns how many stale words have been seen.
    pub(super) fn round(
        &mut self,
        replace: impl FnOnce(u64),
        flush: impl FnOnce() -> Verdict,
    ) -> Result<u64, Stop> {
        self.0 += 1;
        replace(self.0);
        let flushed = flush();
        RELEASED.store(self.0, Ordering::Release);
        let checked = clock::wait_until(PATIENCE_MS, || CHECKED.load(Ordering::Acquire) == self.0);
        flushed?;
        ensure!(checked, "the watching processor does not look at round {}", self.0);
        Ok(STALE.swap(0, Ordering::Relaxed))
    }

    /// Succeeds if a flush that is left out is noticed: then rounds without stale words say something. Skips otherwise.
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
        Err(skip(format_args!("no TLB here keeps a page that is replaced without a flush, in {TRIES} tries")))
    }
}
