//! The device, its IOMMU, and the memory that it reaches.

use core::ops::ControlFlow;
use std::vec::Vec;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use crate::{Command, Entry, Port, Queue};

/// Entries of the ring, unless a scenario fills it.
const LEN: usize = 8;
/// Commands: the first word says which.
const INVALIDATE: u64 = 1;
const SYNC: u64 = 2;
/// An entry of the table.
const MAPPED: u64 = 1;

/// Registers, and the word that both sides have in memory.
#[derive(Debug)]
pub(super) struct Registers {
    tail: AtomicU64,
    head: AtomicU64,
    reported: AtomicU64,
    /// One less than the number of entries.
    mask: u64,
    /// Whether a sync reports by a word in memory.
    has_word: bool,
    /// How a CPU reads that word and the head: mutants do so without an order.
    reads: Ordering,
}

/// Entries of the ring, in memory.
#[derive(Debug)]
pub(super) struct Ring(Vec<Entry>);

impl AsRef<[Entry]> for Ring {
    fn as_ref(&self) -> &[Entry] {
        &self.0
    }
}

impl Port for Registers {
    fn set_tail(&self, position: u64) {
        // Pairs with the load in `Device::serve`.
        self.tail.store(position & self.mask, Ordering::Release);
    }

    fn head(&self) -> u32 {
        // Pairs with the store in `Device::serve`.
        self.head.load(self.reads) as u32
    }

    fn sync(&self, position: u64) -> Command {
        Command([SYNC, position])
    }

    fn reported(&self) -> Option<u64> {
        // Pairs with the store in `Device::serve`.
        self.has_word.then(|| self.reported.load(self.reads))
    }

    fn relax(&self, _: u64) -> ControlFlow<()> {
        thread::yield_now();
        ControlFlow::Continue(())
    }
}

/// The whole machine.
pub(super) struct World {
    pub(super) queue: Queue<Registers, Ring>,
    /// The table: an entry for each page.
    table: [AtomicU64; 2],
    /// The pages. An access is one by DMA or by a CPU that reuses the page.
    pages: [UnsafeCell<()>; 2],
    /// How many CPUs have done what they do.
    finished: AtomicU64,
}

/// Drops the translation of a page.
pub(super) fn invalidate(page: usize) -> Command {
    Command([INVALIDATE, page as u64])
}

impl World {
    pub(super) fn new(has_word: bool) -> Self {
        Self::with(has_word, Ordering::Acquire, LEN)
    }

    /// With so many entries; CPUs read the report with that order.
    pub(super) fn with(has_word: bool, reads: Ordering, len: usize) -> Self {
        let word = || AtomicU64::new(0);
        let mask = len as u64 - 1;
        let registers = Registers { tail: word(), head: word(), reported: word(), mask, has_word, reads };
        Self {
            queue: Queue::new(registers, Ring((0..len).map(|_| Entry::default()).collect())),
            table: [AtomicU64::new(MAPPED), AtomicU64::new(MAPPED)],
            pages: [UnsafeCell::new(()), UnsafeCell::new(())],
            finished: AtomicU64::new(0),
        }
    }

    /// Removes a page from the table.
    pub(super) fn unmap(&self, page: usize) {
        self.table[page].store(0, Ordering::Relaxed);
    }

    /// Whether a walk finds a page. Relaxed: an invalidation is no reason to find anything.
    pub(super) fn is_mapped(&self, page: usize) -> bool {
        self.table[page].load(Ordering::Relaxed) == MAPPED
    }

    /// Uses the page for something else.
    pub(super) fn reuse(&self, page: usize) {
        self.pages[page].with_mut(|_| ());
    }

    /// A CPU has done what it does.
    pub(super) fn finish(&self) {
        self.finished.fetch_add(1, Ordering::AcqRel);
    }
}

/// What the device keeps. It has used both pages before.
pub(super) struct Device {
    /// The translations of the pages.
    held: [bool; 2],
    /// Those that it has to drop. It does so no earlier than it must: at the next sync.
    dropped: [bool; 2],
    /// The next entry of the ring.
    head: u64,
}

impl Device {
    pub(super) const fn new() -> Self {
        Self { held: [true; 2], dropped: [false; 2], head: 0 }
    }

    /// Serves the ring until so many CPUs have finished, and uses the pages all the time.
    pub(super) fn run(mut self, world: &World, cpus: u64) {
        self.access(world);
        while world.finished.load(Ordering::Acquire) < cpus {
            if !self.serve(world) {
                thread::yield_now();
            }
        }
    }

    /// DMA by the translations that are held.
    pub(super) fn access(&self, world: &World) {
        for (page, _) in world.pages.iter().zip(self.held).filter(|(_, is_held)| *is_held) {
            page.with_mut(|_| ());
        }
    }

    /// Does a command, if there is one, and uses the pages.
    pub(super) fn serve(&mut self, world: &World) -> bool {
        let registers = world.queue.port();
        // Acquire: pairs with `set_tail`.
        if registers.tail.load(Ordering::Acquire) == self.head {
            return false;
        }
        let Command([what, operand]) = world.queue.entries()[self.head as usize].load();
        match what {
            INVALIDATE => self.dropped[operand as usize] = true,
            SYNC => {
                self.walk_again(world);
                // Release, as for the head: they pair with `reported` and `head`.
                registers.reported.store(operand, Ordering::Release);
            }
            other => panic!("the device reads command {other} at {}", self.head),
        }
        self.head = (self.head + 1) % world.queue.entries().len() as u64;
        registers.head.store(self.head, Ordering::Release);
        self.access(world);
        true
    }

    /// Drops what it has to, and looks at once whether the table has it still.
    fn walk_again(&mut self, world: &World) {
        for page in 0..world.table.len() {
            if core::mem::take(&mut self.dropped[page]) {
                self.held[page] = world.is_mapped(page);
            }
        }
    }
}
