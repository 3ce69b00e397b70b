//! How the slots are read and replaced. Public only for its ordering table; it has no items to use.
//!
//! There are two copies: readers pin the current one without waiting, a writer prepares the other.
//!
//! One word contains the index of the current copy and the count of its pins. So a reader gets the
//! copy and registers for it in one step, and the writer switches and gets the count in one step.
//!
//! | reader | writer |
//! |---|---|
//! | a: `state.fetch_add(1)`: copy i is pinned (Acquire) | A: write the other copy |
//! | b: read copy i, and act on its contents | B: `state.swap(other copy)`: learns how many pinned i (Release) |
//! | c: `left[i].fetch_add(1)` (Release) | C: `left[i]` equals that number (Acquire) |
//! | | D: change what copy i described; in the next update, write copy i |
//!
//! All a and B are in one order, that of `state`.
//! * a after B: it reads B or another a after B, which continue B's release sequence, so A is
//!   before b.
//! * a before B: the reader is in B's count. C sees that number only after its c, and all c on
//!   `left[i]` are one release sequence, so b is before D.
//!
//! Counts are never reset. A copy that becomes current continues counting from `left`, which its
//! readers, all of which have left, have made equal. 63 bits do not wrap.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sync::{AtomicU64, UnsafeCell};

/// In `state`: the second copy is current. The bits below count the pins of the current copy.
pub(crate) const SECOND: u64 = 1 << 63;

pub(crate) const fn index_of(state: u64) -> usize {
    (state >> 63) as usize
}

/// The two copies. They are the first field, and this is the first field of what contains it: that
/// saves an addition in each lookup.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Snapshots<T> {
    copies: [UnsafeCell<T>; 2],
    pub(crate) state: AtomicU64,
    pub(crate) left: [AtomicU64; 2],
}

// SAFETY: readers share a copy (`Sync`), and the only writer has exclusive access to the other
// (`Send`), by the argument above.
unsafe impl<T: Send + Sync> Sync for Snapshots<T> {}

impl<T: Clone> Snapshots<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            state: AtomicU64::new(0),
            left: [AtomicU64::new(0), AtomicU64::new(0)],
            copies: [UnsafeCell::new(value.clone()), UnsafeCell::new(value)],
        }
    }

    /// Pins the current copy. Wait-free.
    #[inline]
    pub(crate) fn pin(&self) -> Pin<'_, T> {
        // Pairs with the swap in `publish`.
        let state = self.state.fetch_add(1, Acquire);
        Pin { snapshots: self, index: index_of(state) }
    }

    /// Starts an update: makes the copy that is not current equal to the one that is.
    ///
    /// # Safety
    ///
    /// There is one writer at a time: the caller excludes other updates, synchronising with the end
    /// of the previous one, from here until the [`Draft`] is dropped or its [`Drain`] has been seen
    /// [drained](Drain::is_drained).
    pub(crate) unsafe fn begin(&self) -> Draft<'_, T> {
        // Only a writer changes the index.
        let current = index_of(self.state.load(Relaxed));
        let mut draft = Draft { snapshots: self, index: 1 - current };
        self.copies[current].with(|value| {
            // SAFETY: the current copy is only read: the one writer changes the other copy.
            draft.edit(|copy| copy.clone_from(unsafe { &*value }));
        });
        draft
    }
}

/// A reader's hold on one copy.
#[derive(Debug)]
pub(crate) struct Pin<'a, T> {
    pub(crate) snapshots: &'a Snapshots<T>,
    pub(crate) index: usize,
}

impl<T> Pin<'_, T> {
    #[inline]
    pub(crate) fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        self.snapshots.copies[self.index].with(|copy| {
            // SAFETY: a pinned copy is not written until its readers have left (b is before D).
            read(unsafe { &*copy })
        })
    }
}

impl<T> Drop for Pin<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Pairs with the load in `is_drained`.
        self.snapshots.left[self.index].fetch_add(1, Release);
    }
}

/// A copy that only its writer sees.
#[derive(Debug)]
pub(crate) struct Draft<'a, T> {
    pub(crate) snapshots: &'a Snapshots<T>,
    pub(crate) index: usize,
}

impl<'a, T> Draft<'a, T> {
    /// Edits the copy, and passes on what `edit` returns.
    pub(crate) fn edit<R>(&mut self, edit: impl FnOnce(&mut T) -> R) -> R {
        self.snapshots.copies[self.index].with_mut(|copy| {
            // SAFETY: the copy is not current, its former readers have left, and there is no other
            // writer.
            edit(unsafe { &mut *copy })
        })
    }

    /// Makes the copy current.
    pub(crate) fn publish(self) -> Drain<'a, T> {
        let resumed = self.snapshots.left[self.index].load(Relaxed);
        let state = if self.index == 1 { SECOND | resumed } else { resumed };
        // Pairs with `pin`. Nothing is acquired: the count identifies the readers, not their
        // accesses.
        let old = self.snapshots.state.swap(state, Release);
        Drain { snapshots: self.snapshots, index: index_of(old), pinned: old & !SECOND }
    }
}

/// The former copy, which readers are leaving.
#[derive(Debug)]
pub(crate) struct Drain<'a, T> {
    pub(crate) snapshots: &'a Snapshots<T>,
    pub(crate) index: usize,
    pub(crate) pinned: u64,
}

impl<T> Drain<'_, T> {
    /// Whether all readers of the former copy have left.
    pub(crate) fn is_drained(&self) -> bool {
        // Pairs with the drop of `Pin`.
        self.snapshots.left[self.index].load(Acquire) == self.pinned
    }

    /// Reads the former and the current copy.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&T, &T) -> R) -> R {
        let [former, current] = [self.index, 1 - self.index].map(|index| &self.snapshots.copies[index]);
        former.with(|former| {
            current.with(|current| {
                // SAFETY: only a writer changes a copy, and this is the only writer.
                read(unsafe { &*former }, unsafe { &*current })
            })
        })
    }
}
