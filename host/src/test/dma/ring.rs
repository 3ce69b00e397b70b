//! A ring of the crate `iommu`, and its copy in the memory of an emulated machine.

use super::board::Board;
use crate::test::prelude::*;
use iommu::{Command, Entry, Port, Queue};
use std::cell::Cell;
use std::ops::ControlFlow;
use std::rc::Rc;

/// Binary logarithm of its length, and the length.
pub(super) const ORDER: u32 = 8;
pub(super) const ENTRIES: u64 = 1 << ORDER;
/// How often the IOMMU is looked at until it is stuck.
const TURNS_MAX: u64 = 10_000;

pub(super) struct Ring {
    pub(super) board: Rc<Board>,
    entries: Rc<[Entry]>,
    /// Address in the machine's memory.
    base: u64,
    /// Up to which position entries are there.
    sent: Cell<u64>,
}

impl Ring {
    pub(super) fn new(board: &Rc<Board>, base: u64) -> Self {
        let entries = (0..ENTRIES).map(|_| Entry::default()).collect();
        Self { board: board.clone(), entries, base, sent: Cell::new(0) }
    }

    /// Writes the entries before `position`.
    pub(super) fn send(&self, position: u64) {
        for position in self.sent.replace(position)..position {
            let index = position % ENTRIES;
            let Command([low, high]) = self.entries[index as usize].load();
            self.board.write(self.base + 16 * index, low);
            self.board.write(self.base + 16 * index + 8, high);
        }
    }

    pub(super) fn relax(&self, turns: u64) -> ControlFlow<()> {
        if turns > TURNS_MAX || self.board.has_failed() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

pub(super) struct RingIommu<P> {
    pub(super) board: Rc<Board>,
    queue: Queue<P, Rc<[Entry]>>,
}

impl<P: Port> RingIommu<P> {
    /// The IOMMU that has this ring, with the port that `port` makes of it.
    pub(super) fn new(ring: Ring, port: impl FnOnce(Ring) -> P) -> Self {
        let (board, entries) = (ring.board.clone(), ring.entries.clone());
        Self { board, queue: Queue::new(port(ring), entries) }
    }

    pub(super) fn wait_for(&self, commands: impl IntoIterator<Item = Command>) -> Result<()> {
        let done = self.queue.issue(commands).and_then(|ticket| self.queue.wait(ticket));
        self.board.check()?;
        Ok(done?)
    }

    /// Fails unless 8 bytes of memory have this value.
    pub(super) fn expect(&self, page: u64, value: u64, when: &str) -> Result<()> {
        let is = self.board.read(page);
        ensure!(is == value, "{when}: page {page:#x} has {is:#x} instead of {value:#x}");
        self.board.check()
    }
}
