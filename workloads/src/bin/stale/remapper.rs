//! The threads that remove frames from pages.
//!
//! | step | what a reader may see after the step's system call has returned |
//! |---|---|
//! | write generation g+1 to a frame that is not mapped in the window | generation g, or nothing |
//! | map it over the old frame; or remove the old frame first | g+1, or nothing |
//! | publish g+1 | the same |
//! | poison the old frame | the same; through a stale translation poison, generation 0 |

use crate::region::{Canary, FRAMES, PageChange, Region};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mprotect, munmap};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Pulses until a reader has begun and finished a check of all pages: several readers pulse.
const PULSES: u64 = 3;

struct Page {
    index: u16,
    frame: usize,
    generation: u64,
}

/// A thread that remaps the pages of a range, which no other thread remaps.
pub(crate) struct Remapper<'a> {
    pub(crate) region: &'a Region,
    pub(crate) begin: Instant,
    pub(crate) pause: Duration,
}

impl Remapper<'_> {
    /// Remaps until told to stop, in all ways in turn; counts each.
    pub(crate) fn run(
        &self,
        pages: Range<u16>,
        stop: &AtomicBool,
        counts: &[AtomicU64; PageChange::ALL.len()],
    ) -> io::Result<()> {
        let mut pages: Vec<Page> = pages.map(|index| Page { index, frame: 0, generation: 1 }).collect();
        // The ways alternate on each page, and begin with a different one on each.
        for round in 0.. {
            for page in &mut pages {
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                self.region.published(page.index).announce();
                let ways: &[PageChange] = match (round + usize::from(page.index)) % 4 {
                    0 => self.replace(page)?,
                    1 => self.withdraw(page, PageChange::Unmap)?,
                    2 => self.withdraw(page, PageChange::Protect)?,
                    _ => self.copy_and_discard(page)?,
                };
                for way in ways {
                    counts[*way as usize].fetch_add(1, Ordering::Relaxed);
                }
                self.linger();
            }
        }
        Ok(())
    }

    fn replace(&self, page: &mut Page) -> io::Result<&'static [PageChange]> {
        let old = self.fill_next(page);
        self.map(page, ProtFlags::READ, MapFlags::SHARED | MapFlags::POPULATE)?;
        self.publish(page, PageChange::Replace);
        self.poison(page, old);
        Ok(&[PageChange::Replace])
    }

    /// Removes the frame, and maps another one there afterwards. Until then readers find nothing.
    fn withdraw(&self, page: &mut Page, way: PageChange) -> io::Result<&'static [PageChange]> {
        let (at, bytes) = (self.region.address(page.index), self.region.page_bytes());
        // SAFETY: the page is this remapper's, and its readers expect that it may be absent.
        unsafe {
            match way {
                PageChange::Protect => mprotect(at, bytes, MprotectFlags::empty())?,
                _ => munmap(at, bytes)?,
            }
        }
        let old = page.frame;
        page.frame = (page.frame + 1) % FRAMES;
        page.generation += 1;
        self.publish(page, way);
        self.poison(page, old);
        self.linger();
        page.generation += 1;
        self.region.published(page.index).announce();
        self.fill(page);
        self.map(page, ProtFlags::READ, MapFlags::SHARED | MapFlags::POPULATE)?;
        self.publish(page, PageChange::Replace);
        Ok(if way == PageChange::Protect {
            &[PageChange::Protect, PageChange::Replace]
        } else {
            &[PageChange::Unmap, PageChange::Replace]
        })
    }

    /// Maps another frame privately, writes to it, and discards the kernel's private copy again.
    fn copy_and_discard(&self, page: &mut Page) -> io::Result<&'static [PageChange]> {
        let old = self.fill_next(page);
        self.map(page, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?;
        self.publish(page, PageChange::Replace);
        self.poison(page, old);
        self.linger();

        page.generation += 1;
        self.region.published(page.index).announce();
        let canary = Canary { page: page.index, generation: page.generation };
        let word = self.region.address(page.index).cast::<AtomicU64>();
        // SAFETY: the mapping was just made, and is writable; other threads only load from it.
        unsafe { &*word }.store(canary.word(), Ordering::Release);
        self.publish(page, PageChange::Copy);
        self.poison(page, page.frame);
        self.linger();

        page.generation += 1;
        self.region.published(page.index).announce();
        self.fill(page);
        // SAFETY: the copy is this remapper's, and readers accept the change.
        unsafe { madvise(self.region.address(page.index), self.region.page_bytes(), Advice::LinuxDontNeed)? };
        self.publish(page, PageChange::Discard);
        Ok(&[PageChange::Replace, PageChange::Copy, PageChange::Discard])
    }

    /// Prepares the next frame of the page for the next generation; returns the previous one.
    fn fill_next(&self, page: &mut Page) -> usize {
        let old = page.frame;
        page.frame = (page.frame + 1) % FRAMES;
        page.generation += 1;
        self.fill(page);
        old
    }

    fn fill(&self, page: &Page) {
        let canary = Canary { page: page.index, generation: page.generation };
        self.region.write(page.index, page.frame, canary);
    }

    fn poison(&self, page: &Page, frame: usize) {
        self.region.write(page.index, frame, Canary::poison(page.index));
    }

    fn map(&self, page: &Page, rights: ProtFlags, flags: MapFlags) -> io::Result<()> {
        let Page { index, frame, .. } = *page;
        let (at, offset) = (self.region.address(index), self.region.offset(index, frame));
        let bytes = self.region.page_bytes();
        // SAFETY: the page is this remapper's; readers load single words and expect it to change.
        unsafe { mmap(at, bytes, rights, flags | MapFlags::FIXED, self.region.file(), offset)? };
        Ok(())
    }

    fn publish(&self, page: &Page, way: PageChange) {
        let now = nanoseconds(self.begin);
        self.region.published(page.index).publish(page.generation, way, now);
    }

    /// Spins until a reader has checked all pages, for at most `pause`: it runs at this moment,
    /// and has the pages in its TLB, the best time to remap. Sleeping would leave the CPU idle.
    fn linger(&self) {
        let (begin, first) = (Instant::now(), self.region.pulse());
        while self.region.pulse().wrapping_sub(first) < PULSES && begin.elapsed() < self.pause {}
    }
}

/// Nanoseconds since `begin`; a run is shorter than 500 years.
pub(crate) fn nanoseconds(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
