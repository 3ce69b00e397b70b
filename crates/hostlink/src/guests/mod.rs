//! The guests of a machine as the host tool sees them, in shared memory: which there are, what they
//! do, and what their consoles show.
//!
//! The [`Beacon`](crate::counters::Beacon) has the address of the entries and their number; 0
//! entries if there is one guest, which uses the machine's serial ports. An entry is for one guest,
//! and after that was destroyed, for another one. Single words ([`state`](GuestEntry::state),
//! [`exit`](GuestEntry::exit), [`used_ticks`](GuestEntry::used_ticks), weight and cap) change at
//! any time; the others change together, as [`stamp`] describes. A reader may therefore combine a
//! guest's name with its own counters and rings only.
//!
//! The hypervisor changes an entry before it uses the memory of its counters and rings for anything
//! else. So what a reader has read there is the guest's if the entry has the same stamp afterwards.

pub mod stamp;

use crate::name::{NAME_BYTES, Name};
use crate::words::words;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Consoles of a guest: its serial ports, in their order.
pub const CONSOLES: usize = 2;

/// In [`exit`](GuestEntry::exit) of a free entry: its guest has gone to another machine, or to a
/// file, and was the last one that lived.
pub const GONE: u32 = 0xff;

words! {
    /// What a guest does. An entry has its number, the place in this list from 0 on.
    GuestState {
        /// The entry is free.
        Empty = "empty",
        /// It has its memory, and its kernel is in it; no vCPU has run since.
        Loaded = "loaded",
        /// Its vCPUs run, as the scheduler lets them.
        Running = "running",
        /// Its vCPUs stay out of guest mode until a request resumes them.
        Paused = "paused",
        /// It switched itself off, or asked for a reset that ends it. [`GuestEntry::exit`] has
        /// more.
        Off = "off",
        /// It was ended for a failure. [`GuestEntry::exit`] has more.
        Failed = "failed",
        /// It was destroyed, and its memory is being cleaned.
        Leaving = "leaving",
        /// It comes from another machine, or from a file.
        Arriving = "arriving",
        /// It was given to another machine, and stands still here until it is known what came of
        /// it.
        Given = "given",
        /// All of it was sent, and it stands still until whoever gets it says that all is there.
        Offered = "offered",
    }
}

impl GuestState {
    /// The one with this number.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.get(code as usize).copied()
    }
}

/// The location of a console's [ring](crate::ring). All zero if there is none.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ConsolePlace {
    /// Physical address of the ring's header, a multiple of 8.
    pub ring: AtomicU64,
    /// Number of its bytes, without the header: a power of two, at least 8.
    pub size: AtomicU32,
    /// 0.
    pub reserved: AtomicU32,
}

impl ConsolePlace {
    /// No console.
    pub const fn new() -> Self {
        Self { ring: AtomicU64::new(0), size: AtomicU32::new(0), reserved: AtomicU32::new(0) }
    }
}

/// One guest, or none. A cache line holds what changes rarely, and another one the rest.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct GuestEntry {
    /// Its name, filled up with NULs.
    pub name: [AtomicU8; NAME_BYTES],
    /// Its [`GuestState`].
    pub state: AtomicU32,
    /// The entry's [stamp]: odd while the entry is changed, and higher after each change.
    pub generation: AtomicU32,
    /// Number of its vCPUs.
    pub vcpus: AtomicU32,
    /// How it ended last: its [code](crate::exit::ExitCode); 0 if it has not ended. It is stored
    /// before the state that it explains.
    pub exit: AtomicU32,
    /// Physical address of its first counter row; the rows are as [`crate::counters`] describes.
    pub counters: AtomicU64,
    /// Its weight.
    pub weight: AtomicU32,
    /// Its cap in percent of one CPU; 0 for none.
    pub cap: AtomicU32,
    /// Ticks of the clock for which its vCPUs have had CPUs.
    pub used_ticks: AtomicU64,
    /// Bytes of its memory.
    pub memory: AtomicU64,
    /// Its consoles.
    pub consoles: [ConsolePlace; CONSOLES],
}

/// What changes together in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The guest's name.
    pub name: Name,
    /// Number of its vCPUs.
    pub vcpus: u32,
    /// Physical address of its first counter row.
    pub counters: u64,
    /// Its weight.
    pub weight: u32,
    /// Its cap in percent of one CPU.
    pub cap: Option<u32>,
    /// Bytes of its memory.
    pub memory: u64,
    /// Physical addresses and sizes of its consoles' rings; (0, 0) for none.
    pub consoles: [(u64, u32); CONSOLES],
}

impl GuestEntry {
    /// A free entry.
    pub const fn new() -> Self {
        Self {
            name: [const { AtomicU8::new(0) }; NAME_BYTES],
            state: AtomicU32::new(GuestState::Empty as u32),
            generation: AtomicU32::new(0),
            vcpus: AtomicU32::new(0),
            exit: AtomicU32::new(0),
            counters: AtomicU64::new(0),
            weight: AtomicU32::new(0),
            cap: AtomicU32::new(0),
            used_ticks: AtomicU64::new(0),
            memory: AtomicU64::new(0),
            consoles: [const { ConsolePlace::new() }; CONSOLES],
        }
    }

    /// Makes it the entry of another guest, in this state. Not to be called on two CPUs at once.
    pub fn fill(&self, facts: &Facts, state: GuestState) {
        self.change(|| {
            self.put(facts);
            self.state.store(state as u32, Ordering::Relaxed);
        });
    }

