//! The word in guest memory that a vCPU waits for, while others run.
//!
//! The vCPU's owner notes the word before it puts the vCPU into a queue, whose lock orders that
//! before all looks: they are taken by the holder of that lock. Nobody else notes anything
//! meanwhile, for nobody owns the vCPU.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use memslots::{Gpa, GuestMemory};

/// A word that must not be what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// Where it is.
    pub gpa: Gpa,
    /// 1, 2, 4 or 8, by which the address is aligned.
    pub bytes: u8,
    /// What the vCPU waits on.
    pub value: u64,
}

impl Word {
    /// Whether it is other than that now. A word that cannot be read is for the vCPU to find out
    /// about.
    pub fn has_changed(&self, memory: &GuestMemory<'_>) -> bool {
        let mut bytes = [0; 8];
        let read = bytes.get_mut(..usize::from(self.bytes)).map(|word| memory.read(self.gpa, word));
        !matches!(read, Some(Ok(_))) || u64::from_le_bytes(bytes) != self.value
    }
}

/// What a vCPU in a queue waits for.
#[derive(Debug, Default)]
pub struct Awaited {
    gpa: AtomicU64,
    bytes: AtomicU8,
    value: AtomicU64,
    /// When it goes on whatever the word is: an event may have come that is no store.
    until: AtomicU64,
}

impl Awaited {
    /// For the vCPU's owner.
    pub fn note(&self, word: Word, until: u64) {
        self.gpa.store(word.gpa.0, Ordering::Relaxed);
        self.bytes.store(word.bytes, Ordering::Relaxed);
        self.value.store(word.value, Ordering::Relaxed);
        self.until.store(until, Ordering::Relaxed);
    }

    /// Whether the wait is over, as far as memory and the clock say it.
    pub fn is_over(&self, memory: &GuestMemory<'_>, now: u64) -> bool {
        let word = Word {
            gpa: Gpa(self.gpa.load(Ordering::Relaxed)),
            bytes: self.bytes.load(Ordering::Relaxed),
            value: self.value.load(Ordering::Relaxed),
        };
        now >= self.until.load(Ordering::Relaxed) || word.has_changed(memory)
    }
}
