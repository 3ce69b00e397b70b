//! Another processor checks an address all the time, and reports if it sees a removed page: see
//! [`baremetal::watch`]. Interrupts are off unless they are used for flushes.

use core::sync::atomic::Ordering;

use baremetal::pages::PAGE;
pub(super) use baremetal::watch::Watch;
use baremetal::watch::Watched;
use baremetal::x86_64::clock;
use spin::Mutex;
use tlbcheck::report::Verdict;
use x86_64::instructions::interrupts;
use x86_64::registers::control::Cr4Flags;

use super::machine;
use super::window::{self, GLOBAL, RIGHTS};
use crate::arch::testbed::PATIENCE_MS;

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

/// Makes the processor check while `rounds` runs. `map` maps round 0.
pub(super) fn during(
    what: What,
    map: impl FnOnce(u64),
    rounds: impl FnOnce(&mut Watch<'_>) -> Verdict,
) -> Verdict {
    map(0);
    *WHAT.lock() = Some(what);
    let mut watch_of = WATCHED
        .begin(what.address, what.words, what.every, |condition| clock::wait_until(PATIENCE_MS, condition));
    // Loading its CR3 drops translations of an earlier row.
    machine::give(what.processor, watch)?;
    let result = rounds(&mut watch_of);
    WATCHED.end();
    machine::join(what.processor)?;
    result
}