    /// Makes it free. Not to be called on two CPUs at once.
    pub fn clear(&self) {
        self.change(|| {
            self.state.store(GuestState::Empty as u32, Ordering::Relaxed);
            self.name.iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
            self.put_numbers(0, 0, [0; 2], 0, [(0, 0); CONSOLES]);
        });
    }

    /// Changes the state of the guest that it has, which ended for this reason, if any.
    pub fn set_state(&self, state: GuestState, exit: u32) {
        self.exit.store(exit, Ordering::Relaxed);
        // Pairs with the reader, which loads the state with acquire before the reason.
        self.state.store(state as u32, Ordering::Release);
    }

    fn put(&self, facts: &Facts) {
        for (place, byte) in self.name.iter().zip(facts.name.bytes()) {
            place.store(*byte, Ordering::Relaxed);
        }
        let share = [facts.weight, facts.cap.unwrap_or(0)];
        self.put_numbers(facts.vcpus, facts.counters, share, facts.memory, facts.consoles);
    }

    fn put_numbers(
        &self,
        vcpus: u32,
        counters: u64,
        [weight, cap]: [u32; 2],
        memory: u64,
        consoles: [(u64, u32); CONSOLES],
    ) {
        self.vcpus.store(vcpus, Ordering::Relaxed);
        self.exit.store(0, Ordering::Relaxed);
        self.counters.store(counters, Ordering::Relaxed);
        self.weight.store(weight, Ordering::Relaxed);
        self.cap.store(cap, Ordering::Relaxed);
        self.used_ticks.store(0, Ordering::Relaxed);
        self.memory.store(memory, Ordering::Relaxed);
        for (place, (ring, size)) in self.consoles.iter().zip(consoles) {
            place.ring.store(ring, Ordering::Relaxed);
            place.size.store(size, Ordering::Relaxed);
        }
    }

    #[cfg(not(all(test, loom)))]
    fn change(&self, fields: impl FnOnce()) {
        stamp::Stamp(&self.generation).change(fields);
    }

    /// The models' stamps have atomics of their own; entries are not modelled.
    #[cfg(all(test, loom))]
    fn change(&self, fields: impl FnOnce()) {
        fields();
    }
}

impl Default for GuestEntry {
    fn default() -> Self {
        Self::new()
    }
}

// The host tool loads words of 8 bytes: some fields are halves of them.
const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<GuestEntry>() == 128 && size_of::<ConsolePlace>() == 16);
    assert!(offset_of!(GuestEntry, state) == 32 && offset_of!(GuestEntry, generation) == 36);
    assert!(offset_of!(GuestEntry, vcpus) == 40 && offset_of!(GuestEntry, exit) == 44);
    assert!(offset_of!(GuestEntry, counters) == 48);
    assert!(offset_of!(GuestEntry, weight) == 56 && offset_of!(GuestEntry, cap) == 60);
    assert!(offset_of!(GuestEntry, used_ticks) == 64 && offset_of!(GuestEntry, memory) == 72);
    assert!(offset_of!(GuestEntry, consoles) == 80 && offset_of!(ConsolePlace, size) == 8);
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    const FACTS: Facts = Facts {
        name: Name::GUEST,
        vcpus: 2,
        counters: 0x1000,
        weight: 100,
        cap: Some(50),
        memory: 256 << 20,
        consoles: [(0x2000, 4096), (0, 0)],
    };

    fn numbers(entry: &GuestEntry) -> (u32, u64, u32, u32, u64, [(u64, u32); 2]) {
        let place =
            |place: &ConsolePlace| (place.ring.load(Ordering::Relaxed), place.size.load(Ordering::Relaxed));
        let [first, second] = &entry.consoles;
        (
            entry.vcpus.load(Ordering::Relaxed),
            entry.counters.load(Ordering::Relaxed),
            entry.weight.load(Ordering::Relaxed),
            entry.cap.load(Ordering::Relaxed),
            entry.memory.load(Ordering::Relaxed),
            [place(first), place(second)],
        )
    }

    #[test]
    fn an_entry_is_filled_and_cleared() {
        let entry = GuestEntry::new();
        let state = || GuestState::from_code(entry.state.load(Ordering::Relaxed));
        let generation = || entry.generation.load(Ordering::Relaxed);
        assert_eq!((state(), generation()), (Some(GuestState::Empty), 0));
        entry.fill(&FACTS, GuestState::Loaded);
        assert_eq!((state(), generation()), (Some(GuestState::Loaded), 2));
        let name: Vec<u8> = entry.name.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        assert_eq!(Name::from_bytes(&name.try_into().expect("fits")), Some(Name::GUEST));
        assert_eq!(numbers(&entry), (2, 0x1000, 100, 50, 256 << 20, FACTS.consoles));
        entry.set_state(GuestState::Failed, 0x21);
        assert_eq!((state(), generation()), (Some(GuestState::Failed), 2));
        assert_eq!(entry.exit.load(Ordering::Relaxed), 0x21);
        entry.clear();
        assert_eq!((state(), generation()), (Some(GuestState::Empty), 4));
        assert_eq!(numbers(&entry), (0, 0, 0, 0, 0, [(0, 0); 2]));
        assert!(entry.name.iter().all(|byte| byte.load(Ordering::Relaxed) == 0));
        assert_eq!(entry.exit.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn states_have_numbers_and_words_of_their_own() {
        for (index, state) in GuestState::ALL.into_iter().enumerate() {
            assert_eq!(GuestState::from_code(state as u32), Some(state));
            assert!(GuestState::ALL[..index].iter().all(|other| other.name() != state.name()));
        }
        assert_eq!(GuestState::from_code(GuestState::ALL.len() as u32), None);
    }
}
