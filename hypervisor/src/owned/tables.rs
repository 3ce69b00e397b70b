//! Memory that IOMMUs read and write: tables, rings and logs. It is never freed.

use core::sync::atomic::AtomicU64;
use iommu::Entry;

use crate::pages::Pages;

/// Physical address of memory that is mapped one to one.
pub(crate) fn address<T>(items: &'static [T]) -> u64 {
    items.as_ptr().expose_provenance() as u64
}

/// The words of pages that are never freed: an IOMMU may read them at any time.
pub(crate) fn words(pages: Pages) -> &'static [AtomicU64] {
    let len = pages.words().len();
    // SAFETY: the pages are leaked, zeroed, and used as words only.
    unsafe { core::slice::from_raw_parts(pages.forever() as *const AtomicU64, len) }
}

/// As many entries of a ring as fill pages, which are never freed.
pub(crate) fn ring(pages: Pages) -> &'static [Entry] {
    let len = pages.words().len() * size_of::<u64>() / size_of::<Entry>();
    // SAFETY: the pages are leaked and aligned; an entry is two words, and a zeroed one is valid.
    unsafe { core::slice::from_raw_parts(pages.forever() as *const Entry, len) }
}
