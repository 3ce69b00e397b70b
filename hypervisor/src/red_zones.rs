//! Red zones behind the blocks of a heap, for images under test: who writes past the end of a
//! block, a processor included, is found when the block is freed or when the machine ends, and not
//! by what its neighbour does next.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use spin::Mutex;

const PATTERN: u8 = 0xa7;
/// Bytes of a zone, besides those that align the node behind it.
const ZONE: usize = 64;

/// Behind each zone.
struct Node {
    start: *mut u8,
    size: usize,
    previous: Option<NonNull<Node>>,
    next: Option<NonNull<Node>>,
}

/// Whether blocks have zones. Elsewhere the heap is as it is.
const IS_WATCHED: bool = cfg!(any(test, feature = "audit"));

/// A heap whose blocks have zones in images under test. All that are in use are in a list.
pub struct RedZones<H> {
    heap: H,
    last: Mutex<Last>,
}

struct Last(Option<NonNull<Node>>);

// SAFETY: the nodes are the heap's, and are used by whoever holds the lock.
unsafe impl Send for Last {}

/// Bytes that somebody wrote past the end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The first byte that has changed.
    pub address: usize,
    /// Address and size of the block, unless what says so was written, too.
    pub block: Option<(usize, usize)>,
}

impl core::fmt::Display for Damage {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match (self.address, self.block) {
            (address, Some((start, size))) => {
                write!(
                    f,
                    "byte {} of a heap block of {size} bytes at {start:#x} was written",
                    address - start
                )
            }
            (address, None) => write!(f, "{address:#x} was written, which is behind a block of the heap"),
        }
    }
}

/// The block with its zone and its node, and where the node is.
fn extended(layout: Layout) -> Option<(Layout, usize)> {
    let zone = Layout::array::<u8>(ZONE).ok()?;
    let (with_zone, _) = layout.extend(zone).ok()?;
    let (all, node) = with_zone.extend(Layout::new::<Node>()).ok()?;
    Some((all, node))
}

impl Node {
    /// # Safety
    ///
    /// `node` is the node of a block that is in use.
    unsafe fn damage(node: NonNull<Self>) -> Option<Damage> {
        // SAFETY: the caller vouches for it. A block's zone is before its node, and what aligns
        // that is before the zone; no reference to the block is made.
        unsafe {
            let zone = node.as_ptr().cast::<u8>().sub(ZONE);
            let Self { start, size, .. } = *node.as_ptr();
            // Whoever has written behind the zone, too, has left another node.
            let aligning = zone.addr().wrapping_sub(start.addr().wrapping_add(size));
            let is_whole = aligning < align_of::<Self>();
            let first = if is_whole { zone.sub(aligning) } else { zone };
            let count = node.as_ptr().addr() - first.addr();
            let changed = (0..count).find(|&at| first.add(at).read_volatile() != PATTERN)?;
            let block = is_whole.then_some((start.addr(), size));
            Some(Damage { address: first.addr() + changed, block })
        }
    }
}

impl<H> RedZones<H> {
    /// A heap without blocks.
    pub const fn new(heap: H) -> Self {
        Self { heap, last: Mutex::new(Last(None)) }
    }

    /// The heap itself.
    pub const fn heap(&self) -> &H {
        &self.heap
    }

    /// The newest block that somebody wrote past; nothing is known while a CPU allocates. A node
    /// behind a zone that is whole is whole.
    pub fn damage(&self) -> Option<Damage> {
        let last = self.last.try_lock()?;
        let mut node = last.0;
        while let Some(here) = node {
            // SAFETY: the list has the blocks in use, and the lock keeps them.
            let found = unsafe { Node::damage(here) };
            if found.is_some() {
                return found;
            }
            // SAFETY: as above.
            node = unsafe { here.as_ref() }.previous;
        }
        None
    }

