//! The command ring of an IOMMU that reports in memory, and its registers.

use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU64, Ordering};
use hostlink::defect::Defect;
use iommu::{Command, Entry, Port, Queue, Stuck};
use stay::{Mistake, Mistakes};

use crate::vm::defects::makes;

/// Entries of the ring: a page.
pub(super) const ENTRIES: usize = 256;
/// Bytes of an entry.
const ENTRY_LEN: u64 = 16;
/// Turns of waiting for the IOMMU. A completion takes microseconds; this is seconds.
pub(super) const TURNS_MAX: u64 = if cfg!(test) { 1 << 10 } else { 1 << 28 };

/// The registers of one IOMMU.
pub trait Registers: Sync {
    /// Reads 8 bytes at an offset.
    fn read(&self, offset: u64) -> u64;
    /// Writes 8 bytes. The IOMMU finds everything that this CPU has written to memory before.
    fn write(&self, offset: u64, value: u64);
}

/// What differs between kinds of IOMMUs.
pub(super) struct Kind {
    /// Registers with the offsets of the next entry, and behind the last one.
    pub(super) head: u64,
    pub(super) tail: u64,
    /// The command that stores a position at an address.
    pub(super) sync: fn(address: u64, position: u64) -> Option<Command>,
    /// The position that a word means, which is near another one.
    pub(super) reported: fn(word: u64, near: u64) -> u64,
}

/// The IOMMU's side of the ring.
pub(crate) struct Ring {
    pub(super) registers: &'static dyn Registers,
    pub(super) kind: &'static Kind,
    /// Where it reports.
    report: &'static AtomicU64,
    /// The position of the last sync, or of one not long ago.
    synced: AtomicU64,
}

/// The ring, and who puts commands in.
pub(crate) type Commands = Queue<Ring, &'static [Entry]>;

impl Ring {
    pub(super) fn new(
        registers: &'static dyn Registers,
        kind: &'static Kind,
        report: &'static AtomicU64,
    ) -> Self {
        Self { registers, kind, report, synced: AtomicU64::new(0) }
    }
}

impl Port for Ring {
    fn set_tail(&self, position: u64) {
        let offset = position % ENTRIES as u64 * ENTRY_LEN;
        self.registers.write(self.kind.tail, offset);
    }

    fn head(&self) -> u32 {
        (self.registers.read(self.kind.head) / ENTRY_LEN) as u32
    }

    fn sync(&self, position: u64) -> Command {
        // Relaxed: whatever `reported` finds is near enough.
        self.synced.store(position, Ordering::Relaxed);
        let address = core::ptr::from_ref(self.report).expose_provenance() as u64;
        (self.kind.sync)(address, position).unwrap_or(Command([0; 2]))
    }

    fn reported(&self) -> Option<u64> {
        // Pairs with the IOMMU's store.
        let word = self.report.load(Ordering::Acquire);
        Some((self.kind.reported)(word, self.synced.load(Ordering::Relaxed)))
    }

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        core::hint::spin_loop();
        if turns < TURNS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

impl Mistakes for Ring {
    fn makes(&self, mistake: Mistake) -> bool {
        mistake == Mistake::WrongDomain && makes(Defect::DmaWrongDomain)
    }
}

/// Has the IOMMU carry out commands, and waits.
///
/// # Errors
///
/// [`Stuck`] if it does not go on.
pub(super) fn demand(queue: &Commands, commands: impl IntoIterator<Item = Command>) -> Result<(), Stuck> {
    queue.wait(queue.issue(commands)?)
}
