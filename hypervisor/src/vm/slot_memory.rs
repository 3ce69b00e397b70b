//! The memory behind slots that are added and removed at run time, and behind their dirty logs.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use memslots::{DirtyLog, Gpa, PhysAddr, Slot, SlotFlags, SlotId};

use super::arch::Board;
use super::memory::FreeMemory;

const PAGE: u64 = 4096;
/// Bytes that are zeroed, or cleaned, in a step.
pub(super) const CLEAR_BYTES: u64 = 256 << 10;

/// A slot that is to be added. Its memory is in exclusive use here, and is being zeroed.
pub struct NewSlot {
    slot: Slot,
    cleared: u64,
}

impl NewSlot {
    /// The slot, once all of its memory is zeroed.
    pub fn ready(&self) -> Option<Slot> {
        (self.cleared == self.slot.size).then_some(self.slot)
    }

    /// Zeroes some more of the memory.
    pub fn clear_some<A: Board>(&mut self) {
        let bytes = CLEAR_BYTES.min(self.slot.size - self.cleared);
        let start = self.slot.host.0 + self.cleared;
        // SAFETY: the memory was free, is mapped one to one, and has no user before the slot is
        // added, which requires all of it to be zeroed.
        unsafe { A::zero(start, bytes) };
        if A::must_clean() {
            // So that a guest that bypasses the caches finds zeros, too.
            A::clean(start..start + bytes);
        }
        self.cleared += bytes;
    }
}

/// A dirty log, and the buffer for a fetch's result.
struct Log {
    id: SlotId,
    words: &'static [AtomicU64],
    /// From `Box::leak`.
    result: NonNull<[u64]>,
    /// Whether the result is on loan.
    is_lent: bool,
}

// SAFETY: the result is memory from the heap, which any CPU may use, and the log owns it.
unsafe impl Send for Log {}

/// The memory behind slots added at run time, and behind the logs of all slots.
#[derive(Default)]
pub struct SlotMemory {
    /// The slots of the guest's first memory, which is freed when the guest is destroyed.
    own: Vec<SlotId>,
    /// The slots that were added; their memory is freed with them.
    added: Vec<SlotId>,
    logs: Vec<Log>,
    /// Former guest memory that must be cleaned out of the caches before it is free.
    unclean: Vec<Range<u64>>,
}

impl SlotMemory {
    /// With the slots of the guest's first memory.
    pub const fn new(own: Vec<SlotId>) -> Self {
        Self { own, added: Vec::new(), logs: Vec::new(), unclean: Vec::new() }
    }

    /// Memory for a slot that is to be added under `id`; `None` if no single piece is large enough.
    pub fn take(
        &mut self,
        free: &mut FreeMemory,
        id: SlotId,
        gpa: Gpa,
        size: u64,
        flags: SlotFlags,
    ) -> Option<NewSlot> {
        // Aligned to the largest page that may be mapped, as far as the guest address allows.
        let alignments = [1 << 30, 2 << 20, PAGE].into_iter().filter(|&align| size >= align);
        let host = alignments.into_iter().find_map(|align| free.take(size, align, u64::MAX))?;
        self.added.push(id);
        Some(NewSlot { slot: Slot { id, gpa, size, host: PhysAddr(host), flags }, cleared: 0 })
    }

    /// Frees memory that belongs to no slot: the slot was refused, or was removed and flushed.
    pub fn retire_memory<A: Board>(&mut self, free: &mut FreeMemory, slot: &Slot) {
        // Other slots' memory belongs to devices.
        let Some(lists) = [&mut self.added, &mut self.own].into_iter().find(|list| list.contains(&slot.id))
        else {
            return;
        };
        lists.retain(|&id| id != slot.id);
        let memory = slot.host.0..slot.host.0 + slot.size;
        if A::must_clean() {
            self.unclean.push(memory);
        } else {
            free.add(memory);
        }
    }

    /// Cleans some of the freed memory, whose translations have been dropped everywhere (P20);
    /// returns whether there is more.
    pub fn clean_some<A: Board>(&mut self, free: &mut FreeMemory) -> bool {
        let Some(memory) = self.unclean.last_mut() else { return false };
        let end = memory.end.min(memory.start + CLEAR_BYTES);
        A::clean(memory.start..end);
        free.add(memory.start..end);
        memory.start = end;
        if memory.is_empty() {
            self.unclean.pop();
        }
        !self.unclean.is_empty()
    }

    /// Whether the slot was added at run time.
    pub fn was_added(&self, id: SlotId) -> bool {
        self.added.contains(&id)
    }

    /// Creates a log for a slot.
    pub fn make_log(&mut self, slot: &Slot) -> DirtyLog {
        let count = DirtyLog::words_for(slot.size) as usize;
        let words: Box<[AtomicU64]> = (0..count).map(|_| AtomicU64::new(0)).collect();
        let words: &'static [AtomicU64] = Box::leak(words);
        let result = NonNull::from_mut(Box::leak(vec![0; count].into_boxed_slice()));
        self.logs.push(Log { id: slot.id, words, result, is_lent: false });
        DirtyLog::new(words)
    }

    /// The result buffer for a fetch of this slot's log, until it is put back; `None` if it is on
    /// loan.
    pub fn take_result(&mut self, id: SlotId) -> Option<&'static mut [u64]> {
        let log = self.logs.iter_mut().find(|log| log.id == id && !log.is_lent)?;
        log.is_lent = true;
        // SAFETY: it exists as long as it is on loan (`retire_log` leaves it then), and no other
        // borrower has it now.
        Some(unsafe { log.result.as_mut() })
    }

    /// The borrower returns the result.
    pub fn put_result(&mut self, id: SlotId) {
        if let Some(log) = self.logs.iter_mut().find(|log| log.id == id) {
            log.is_lent = false;
        }
    }

    /// Frees a log that belongs to no slot.
    pub fn retire_log(&mut self, id: SlotId) {
        let Some(index) = self.logs.iter().position(|log| log.id == id) else { return };
        let Log { words, result, is_lent, .. } = self.logs.swap_remove(index);
        // SAFETY: made by `Box::leak` in `make_log`. The slot has handed the log back, or has
        // refused it: nobody marks it any more.
        drop(unsafe { Box::from_raw(core::ptr::from_ref(words).cast_mut()) });
        if !is_lent {
            // SAFETY: made by `Box::leak` in `make_log`, and not on loan.
            drop(unsafe { Box::from_raw(result.as_ptr()) });
        }
    }
}
