//! The pages under test: a window of addresses, the frames that alternate there, and the published
//! state of each page.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use workloads::mapping::page_bytes;

/// Frames that alternate at one page. An old one is poisoned, and long out of use before reuse.
pub(crate) const FRAMES: usize = 8;
/// Far below mappings of the kernel's choice, so that none ever fills a hole that unmapping makes.
pub(crate) const WINDOW: usize = 0x1000_0000_0000;

/// The first word of a frame: its page, and a generation of that, 0 for poison in unused frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Canary {
    pub(crate) page: u16,
    pub(crate) generation: u64,
}

impl Canary {
    const GENERATION_BITS: u32 = 48;

    pub(crate) const fn poison(page: u16) -> Self {
        Self { page, generation: 0 }
    }

    pub(crate) const fn from_word(word: u64) -> Self {
        let page = (word >> Self::GENERATION_BITS) as u16;
        Self { page, generation: word & ((1 << Self::GENERATION_BITS) - 1) }
    }

    /// 2^48 generations take years.
    pub(crate) const fn word(self) -> u64 {
        (self.page as u64) << Self::GENERATION_BITS | self.generation
    }

    /// Whether a read of `page` may return this if `published` was there before it began.
    pub(crate) const fn may_be_read(self, page: u16, published: u64) -> bool {
        self.page == page && self.generation >= published
    }
}

/// How a generation of a page was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PageChange {
    /// Another frame mapped over the old one.
    Replace,
    /// Unmapped.
    Unmap,
    /// All rights withdrawn.
    Protect,
    /// A private mapping was written to, so that it got its own frame.
    Copy,
    /// That frame was discarded.
    Discard,
}

impl PageChange {
    pub(crate) const ALL: [Self; 5] = [Self::Replace, Self::Unmap, Self::Protect, Self::Copy, Self::Discard];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Replace => "replace",
            Self::Unmap => "unmap",
            Self::Protect => "protect",
            Self::Copy => "copy",
            Self::Discard => "discard",
        }
    }
}

/// On a cache line of its own: one thread writes it, all others read it all the time.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Published {
    /// Reads that begin after this was loaded must not return an older generation.
    generation: AtomicU64,
    /// When the system call of that generation returned, in nanoseconds of the run.
    returned_at: AtomicU64,
    way: AtomicU8,
    /// Whether a remapping is in progress. A hint, for threads that prefer not to interfere.
    is_changing: AtomicBool,
}

impl Published {
    const fn new() -> Self {
        Self {
            generation: AtomicU64::new(0),
            returned_at: AtomicU64::new(0),
            way: AtomicU8::new(0),
            is_changing: AtomicBool::new(false),
        }
    }

