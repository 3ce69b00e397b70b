//! Address spaces: the CPUs that have them loaded, and how often they were changed.

use crate::set::TargetSet;
use crate::shootdown::batch::{Batch, Pages};
use crate::shootdown::range::PageRange;
use crate::shootdown::remote::Elsewhere;
use crate::sync::{AtomicU64, Ordering, const_fn, zeroed};

/// The source of a kernel's address spaces. Ids are never reused, so a CPU's record of a removed
/// space is never taken for another's.
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

    /// A space that no CPU has loaded. `root` is its root table in whatever form the caller's
    /// [`Tlb`](super::Tlb) and [`Remote`](super::Remote) need.
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

/// The id that no space has.
pub(super) const NO_SPACE: u64 = 0;
/// The generation of an unchanged space. Not 0, which a CPU's record of a space could have by
/// accident.
const FIRST_GENERATION: u64 = 1;

/// The state shared by the CPUs that use an address space. Up to `64 * BANKS` CPUs; one cache line
/// with 4 banks.
///
/// All of it is changed by read-modify-write, from both sides; see the [table](super#ordering).
///
/// A CPU may have the space loaded for as long as it holds the handle that was passed to
/// [`switch_to`](super::LocalCpu::switch_to): free the root table with the last handle.
#[derive(Debug)]
#[repr(align(64))]
pub struct AddressSpace<const BANKS: usize> {
    pub(super) id: u64,
    root: u64,
    /// Number of changes so far. B is `AcqRel`: it releases the change of the tables to its readers
    /// (c, h).
    pub(super) generation: AtomicU64,
    /// Number of open batches. Incremented before their first change, decremented after their
    /// flush.
    pub(super) open: AtomicU64,
    /// The CPUs that have it loaded, lazily or not: bit `i` of bank `b` is CPU `64 * b + i`. a, f
    /// and C are `AcqRel`.
    pub(super) cpus: [AtomicU64; BANKS],
}

impl<const BANKS: usize> AddressSpace<BANKS> {
    /// The root as passed to [`Spaces::create`].
    pub const fn root(&self) -> u64 {
        self.root
    }

    /// The CPUs that have it loaded, lazily or not, at some moment during the call.
    pub fn cpus(&self) -> TargetSet<BANKS> {
        self.members()
    }

    /// Opens a batch. Change the tables after this call, in a way that others see the changes after
    /// it: by read-modify-write or under a lock. `ranges` is room for the ranges to flush.
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

    /// f: `cpu` has loaded another space. Releases its accesses through this one (G2).
    pub(super) fn leave(&self, cpu: usize, _: Elsewhere) {
        if let Some(bank) = self.cpus.get(cpu / 64) {
            // Pairs with `members`.
            bank.fetch_and(!(1 << (cpu % 64)), Ordering::AcqRel);
        }
    }

    /// c, h: the number of changes so far. Pairs with B.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// B: counts a change of the tables, after it was made, and returns its number.
    pub(super) fn bump(&self) -> u64 {
        // Pairs with `generation`.
        self.generation
            .fetch_add(1, Ordering::AcqRel)
            .checked_add(1)
            .expect("a CPU counts to 2^64 in centuries")
    }

    /// C: the CPUs that have the space loaded. By read-modify-write: a CPU that is not in the set
    /// yet joins after this, and so sees earlier writes (O3).
    pub(super) fn members(&self) -> TargetSet<BANKS> {
        TargetSet::from_banks(core::array::from_fn(|bank| {
            // Pairs with `join` and `leave`.
            self.cpus.get(bank).map_or(0, |cpus| cpus.fetch_or(0, Ordering::AcqRel))
        }))
    }

    /// Whether batches are open besides the caller's. If the caller has met an entry that another
    /// batch has changed, that batch was opened before, and has either been flushed since or is
    /// seen here.
    pub(super) fn others_open(&self) -> bool {
        // Pairs with `batch` and `close`.
        self.open.fetch_or(0, Ordering::AcqRel) > 1
    }

    /// Records that a batch has been flushed.
    pub(super) fn close(&self) {
        // Pairs with `others_open`.
        self.open.fetch_sub(1, Ordering::AcqRel);
    }
}
