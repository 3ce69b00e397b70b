//! The memory behind slots that come and go, and behind their dirty logs.

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
/// Memory that is zeroed, or cleaned, in a step.
pub(super) const CLEAR_BYTES: u64 = 256 << 10;

/// A slot that is to be added. Nobody else uses its memory, which is being zeroed.
pub struct NewSlot {
    slot: Slot,
    cleared: u64,
}

impl NewSlot {
    /// The slot, if all of its memory is zeroed.
    pub fn ready(&self) -> Option<Slot> {
        (self.cleared == self.slot.size).then_some(self.slot)
    }

    /// Zeroes some more of the memory.
    pub fn clear_some<A: Board>(&mut self) {
        let bytes = CLEAR_BYTES.min(self.slot.size - self.cleared);
        let start = self.slot.host.0 + self.cleared;
        // SAFETY: the memory was free, is mapped one to one, and is nobody's before the slot is
        // added, which takes the whole of it to be zeroed.
        unsafe { A::zero(start, bytes) };
        if A::must_clean() {
            // A guest that reads around the caches finds zeros, too.
            A::clean(start..start + bytes);
        }
        self.cleared += bytes;
    }
}

/// A dirty log, and where a fetch puts its result.
struct Log {
    id: SlotId,
    words: &'static [AtomicU64],
    /// From `Box::leak`.
    result: NonNull<[u64]>,
    /// Whether somebody has the result.
    is_lent: bool,
}

// SAFETY: the result is memory of the log's own, which any CPU may use.
unsafe impl Send for Log {}

/// What is behind the slots that were added at run time, and behind the logs of all.
pub struct SlotMemory {
    free: FreeMemory,
    /// The slots that were added, whose memory goes back when they do.
    added: Vec<SlotId>,
    logs: Vec<Log>,
    /// What was a guest's, and has to be cleaned out of the caches before it is free.
    unclean: Vec<Range<u64>>,
}

impl SlotMemory {
    /// With the memory that nobody uses.
    pub const fn new(free: FreeMemory) -> Self {
        Self { free, added: Vec::new(), logs: Vec::new(), unclean: Vec::new() }
    }

    /// Largest piece of free memory.
    pub fn largest_free(&self) -> u64 {
        self.free.largest()
    }

    /// Memory for a slot that is to be added under `id`; `None` if there is not so much in one
    /// piece.
    pub fn take(&mut self, id: SlotId, gpa: Gpa, size: u64, flags: SlotFlags) -> Option<NewSlot> {
        // Aligned to the largest page that may be mapped, as far as the guest address allows.
        let alignments = [1 << 30, 2 << 20, PAGE].into_iter().filter(|&align| size >= align);
        let host = alignments.into_iter().find_map(|align| self.free.take(size, align, u64::MAX))?;
        self.added.push(id);
        Some(NewSlot { slot: Slot { id, gpa, size, host: PhysAddr(host), flags }, cleared: 0 })
    }

    /// Memory for something else than a slot; `None` if there is not so much in one piece.
    pub fn take_memory(&mut self, size: u64) -> Option<u64> {
        self.free.take(size, PAGE, u64::MAX)
    }

    /// Takes it back.
    pub fn put_memory(&mut self, start: u64, size: u64) {
        self.free.add(start..start + size);
    }

    /// Takes memory back that no slot has: it was refused, or its slot is gone and flushed.
    pub fn retire_memory<A: Board>(&mut self, slot: &Slot) {
        let Some(index) = self.added.iter().position(|&id| id == slot.id) else { return };
        self.added.swap_remove(index);
        let memory = slot.host.0..slot.host.0 + slot.size;
        if A::must_clean() {
            self.unclean.push(memory);
        } else {
            self.free.add(memory);
        }
    }

    /// Cleans some of the memory that was taken back, and whose translations are gone everywhere
    /// (P20); whether there is more.
    pub fn clean_some<A: Board>(&mut self) -> bool {
        let Some(memory) = self.unclean.last_mut() else { return false };
        let end = memory.end.min(memory.start + CLEAR_BYTES);
        A::clean(memory.start..end);
        self.free.add(memory.start..end);
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

    /// A log for a slot.
    pub fn make_log(&mut self, slot: &Slot) -> DirtyLog {
        let count = DirtyLog::words_for(slot.size) as usize;
        let words: Box<[AtomicU64]> = (0..count).map(|_| AtomicU64::new(0)).collect();
        let words: &'static [AtomicU64] = Box::leak(words);
        let result = NonNull::from_mut(Box::leak(vec![0; count].into_boxed_slice()));
        self.logs.push(Log { id: slot.id, words, result, is_lent: false });
        DirtyLog::new(words)
    }

    /// Where a fetch of this slot's log puts its result, until it is put back; `None` if somebody
    /// has it.
    pub fn take_result(&mut self, id: SlotId) -> Option<&'static mut [u64]> {
        let log = self.logs.iter_mut().find(|log| log.id == id && !log.is_lent)?;
        log.is_lent = true;
        // SAFETY: it is freed only while nobody has it, and nobody else has it now.
        Some(unsafe { log.result.as_mut() })
    }

    /// The holder of the result has let go of it.
    pub fn put_result(&mut self, id: SlotId) {
        if let Some(log) = self.logs.iter_mut().find(|log| log.id == id) {
            log.is_lent = false;
        }
    }

    /// Frees a log that no slot has.
    pub fn retire_log(&mut self, id: SlotId) {
        let Some(index) = self.logs.iter().position(|log| log.id == id) else { return };
        let Log { words, result, is_lent, .. } = self.logs.swap_remove(index);
        // SAFETY: made by `Box::leak` in `make_log`. The slot has handed it back, so nobody marks
        // it any more.
        drop(unsafe { Box::from_raw(core::ptr::from_ref(words).cast_mut()) });
        if !is_lent {
            // SAFETY: made by `Box::leak` in `make_log`, and nobody has it.
            drop(unsafe { Box::from_raw(result.as_ptr()) });
        }
    }
}
