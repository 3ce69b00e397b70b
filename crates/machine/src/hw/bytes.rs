//! Physical memory as bytes of this process.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use paging::Entries;

use super::memory::{FRAME_SIZE, REGION_SIZE};

#[derive(Debug)]
pub(crate) struct Bytes {
    allocation: NonNull<u8>,
    layout: Layout,
    /// Start of memory: the first address in the allocation that is aligned to a region.
    start: u64,
    len: u64,
}

impl Bytes {
    pub(super) fn new(len: u64) -> Self {
        // Aligned by hand: an allocator that has to align writes the zeros, and nearly all of them
        // are never read.
        let layout =
            Layout::from_size_align((len + REGION_SIZE) as usize, align_of::<u64>()).expect("a small size");
        // SAFETY: the layout has a size.
        let allocation = unsafe { alloc_zeroed(layout) };
        let allocation = NonNull::new(allocation).unwrap_or_else(|| handle_alloc_error(layout));
        // The crates make pointers from addresses.
        let start = (allocation.as_ptr().expose_provenance() as u64).next_multiple_of(REGION_SIZE);
        Self { allocation, layout, start, len }
    }

    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// The word at `pa`; `None` outside of memory.
    pub(crate) fn word(&self, pa: u64) -> Option<&AtomicU64> {
        pa.checked_sub(self.start).filter(|offset| *offset < self.len)?;
        let offset = (pa & !7) as usize - self.allocation.as_ptr().addr();
        // SAFETY: within the allocation, which lives as long as `self`, and aligned; Rust code uses
        // only atomics there.
        Some(unsafe { AtomicU64::from_ptr(self.allocation.as_ptr().add(offset).cast()) })
    }

    /// The words of the frame at `pa`.
    pub(crate) fn entries(&self, pa: u64) -> Option<&Entries> {
        let first = self.word(pa & !(FRAME_SIZE - 1))?;
        // SAFETY: the whole frame is within the allocation.
        Some(unsafe { &*core::ptr::from_ref(first).cast::<Entries>() })
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and not freed yet.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) };
    }
}
