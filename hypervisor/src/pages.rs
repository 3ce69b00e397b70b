//! Pages of the hypervisor's own that a processor reads or a guest sees.

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use core::slice;
use core::sync::atomic::AtomicU64;

const PAGE: usize = 4096;

/// Page-aligned memory from the heap. Its address is also its physical address.
#[derive(Debug)]
pub struct Pages {
    start: u64,
    layout: Layout,
}

impl Pages {
    /// Zeroed pages.
    ///
    /// # Panics
    ///
    /// If the heap is exhausted.
    pub fn new(count: usize) -> Self {
        Self::allocate(Layout::from_size_align(count * PAGE, PAGE).expect("a small layout"))
    }

    fn allocate(layout: Layout) -> Self {
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        assert!(!start.is_null(), "the heap is exhausted");
        Self { start: start.expose_provenance() as u64, layout }
    }

    /// A zeroed page, if the heap has one.
    pub fn try_one() -> Option<Self> {
        let layout = Layout::from_size_align(PAGE, PAGE).ok()?;
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        (!start.is_null()).then(|| Self { start: start.expose_provenance() as u64, layout })
    }

    /// Zeroed pages, aligned to their size, whose number is a power of two.
    ///
    /// # Panics
    ///
    /// If the heap is exhausted.
    pub fn aligned(order: u32) -> Self {
        let size = PAGE << order;
        Self::allocate(Layout::from_size_align(size, size).expect("a small layout"))
    }

    /// Pages with these contents.
    #[must_use]
    pub fn filled(count: usize, fill: impl FnOnce(&mut [u8])) -> Self {
        let pages = Self::new(count);
        // SAFETY: the pages were just allocated for this.
        fill(unsafe { slice::from_raw_parts_mut(pages.start as *mut u8, count * PAGE) });
        pages
    }

    /// Their address.
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// Their words, which others, also a guest, may read at any time.
    pub const fn words(&self) -> &[AtomicU64] {
        // SAFETY: this is the memory of the allocation, aligned to pages and initialised. It is
        // changed through these words, which are atomic, and by processors that were given its
        // address; by `fill` only before anybody has either.
        unsafe { slice::from_raw_parts(self.start as *const AtomicU64, self.layout.size() / 8) }
    }

    /// Their address; they are never freed.
    pub fn forever(self) -> u64 {
        let start = self.start;
        core::mem::forget(self);
        start
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout. The pages go with the guest that they belong
        // to, so no processor reads them any more.
        unsafe { dealloc(self.start as *mut u8, self.layout) };
    }
}
