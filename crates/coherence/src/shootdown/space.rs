//! Address spaces: who has them loaded, and how often they were changed.

use crate::set::TargetSet;
use crate::shootdown::batch::{Batch, Pages};
use crate::shootdown::range::PageRange;
use crate::sync::{AtomicU64, Ordering, const_fn, zeroed};

/// The source of a kernel's address spaces. Their ids are never used twice, so that what a CPU
/// remembers of a space that is gone is taken for nobody else's.
#[derive(Debug)]
pub struct Spaces {
    newest: AtomicU64,
}

impl Spaces {
    const_fn! {
        /// A source; a kernel has one.
        pub fn new() -> Self {
            Self { newest: AtomicU64::new(NO_SPACE) }
        }
    }

    /// A space that nobody has loaded. `root` is its root table in whatever form
    /// [`Tlb`](super::Tlb) and [`Remote`](super::Remote) of the caller want it.
    ///
    /// # Panics
    /// After 2^64 spaces.
    pub fn create<const BANKS: usize>(&self, root: u64) -> AddressSpace<BANKS> {
        let id = self.newest.fetch_add(1, Ordering::Relaxed).checked_add(1);
        AddressSpace {
            id: id.expect("a kernel makes 2^64 spaces in centuries"),
            root,
            generation: AtomicU64::new(FIRST_GENERATION),
            open: AtomicU64::new(0),
            cpus: zeroed!(BANKS),
        }
    }
}

impl Default for Spaces {
    fn default() -> Self {
        Self::new()
    }
}

/// The id of no space.
pub(super) const NO_SPACE: u64 = 0;
/// The generation of a space that has not been changed. No CPU's record of a space has 0 by
/// accident.
const FIRST_GENERATION: u64 = 1;

/// What the CPUs that use an address space have to agree on. Up to `64 * BANKS` CPUs; with 4 banks
/// a cache line.
///
/// Everything that changes is changed by read-modify-write, from both sides; see the
/// [table](super#ordering).
///
/// A CPU may have the space loaded for as long as it holds the handle that was given to
/// [`switch_to`](super::LocalCpu::switch_to): free the root table with the last handle.
#[derive(Debug)]
#[repr(align(64))]
pub struct AddressSpace<const BANKS: usize> {
    pub(super) id: u64,
    root: u64,
    /// Changes so far. B is `AcqRel`: it releases the change of the tables to its readers (c,
    /// h).
    pub(super) generation: AtomicU64,
    /// Batches that are open. Raised before their first change, lowered after their flush.
    pub(super) open: AtomicU64,
    /// Who has it loaded, lazily or not: bit `i` of bank `b` is CPU `64 * b + i`. a, f and C are
    /// `AcqRel`.
    pub(super) cpus: [AtomicU64; BANKS],
}

impl<const BANKS: usize> AddressSpace<BANKS> {
    /// What was given to [`Spaces::create`].
    pub const fn root(&self) -> u64 {
        self.root
    }

    /// Who has it loaded, lazily or not, at some moment during the call.
    pub fn cpus(&self) -> TargetSet<BANKS> {
        self.members()
    }

    /// Opens a batch. Changes of the tables come after this, and become visible to others after it:
    /// page tables are changed by read-modify-write or under a lock. `ranges` is room for what is
    /// to be flushed.
    pub fn batch<'a, C>(&'a self, ranges: &'a mut [PageRange], cargo: C) -> Batch<'a, Pages, C, BANKS> {
        // Pairs with `others_open`.
        self.open.fetch_add(1, Ordering::AcqRel);
        Batch::new(self, ranges, cargo)
    }

    /// a: `cpu` is about to load the space.
    pub(super) fn join(&self, cpu: usize) {
        if let Some(bank) = self.cpus.get(cpu / 64) {
            // Pairs with `members`.
            bank.fetch_or(1 << (cpu % 64), Ordering::AcqRel);
        }
    }

    /// f: `cpu` has loaded another one. Releases what it did through this one (G2).
    pub(super) fn leave(&self, cpu: usize) {
        if let Some(bank) = self.cpus.get(cpu / 64) {
            // Pairs with `members`.
            bank.fetch_and(!(1 << (cpu % 64)), Ordering::AcqRel);
        }
    }

    /// c, h: the changes so far. Pairs with B.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// B: counts a change of the tables, after it was made; its number.
    pub(super) fn bump(&self) -> u64 {
        // Pairs with `generation`.
        self.generation
            .fetch_add(1, Ordering::AcqRel)
            .checked_add(1)
            .expect("a CPU counts to 2^64 in centuries")
    }

    /// C: the CPUs that have the space loaded. By read-modify-write: one that is not in the set yet
    /// joins after this, and so sees what came before it (O3).
    pub(super) fn members(&self) -> TargetSet<BANKS> {
        TargetSet::from_banks(core::array::from_fn(|bank| {
            // Pairs with `join` and `leave`.
            self.cpus.get(bank).map_or(0, |cpus| cpus.fetch_or(0, Ordering::AcqRel))
        }))
    }

    /// Whether batches other than one that is open are. If that one has met an entry that another
    /// has changed, the other was opened before, and has either been flushed since or is seen here.
    pub(super) fn others_open(&self) -> bool {
        // Pairs with `batch` and `close`.
        self.open.fetch_or(0, Ordering::AcqRel) > 1
    }

    /// A batch has been flushed.
    pub(super) fn close(&self) {
        // Pairs with `others_open`.
        self.open.fetch_sub(1, Ordering::AcqRel);
    }
}
