//! The second processor checks an address all the time, and reports if it sees a removed page: see
//! [`baremetal::watch`]. It leaves guest mode only when it is kicked, because an exit drops
//! translations on some machines.

pub(super) use baremetal::watch::Watch;
use baremetal::watch::Watched;

use super::prelude::*;
use crate::paging::GLOBAL;

#[derive(Clone, Copy)]
pub(super) struct What {
    /// The first of the words, one in each 4 KiB.
    pub(super) address: u64,
    pub(super) words: u64,
    pub(super) space: u64,
    pub(super) global: bool,
}

impl What {
    /// The small page that [`replace`] replaces, in the initial address space.
    pub(super) fn page() -> Self {
        Self { address: WINDOW, words: 1, space: paging::space(), global: false }
    }
}

static WATCHED: Watched = Watched::new();
static SPACE: AtomicU64 = AtomicU64::new(0);
static IS_GLOBAL: AtomicBool = AtomicBool::new(false);

/// The page that is mapped at page 0 of the window in a round.
pub(super) fn page_of(round: u64) -> &'static Page {
    WATCHED.page_of(round)
}

/// Maps the page of this round at page 0 of the window, global or not.
pub(super) fn replace(round: u64, global: bool) {
    let bits = RIGHTS | if global { GLOBAL } else { 0 };
    paging::entry(0).store(WATCHED.write_page(round).address() | bits, Ordering::SeqCst);
}

fn read(address: u64) -> u64 {
    // SAFETY: a page is mapped there as long as this runs, though exchanged meanwhile.
    unsafe { (address as *const u64).read_volatile() }
}

/// Checks once; an NMI's handler may do so as well, on the second processor.
pub(super) fn look() {
    WATCHED.look(read);
}

fn watch() {
    let own = paging::space();
    paging::enter_space(SPACE.load(Ordering::Relaxed));
    paging::set_global_pages(IS_GLOBAL.load(Ordering::Relaxed));
    WATCHED.follow(read);
    paging::set_global_pages(false);
    paging::enter_space(own);
}

/// Makes the second processor check while `rounds` runs. `map` maps round 0.
pub(super) fn during(
    what: What,
    map: impl FnOnce(u64),
    rounds: impl FnOnce(&mut Watch<'_>) -> Verdict,
) -> Verdict {
    map(0);
    SPACE.store(what.space, Ordering::Relaxed);
    IS_GLOBAL.store(what.global, Ordering::Relaxed);
    let mut watch_of =
        WATCHED.begin(what.address, what.words, PAGE, |condition| clock::wait_until(PATIENCE_MS, condition));
    processors::start(SECOND)?;
    processors::give(SECOND, watch);
    let result = rounds(&mut watch_of);
    WATCHED.end();
    processors::join(SECOND)?;
    result
}
