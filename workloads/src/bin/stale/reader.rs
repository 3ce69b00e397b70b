//! The threads that check pages.
//!
//! A reader makes no system call, never pauses and never sleeps: on a virtual CPU each of these may
//! be an exit, and an exit may flush the TLB even without a request. This applies above all to
//! PAUSE: hypervisors intercept it.

use crate::guarded;
use crate::region::{Canary, PageChange, Region};
use crate::remapper::nanoseconds;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A read that returned contents that had been removed before it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) page: u16,
    /// The generation published before the read.
    pub(crate) published: u64,
    pub(crate) seen: Canary,
    /// How it was created, and how many nanoseconds before, unless the page has changed again.
    pub(crate) origin: Option<(PageChange, u64)>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reads {
    /// Reads that returned a canary.
    pub(crate) shown: u64,
    /// Reads that found nothing mapped.
    pub(crate) absent: u64,
    /// Reads that returned another generation than the previous read of the same page.
    pub(crate) changes: u64,
}

pub(crate) struct Reader<'a> {
    pub(crate) region: &'a Region,
    pub(crate) begin: Instant,
    /// Whether to read pages while they are being remapped. That shows translations made meanwhile,
    /// but it faults, which interrupts spinning and holds the lock that the remapper needs.
    pub(crate) is_rude: bool,
}

impl Reader<'_> {
    /// Reads all pages in turn until told to stop, or until a read is stale.
    pub(crate) fn run(&self, stop: &AtomicBool) -> (Reads, Option<Sighting>) {
        let Self { region, begin, is_rude } = *self;
        let mut reads = Reads::default();
        let mut last = vec![0; usize::from(region.page_count())];
        // Pages found absent are skipped until they change: such a read holds the kernel's
        // lock that remapping needs, for long.
        let mut absent = vec![None; last.len()];
        while !stop.load(Ordering::Relaxed) {
            for page in 0..region.page_count() {
                let (last, absent) = (&mut last[usize::from(page)], &mut absent[usize::from(page)]);
                // Before the read: this order is essential.
                let published = region.published(page).generation();
                if *absent == Some(published) || (!is_rude && region.published(page).is_changing()) {
                    continue;
                }
                match look(region, page) {
                    None => {
                        reads.absent += 1;
                        *absent = Some(published);
                    }
                    Some(seen) if seen.may_be_read(page, published) => {
                        reads.shown += 1;
                        reads.changes += u64::from(*last != seen.generation);
                        *last = seen.generation;
                    }
                    Some(seen) => {
                        let now = nanoseconds(begin);
                        let origin = region.published(page).origin(published);
                        let origin = origin.map(|(way, returned_at)| (way, now.saturating_sub(returned_at)));
                        return (reads, Some(Sighting { page, published, seen, origin }));
                    }
                }
            }
            region.beat();
        }
        (reads, None)
    }
}

fn look(region: &Region, page: u16) -> Option<Canary> {
    // SAFETY: the window has pages of the region or nothing, and main has installed the handler.
    let word = unsafe { guarded::load(region.address(page).cast()) };
    word.map(Canary::from_word)
}
