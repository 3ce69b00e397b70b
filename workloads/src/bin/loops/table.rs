//! The table of loops.

use crate::team::Worker;
use crate::{flush, memory, switch};
use std::io;

/// The size of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Number of threads.
    pub(crate) threads: usize,
    /// Pages of a mapping, for loops that use several.
    pub(crate) pages: usize,
}

/// One loop.
#[derive(Debug)]
pub(crate) struct Loop {
    pub(crate) name: &'static str,
    /// Description of one round.
    pub(crate) about: &'static str,
    /// Whether each thread has a partner that it waits for in each round.
    pub(crate) in_pairs: bool,
    /// Makes the workers of its threads, one each.
    pub(crate) workers: fn(Size) -> io::Result<Vec<Worker>>,
}

impl Loop {
    /// The loop with this name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        LOOPS.iter().find(|each| each.name == name)
    }
}

impl PartialEq for Loop {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Loop {}

const fn alone(
    name: &'static str,
    workers: fn(Size) -> io::Result<Vec<Worker>>,
    about: &'static str,
) -> Loop {
    Loop { name, about, in_pairs: false, workers }
}

const fn in_pairs(
    name: &'static str,
    workers: fn(Size) -> io::Result<Vec<Worker>>,
    about: &'static str,
) -> Loop {
    Loop { name, about, in_pairs: true, workers }
}

pub(crate) static LOOPS: [Loop; 9] = [
    alone("page_fault", memory::page_fault, "map memory, store to each page, read it back, unmap"),
    alone("mmap", memory::map, "map memory and unmap it, untouched"),
    alone("mprotect", memory::protect, "make a touched page read-only, and writable again"),
    in_pairs("context_switch", switch::pipes, "send a byte to the partner by pipe, and receive one"),
    in_pairs("futex", switch::wake_ups, "wake the partner by futex, and wait for it"),
    alone("futex_lock", switch::lock, "take a lock that all threads share, by futex, and release it"),
    alone("tlb_flush1", flush::discard, "store to a page of its own, and discard it (madvise)"),
    alone("tlb_flush2", flush::protect, "store to a page of its own, and protect it (mprotect)"),
    alone("tlb_flush3", flush::unmap, "map a page of a shared file, read it, and unmap it (munmap)"),
];
