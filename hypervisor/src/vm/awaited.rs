//! The word in guest memory that a vCPU waits for, while other vCPUs run.
//!
//! The vCPU's owner notes the word before it puts the vCPU into a queue. The queue's lock orders
//! the note before all checks, because only the lock's holder checks. No CPU changes the note
//! meanwhile, because the vCPU has no owner.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use memslots::{Gpa, GuestMemory};

/// A word that must change before the vCPU goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// Its address.
    pub gpa: Gpa,
    /// Its size: 1, 2, 4 or 8. The address is aligned to it.
    pub bytes: u8,
    /// The value that the vCPU waits to see replaced.
    pub value: u64,
}

impl Word {
    /// Whether the word now has another value. If it cannot be read it counts as changed: the vCPU
    /// itself finds out about that.
    pub fn has_changed(&self, memory: &GuestMemory<'_>) -> bool {
        let mut bytes = [0; 8];
        let read = bytes.get_mut(..usize::from(self.bytes)).map(|word| memory.read(self.gpa, word));
        !matches!(read, Some(Ok(_))) || u64::from_le_bytes(bytes) != self.value
    }
}

/// The word that a queued vCPU waits for.
#[derive(Debug, Default)]
pub struct Awaited {
    gpa: AtomicU64,
    bytes: AtomicU8,
    value: AtomicU64,
    /// When the vCPU goes on regardless of the word: there may be an event that is not a store.
    until: AtomicU64,
}

impl Awaited {
    /// To be called by the vCPU's owner.
    pub fn note(&self, word: Word, until: u64) {
        self.gpa.store(word.gpa.0, Ordering::Relaxed);
        self.bytes.store(word.bytes, Ordering::Relaxed);
        self.value.store(word.value, Ordering::Relaxed);
        self.until.store(until, Ordering::Relaxed);
    }

    /// Whether the wait is over according to memory and the clock.
    pub fn is_over(&self, memory: &GuestMemory<'_>, now: u64) -> bool {
        let word = Word {
            gpa: Gpa(self.gpa.load(Ordering::Relaxed)),
            bytes: self.bytes.load(Ordering::Relaxed),
            value: self.value.load(Ordering::Relaxed),
        };
        now >= self.until.load(Ordering::Relaxed) || word.has_changed(memory)
    }
}