    /// To be called before the system call.
    pub(crate) fn announce(&self) {
        self.is_changing.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_changing(&self) -> bool {
        self.is_changing.load(Ordering::Relaxed)
    }

    /// To be called after the system call has returned, by the page's one remapper.
    pub(crate) fn publish(&self, generation: u64, way: PageChange, now: u64) {
        self.returned_at.store(now, Ordering::Relaxed);
        self.way.store(way as u8, Ordering::Relaxed);
        self.generation.store(generation, Ordering::Release);
        self.is_changing.store(false, Ordering::Relaxed);
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// How and when `generation` was created, if it is still the last one.
    pub(crate) fn origin(&self, generation: u64) -> Option<(PageChange, u64)> {
        let way = PageChange::ALL.get(usize::from(self.way.load(Ordering::Relaxed))).copied()?;
        let returned_at = self.returned_at.load(Ordering::Relaxed);
        // Values of another generation come after the load of this one, and before its own.
        (self.generation() == generation).then_some((way, returned_at))
    }
}

pub(crate) struct Region {
    window: usize,
    page_bytes: usize,
    frames: OwnedFd,
    /// All frames, in a mapping that is never remapped.
    alias: *const AtomicU64,
    pages: Vec<Published>,
    pulse: Pulse,
}

/// Changes whenever a reader has checked all pages. On its own cache line.
#[derive(Default)]
#[repr(align(128))]
struct Pulse(AtomicU64);

// SAFETY: the pointer is to memory that stays mapped until the process ends, of atomics.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// `pages` pages at `window`, each with its first frame mapped.
    pub(crate) fn new(window: usize, pages: u16) -> io::Result<Self> {
        Self::by(page_bytes(), window, pages)
    }

    /// The same with pages of this size, which is a multiple of the kernel's.
    fn by(page_bytes: usize, window: usize, pages: u16) -> io::Result<Self> {
        let count = usize::from(pages);
        let bytes = count * FRAMES * page_bytes;
        let frames = memfd_create("stale", MemfdFlags::CLOEXEC)?;
        ftruncate(&frames, bytes as u64)?;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let alias = unsafe { mmap(ptr::null_mut(), bytes, both, MapFlags::SHARED, &frames, 0)? };
        let published = (0..pages).map(|_| Published::new()).collect();
        let (alias, pulse) = (alias.cast(), Pulse::default());
        let region = Self { window, page_bytes, frames, alias, pages: published, pulse };
        for page in 0..pages {
            let flags = MapFlags::SHARED | MapFlags::FIXED_NOREPLACE | MapFlags::POPULATE;
            region.write(page, 0, Canary { page, generation: 1 });
            // SAFETY: with FIXED_NOREPLACE nothing is replaced.
            let at = unsafe {
                mmap(
                    region.address(page),
                    page_bytes,
                    ProtFlags::READ,
                    flags,
                    &region.frames,
                    region.offset(page, 0),
                )?
            };
            if at != region.address(page) {
                return Err(io::Error::other("the kernel does not map where it is told to"));
            }
        }
        Ok(region)
    }

    pub(crate) fn page_count(&self) -> u16 {
        self.pages.len() as u16
    }

    /// Changes whenever a reader has checked all pages.
    pub(crate) fn pulse(&self) -> u64 {
        self.pulse.0.load(Ordering::Relaxed)
    }

    /// A reader has checked all pages. Of two concurrent calls one may be lost.
    pub(crate) fn beat(&self) {
        self.pulse.0.store(self.pulse().wrapping_add(1), Ordering::Relaxed);
    }

    pub(crate) fn published(&self, page: u16) -> &Published {
        &self.pages[usize::from(page)]
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    pub(crate) fn address(&self, page: u16) -> *mut libc::c_void {
        (self.window + usize::from(page) * self.page_bytes) as *mut libc::c_void
    }

    pub(crate) fn file(&self) -> &OwnedFd {
        &self.frames
    }

    pub(crate) fn offset(&self, page: u16, frame: usize) -> u64 {
        self.index(page, frame) as u64 * self.page_bytes as u64
    }

    fn index(&self, page: u16, frame: usize) -> usize {
        assert!(page < self.page_count() && frame < FRAMES, "frame {frame} of page {page}");
        usize::from(page) * FRAMES + frame
    }

    /// Writes the canary of a page's frame, regardless of where that is mapped.
    pub(crate) fn write(&self, page: u16, frame: usize, canary: Canary) {
        // SAFETY: the frame is within the alias mapping, which is never changed.
        let word = unsafe { &*self.alias.byte_add(self.index(page, frame) * self.page_bytes) };
        word.store(canary.word(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_poisoned_and_foreign_canaries_must_not_be_read() {
        let current = Canary { page: 3, generation: 7 };
        assert_eq!(Canary::from_word(current.word()), current);
        assert!(current.may_be_read(3, 7) && current.may_be_read(3, 6));
        assert!(!current.may_be_read(3, 8), "old");
        assert!(!current.may_be_read(2, 7), "another page's");
        assert!(!Canary::poison(3).may_be_read(3, 1), "poison");
        assert!(!Canary::from_word(0).may_be_read(3, 1), "an empty frame");
    }

    #[test]
    fn a_page_of_a_kernel_with_larger_pages_has_frames_of_its_own() {
        let region = Region::by(16 << 10, WINDOW + (2 << 40), 3).expect("maps");
        assert_eq!(region.offset(2, 1), ((2 * FRAMES + 1) << 14) as u64);
        for page in 0..3 {
            // SAFETY: the page is mapped, and read only here.
            let word = unsafe { &*region.address(page).cast::<AtomicU64>() };
            assert!(region.address(page).addr().is_multiple_of(16 << 10));
            assert_eq!(word.load(Ordering::Relaxed), Canary { page, generation: 1 }.word());
        }
    }

    #[test]
    fn only_the_last_generation_has_an_origin() {
        let published = Published::new();
        published.publish(5, PageChange::Unmap, 1234);
        assert_eq!(published.origin(5), Some((PageChange::Unmap, 1234)));
        assert_eq!(published.origin(4), None);
    }
}
