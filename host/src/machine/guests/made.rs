//! Mock machines with guests: memory that a test fills like the hypervisor.

use super::*;
use hostlink::guests::Facts;
use std::sync::atomic::{AtomicU8, Ordering};

pub(crate) const BEACON: u64 = 0x1000;
const ENTRIES: u64 = 0x2000;
const RINGS: u64 = 0x10000;
/// Physical address of every guest's counters.
pub(crate) const COUNTERS: u64 = 0x20000;
pub(crate) const RING_BYTES: u64 = 64;

pub(crate) struct MockGuests {
    pub(crate) ram: Ram,
}

impl MockGuests {
    pub(crate) fn new(entries: u32) -> Self {
        let made = Self { ram: Ram::new(0x40000, 0).expect("makes") };
        made.put(BEACON + offset_of!(Beacon, guests) as u64, ENTRIES);
        made.put(BEACON + offset_of!(Beacon, guest_count) as u64, entries.into());
        made.put(BEACON + offset_of!(Beacon, magic) as u64, BEACON_MAGIC);
        made
    }

    pub(crate) fn count_columns(&self) {
        let columns = Counter::COUNT as u64;
        self.put(BEACON + offset_of!(Beacon, vcpu_count) as u64, columns << 32);
    }

    pub(crate) fn put(&self, address: u64, word: u64) {
        self.ram.put(address, word);
    }

    fn ring(entry: u32, port: usize) -> u64 {
        RINGS + (u64::from(entry) * CONSOLES as u64 + port as u64) * 256
    }

    pub(crate) fn field(entry: u32, offset: usize) -> u64 {
        ENTRIES + u64::from(entry) * size_of::<GuestEntry>() as u64 + offset as u64
    }

    pub(crate) fn fill(&self, entry: u32, name: &str, state: GuestState) {
        let generation = Self::field(entry, offset_of!(GuestEntry, state));
        let before = high(self.ram.load(generation).expect("reads"));
        let consoles = [0, 1].map(|port| (Self::ring(entry, port), RING_BYTES as u32));
        let name = Name::parse(name).expect("is one");
        let facts = Facts {
            name,
            vcpus: 2,
            counters: COUNTERS,
            weight: 100,
            cap: Some(50),
            memory: 1 << 28,
            consoles,
        };
        consoles.iter().for_each(|(ring, _)| self.put(*ring, 0));
        let filled = GuestEntry::new();
        filled.generation.store(before, Ordering::Relaxed);
        filled.fill(&facts, state);
        self.copy(entry, &filled);
    }

    pub(crate) fn copy(&self, entry: u32, from: &GuestEntry) {
        let byte = |byte: &AtomicU8| byte.load(Ordering::Relaxed);
        let load = |word: &std::sync::atomic::AtomicU32| u64::from(word.load(Ordering::Relaxed));
        let name: Vec<u8> = from.name.iter().map(byte).collect();
        self.ram.put_bytes(Self::field(entry, 0), &name);
        let mut words = vec![
            (offset_of!(GuestEntry, vcpus), load(&from.vcpus) | load(&from.exit) << 32),
            (offset_of!(GuestEntry, counters), from.counters.load(Ordering::Relaxed)),
            (offset_of!(GuestEntry, weight), load(&from.weight) | load(&from.cap) << 32),
            (offset_of!(GuestEntry, used_ticks), from.used_ticks.load(Ordering::Relaxed)),
            (offset_of!(GuestEntry, memory), from.memory.load(Ordering::Relaxed)),
        ];
        for (port, console) in from.consoles.iter().enumerate() {
            let at = offset_of!(GuestEntry, consoles) + port * size_of::<ConsolePlace>();
            words.push((at, console.ring.load(Ordering::Relaxed)));
            words.push((at + 8, load(&console.size)));
        }
        words.push((offset_of!(GuestEntry, state), load(&from.state) | load(&from.generation) << 32));
        words.into_iter().for_each(|(at, word)| self.put(Self::field(entry, at), word));
    }

    pub(crate) fn clear(&self, entry: u32) {
        let state = Self::field(entry, offset_of!(GuestEntry, state));
        let cleared = GuestEntry::new();
        cleared.generation.store(high(self.ram.load(state).expect("reads")), Ordering::Relaxed);
        cleared.clear();
        self.copy(entry, &cleared);
    }

    pub(crate) fn set_state(&self, entry: u32, state: GuestState, exit: u32) {
        let vcpus = Self::field(entry, offset_of!(GuestEntry, vcpus));
        let word = self.ram.load(vcpus).expect("reads");
        self.put(vcpus, u64::from(low(word)) | u64::from(exit) << 32);
        let at = Self::field(entry, offset_of!(GuestEntry, state));
        let word = self.ram.load(at).expect("reads");
        self.put(at, state as u64 | u64::from(high(word)) << 32);
    }

    pub(crate) fn write(&self, entry: u32, port: usize, bytes: &[u8]) {
        let ring = Self::ring(entry, port);
        for byte in bytes {
            let written = self.ram.load(ring).expect("reads");
            self.ram.put_bytes(ring + HEADER_BYTES + written % RING_BYTES, &[*byte]);
            self.put(ring, written + 1);
        }
    }
}
