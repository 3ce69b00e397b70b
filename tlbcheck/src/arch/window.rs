//! Where checks may map pages, and the memory that they map there.

use baremetal::pages::{Arena, PAGE, Page};

/// Size of a large page in bytes: a level-2 block.
pub(super) const LARGE_PAGE: u64 = 512 * PAGE;

/// Number of pieces of a large page that are checked, and the distance between them: from the first
/// to the last piece, few and far enough apart to stay in any TLB.
pub(super) const PIECES_SEEN: u64 = 8;
pub(super) const SEEN_EVERY: u64 = 73 * PAGE;
const _: () = assert!((PIECES_SEEN - 1) * SEEN_EVERY == LARGE_PAGE - PAGE);

/// Where checks may map pages: the first address of the second entry of the root.
pub(super) const WINDOW: u64 = 1 << 39;
/// Where they may map large ones.
pub(super) const LARGE_WINDOW: u64 = WINDOW + (1 << 30);

/// Tables, and the pages that are exchanged.
static ARENA: Arena<3072> = Arena::new();

pub(super) fn take(count: usize, align: usize) -> &'static [Page] {
    ARENA.take(count, align).unwrap_or_else(|| panic!("there are no {count} pages left"))
}

pub(super) fn take_one() -> &'static Page {
    &take(1, 1)[0]
}