    /// Takes the block at `start` out of the list.
    ///
    /// # Safety
    ///
    /// It is in use, and was allocated with this layout.
    unsafe fn forget(&self, start: *mut u8, node: usize) -> Option<Damage> {
        let mut last = self.last.lock();
        // SAFETY: the caller vouches for the block; nodes are aligned, and the lock is held.
        unsafe {
            let node = NonNull::new_unchecked(start.add(node).cast::<Node>());
            let damage = Node::damage(node);
            if damage.is_none() {
                let Node { previous, next, .. } = *node.as_ptr();
                match next {
                    Some(next) => (*next.as_ptr()).previous = previous,
                    None => last.0 = previous,
                }
                if let Some(previous) = previous {
                    (*previous.as_ptr()).next = next;
                }
            }
            damage
        }
    }
}

// SAFETY: blocks are the heap's, of a larger layout with the same alignment.
unsafe impl<H: GlobalAlloc> GlobalAlloc for RedZones<H> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !IS_WATCHED {
            // SAFETY: the caller's promises are the heap's conditions.
            return unsafe { self.heap.alloc(layout) };
        }
        let Some((all, node)) = extended(layout) else { return ptr::null_mut() };
        // SAFETY: the size is not 0.
        let start = unsafe { self.heap.alloc(all) };
        if start.is_null() {
            return start;
        }
        let size = layout.size();
        let mut last = self.last.lock();
        // SAFETY: it is all in the new block; the node before it is in use, and the lock is held.
        unsafe {
            start.add(size).write_bytes(PATTERN, node - size);
            let node = start.add(node).cast::<Node>();
            node.write(Node { start, size, previous: last.0, next: None });
            if let Some(previous) = last.0 {
                (*previous.as_ptr()).next = NonNull::new(node);
            }
            last.0 = NonNull::new(node);
        }
        start
    }

    /// # Panics
    ///
    /// If somebody wrote past the block.
    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        if !IS_WATCHED {
            // SAFETY: as above.
            return unsafe { self.heap.dealloc(start, layout) };
        }
        let (all, node) = extended(layout).expect("it was allocated");
        // SAFETY: the caller vouches for the block, of which these are the places and the layout.
        unsafe {
            if let Some(damage) = self.forget(start, node) {
                panic!("{damage}");
            }
            self.heap.dealloc(start, all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::System;
    use std::vec::Vec;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 64).expect("is one")
    }

    #[test]
    fn who_writes_past_a_block_is_found_while_it_is_in_use_and_when_it_is_freed() {
        let heap = RedZones::new(System);
        let sizes = [1, 63, 64, 832, 4096];
        // SAFETY: no size is 0.
        let blocks: Vec<_> = sizes.iter().map(|&size| (unsafe { heap.alloc(layout(size)) }, size)).collect();
        assert_eq!(heap.damage(), None);
        for &(start, size) in &blocks {
            for at in [size, size + 1, size + ZONE - 1] {
                // SAFETY: it is in the block's zone.
                let byte = unsafe { &mut *start.add(at) };
                let old = core::mem::replace(byte, 0);
                let (address, block) = (start.addr() + at, Some((start.addr(), size)));
                assert_eq!(heap.damage(), Some(Damage { address, block }));
                *byte = old;
            }
            // SAFETY: all of the block is the test's.
            unsafe { start.write_bytes(0, size) };
            assert_eq!(heap.damage(), None, "the block itself is its user's");
        }
        // In an order that takes the first, the last, and one between.
        for at in [0, 2, 4, 1] {
            let (start, size) = blocks[at];
            // SAFETY: it is in use and has this layout.
            unsafe { heap.dealloc(start, layout(size)) };
            assert_eq!(heap.damage(), None);
        }
        let (start, size) = blocks[3];
        let behind = ZONE + size_of::<Node>();
        // SAFETY: the zone, and the node behind it; they are as before afterwards.
        unsafe {
            let zone = start.add(size);
            let old: Vec<u8> = (0..behind).map(|at| zone.add(at).read()).collect();
            zone.write_bytes(0, behind);
            assert_eq!(heap.damage(), Some(Damage { address: zone.addr(), block: None }));
            zone.copy_from_nonoverlapping(old.as_ptr(), old.len());
        }
        // SAFETY: as above; the first byte of the zone is the heap's.
        let freed = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| unsafe {
            start.add(size).write(1);
            heap.dealloc(start, layout(size));
        }));
        let said = *freed.expect_err("is found").downcast::<std::string::String>().expect("a text");
        assert!(said.starts_with("byte 832 of a heap block of 832 bytes"), "{said}");
    }
}
