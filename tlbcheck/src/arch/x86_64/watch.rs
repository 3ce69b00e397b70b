//! Another processor checks an address all the time, and reports if it sees a removed page: see
//! [`baremetal::watch`]. Interrupts are off unless they are used for flushes.

use core::sync::atomic::Ordering;

use baremetal::pages::PAGE;
use baremetal::watch::{Watch, Watched};
use baremetal::x86_64::clock;
use spin::Mutex;
use tlbcheck::report::{Stop, Verdict};
use x86_64::instructions::interrupts;
use x86_64::registers::control::Cr4Flags;

use super::machine;
use super::window::{self, GLOBAL, RIGHTS};
use crate::arch::testbed::PATIENCE_MS;
use crate::arch::window::{LARGE_WINDOW, PIECES_SEEN, SEEN_EVERY};

/// The words to check, from which processor and how.
#[derive(Clone, Copy)]
pub(super) struct What {
    pub(super) processor: usize,
    pub(super) address: u64,
    /// Number of words, and distance between them.
    pub(super) words: u64,
    pub(super) every: u64,
    pub(super) space: u64,
    pub(super) global: bool,
    /// Whether interrupts are enabled.
    pub(super) interrupts: bool,
}

impl What {
    /// One word of a non-global page, in the initial address space, with interrupts off.
    pub(super) fn page(processor: usize, address: u64) -> Self {
        let space = window::space();
        Self { processor, address, words: 1, every: PAGE, space, global: false, interrupts: false }
    }

    /// Pieces of a large page, likewise.
    pub(super) fn large_page(processor: usize) -> Self {
        Self { words: PIECES_SEEN, every: SEEN_EVERY, ..Self::page(processor, LARGE_WINDOW) }
    }

    /// Maps the page of this round.
    fn map(&self, round: u64) {
        match self.words {
            1 => replace(self.address, round, self.global),
            _ => window::replace_large(round),
        }
    }
}

static WATCHED: Watched = Watched::new();
static WHAT: Mutex<Option<What>> = Mutex::new(None);

/// Maps the page of this round at `address`, global or not.
pub(super) fn replace(address: u64, round: u64, global: bool) {
    let bits = RIGHTS | if global { GLOBAL } else { 0 };
    window::leaf(address).store(WATCHED.write_page(round).address() | bits, Ordering::SeqCst);
}

/// Checks once; an NMI's handler may do so as well, on the watching processor.
#[inline(always)]
pub(super) fn look() {
    WATCHED.look(window::read);
}

fn watch(_: usize) {
    let Some(what) = *WHAT.lock() else { return };
    window::enter_space(what.space);
    window::set_cr4(Cr4Flags::PAGE_GLOBAL, what.global);
    if what.interrupts {
        interrupts::enable();
    }
    WATCHED.follow(window::read);
    interrupts::disable();
    window::set_cr4(Cr4Flags::PAGE_GLOBAL, false);
    window::enter_space(window::space());
}

/// Rounds in which the processor checks, and which exchange the page.
pub(super) struct Rounds {
    what: What,
    watch: Watch<'static>,
}

impl Rounds {
    /// One round with this flush: the number of stale words that have been seen.
    pub(super) fn round(&mut self, flush: impl FnOnce() -> Verdict) -> Result<u64, Stop> {
        self.watch.round(|round| self.what.map(round), flush)
    }

    /// Succeeds if an omitted flush is noticed: see [`Watch::notices`].
    pub(super) fn notices(&mut self, flush: impl FnMut() -> Verdict) -> Verdict {
        self.watch.notices(|round| self.what.map(round), flush)
    }
}

/// Makes the processor check while `rounds` runs.
pub(super) fn during(what: What, rounds: impl FnOnce(&mut Rounds) -> Verdict) -> Verdict {
    what.map(0);
    *WHAT.lock() = Some(what);
    let watch_of = WATCHED
        .begin(what.address, what.words, what.every, |condition| clock::wait_until(PATIENCE_MS, condition));
    // Loading its CR3 drops translations of an earlier row.
    machine::give(what.processor, watch)?;
    let result = rounds(&mut Rounds { what, watch: watch_of });
    WATCHED.end();
    machine::join(what.processor)?;
    result
}
