//! Memory behind the slots of a test.

use std::cell::UnsafeCell;

use super::{PAGE, slot};
use crate::Slot;

#[repr(align(4096))]
struct Page(#[expect(dead_code, reason = "reached by pointer only")] UnsafeCell<[u8; PAGE as usize]>);

/// Zeroed pages, accessed through slots only.
pub(super) struct Backing {
    pages: Box<[Page]>,
}

// SAFETY: the pages are only accessed through slots, by atomics.
unsafe impl Sync for Backing {}

impl Backing {
    pub(super) fn new(page_count: u64) -> Self {
        Self { pages: (0..page_count).map(|_| Page(UnsafeCell::new([0; _]))).collect() }
    }

    /// A slot of all pages.
    pub(super) fn slot(&self, id: u16, gpa_page: u64) -> Slot {
        let host = self.pages.as_ptr().expose_provenance();
        slot(id, gpa_page, self.pages.len() as u64, host as u64)
    }
}
