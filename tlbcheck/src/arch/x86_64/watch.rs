//! Another processor looks at an address all the time, and tells if it sees what was taken away:
//! see [`baremetal::watch`]. Interrupts are off unless they are what flushes.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use baremetal::pages::PAGE;
pub(super) use baremetal::watch::Watch;
use baremetal::watch::Watched;
use baremetal::x86_64::clock;
use tlbcheck::report::Verdict;
use x86_64::instructions::interrupts;
use x86_64::registers::control::Cr4Flags;

use super::machine::{self, PATIENCE_MS};
use super::window::{self, GLOBAL, RIGHTS};

/// What is looked at, where from and how.
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
    /// One word of a page that is not global, in the address space that all begin with, with
    /// interrupts off.
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

static WATCHED: Watched = Watched::new();
static SPACE: AtomicU64 = AtomicU64::new(0);
static IS_GLOBAL: AtomicBool = AtomicBool::new(false);
static TAKES_INTERRUPTS: AtomicBool = AtomicBool::new(false);

/// Maps the page of this round at `address`, global or not.
pub(super) fn replace(address: u64, round: u64, global: bool) {
    let bits = RIGHTS | if global { GLOBAL } else { 0 };
    window::leaf(address).store(WATCHED.write_page(round).address() | bits, Ordering::SeqCst);
}

/// Looks once; an NMI's handler may do so as well, on the watching processor.
#[inline(always)]
pub(super) fn look() {
    WATCHED.look(window::read);
}

/// What the watching processor does.
fn watch(_: usize) {
    window::enter_space(SPACE.load(Ordering::Relaxed));
    window::set_cr4(Cr4Flags::PAGE_GLOBAL, IS_GLOBAL.load(Ordering::Relaxed));
    if TAKES_INTERRUPTS.load(Ordering::Relaxed) {
        interrupts::enable();
    }
    WATCHED.follow(window::read);
    interrupts::disable();
    window::set_cr4(Cr4Flags::PAGE_GLOBAL, false);
    window::enter_space(window::space());
}

/// Has the processor look while `rounds` runs. `map` maps round 0.
pub(super) fn during(
    what: What,
    map: impl FnOnce(u64),
    rounds: impl FnOnce(&mut Watch<'_>) -> Verdict,
) -> Verdict {
    map(0);
    SPACE.store(what.space, Ordering::Relaxed);
    IS_GLOBAL.store(what.global, Ordering::Relaxed);
    TAKES_INTERRUPTS.store(what.interrupts, Ordering::Relaxed);
    let mut watch_of = WATCHED
        .begin(what.address, what.words, what.every, |condition| clock::wait_until(PATIENCE_MS, condition));
    // What the processor kept of an earlier row goes with its CR3.
    machine::give(what.processor, watch)?;
    let result = rounds(&mut watch_of);
    WATCHED.end();
    machine::join(what.processor)?;
    result
}
