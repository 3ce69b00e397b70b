//! Translations of a guest's guest: its physical addresses to memory, by nested tables of the guest
//! and by the slots.
//!
//! A [`Shadow`] is a TLB in memory. It belongs to one vCPU, which fills it when a nested page fault
//! of the guest's guest ends in the slots, and empties it when the guest flushes, and when the
//! vCPU's nested translations are flushed because slots or logs have changed. Nothing else changes
//! it: the guest's tables are not write-protected, and nobody looks for the leaves of a page. What
//! it holds is what a processor could have cached.
//!
//! | the vCPU, in a translation section | a [job](super::Job) |
//! |---|---|
//! | a: pins the slots, looks up | A: publishes the new slots |
//! | b: stores the leaf; c: marks the page in a log, if there is one | B: takes marks, if it fetches a log |
//! | d: ends the section | C: requests a flush of nested translations |
//! | e: finds the request, and empties the shadow; f: enters the guest's guest | D: waits for e, and for sections; E: returns memory, reads marks again |
//!
//! * a before A: the leaf is of the former slots. C is after A. If C is before d, then e is before
//!   f; else d was before C, and e comes before the next f. Either way the leaf is gone before E.
//! * A before a: the leaf is of the new slots.
//! * c before B: the fetch has the page, and the leaf is gone before D, so that the next store is
//!   marked anew. B before c: the mark stays for E, or for the next fetch.
//!
//! Source: APM volume 2 (24593, revision 3.42), section 15.25.

use paging::guest::Translation;
use paging::{
    FlushReceipt, Format, Installed, Level, MapError, PageTable, Permissions, PhysAddr, Stamp, TableMemory,
    Tables,
};

use super::GuestSpace;
use crate::Resolution;

/// The result of [filling](Shadow::fill).
///
/// Exhaustive: each variant needs its own answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// There is a translation now: the access is retried.
    Leaf,
    /// What there was contradicts the guest's tables, or there are not enough tables. To be
    /// [emptied](Shadow::empty) first.
    Full,
    /// A store to read-only memory.
    ReadOnly,
    /// There is no memory: a device's registers, or nothing.
    NoMemory,
}

/// Translations of a guest's guest, which one vCPU fills and empties.
#[derive(Debug)]
pub struct Shadow<F: Format, M: TableMemory> {
    tables: PageTable<F, M>,
    count: u32,
}

/// Whoever empties a shadow promises what a receipt promises.
struct Emptied;

// SAFETY: only `Shadow::empty` makes one, for its own table; its caller vouches for processors, and
// with the only reference to the table there is no software in it.
unsafe impl FlushReceipt for Emptied {
    fn covers(&self, _: Stamp) -> bool {
        true
    }
}

impl<F: Format, M: TableMemory> Shadow<F, M> {
    /// One without translations, for the guest of a guest with this space, and in the same kind of
    /// memory.
    ///
    /// # Errors
    ///
    /// [`MapError::OutOfTables`].
    pub fn new(space: &GuestSpace<F, M>) -> Result<Self, MapError> {
        Ok(Self { tables: PageTable::new(space.tables.memory().clone())?, count: 1 })
    }

    /// Its root, which stays the same.
    pub fn root(&self) -> PhysAddr {
        self.tables.root()
    }

    /// The tables that it takes, with the root.
    pub const fn table_count(&self) -> u32 {
        self.count
    }

    /// Fills in the page of an access to `at`, which the guest's own tables translate as `theirs`
    /// says; at most `tables_max` tables may be added.
    ///
    /// Call it in the section in which the guest's tables were walked.
    pub fn fill(
        &mut self,
        space: &GuestSpace<F, M>,
        at: u64,
        theirs: &Translation,
        is_store: bool,
        tables_max: u32,
    ) -> Filled {
        // Pinned until the leaf is there.
        let memory = space.slots.memory();
        let Resolution::Ram { slot, host, level } = memory.resolve(theirs.gpa) else {
            return Filled::NoMemory;
        };
        if is_store && slot.is_read_only() {
            return Filled::ReadOnly;
        }
        let level = level.min(space.largest).min(level_of(theirs.page_size));
        let mut rights = slot.rights();
        // A store to a page that is not dirty in the guest's tables, or in a log, is to be noticed.
        let is_noticed = is_store || theirs.is_dirty && !slot.is_logged();
        if !theirs.is_writable || !is_noticed {
            rights -= Permissions::WRITE;
        }
        if !theirs.is_executable {
            rights -= Permissions::EXECUTE;
        }
        let missing = self.missing(at, level);
        if missing > tables_max {
            return Filled::Full;
        }
        match self.tables.install(at, host, level, rights) {
            Ok(Installed::New(_)) => self.count += missing,
            Ok(Installed::Upgraded(_)) => {}
            // As if another one had been faster: what the processor has met was there no more.
            Ok(Installed::Present(there)) if there.pa == host && there.permissions.contains(rights) => {}
            // What the guest has changed without a flush, or what the tables cannot express: the
            // walk has seen to that.
            Ok(Installed::Present(_)) | Err(_) => return Filled::Full,
        }
        if is_store && slot.is_logged() {
            let page = theirs.gpa.align_down(Level::Page4K).0;
            memory.mark_dirty(page..page + Level::Page4K.size());
        }
        Filled::Leaf
    }

    /// Removes all translations, and returns all tables but the root.
    ///
    /// # Safety
    ///
    /// No processor uses what it holds of this shadow any more: the next entry of the vCPU with the
    /// tag of its guest's guest drops that first.
    pub unsafe fn empty(&mut self) {
        if self.count > 1 {
            let gather = self.tables.zap(0..u64::MAX, Tables::Detach);
            // The receipt covers all.
            let _released = gather.release(&Emptied);
            self.count = 1;
        }
    }

    /// The translations, for an audit: of each leaf the address, and where it leads.
    pub fn for_each(&self, mut visit: impl FnMut(u64, PhysAddr, Permissions)) {
        self.tables.for_each(0..u64::MAX, |range, leaf| visit(range.start, leaf.pa, leaf.permissions));
    }

    /// Stores a leaf for the first page, without a look at the slots.
    #[cfg(all(test, loom))]
    pub(crate) fn store(&self, at: u64) {
        self.tables.install(at, PhysAddr(0), Level::Page4K, Permissions::RWX).unwrap();
    }

    /// The tables that a leaf of this level would need more.
    fn missing(&self, at: u64, level: Level) -> u32 {
        let levels = [Level::Page4K, Level::Page2M, Level::Page1G];
        levels.iter().filter(|&&above| above >= level && !self.tables.has_table(at, above)).count() as u32
    }
}

/// The largest page that is part of one of the guest's.
fn level_of(page_size: u64) -> Level {
    let levels = [Level::Page1G, Level::Page2M];
    levels.into_iter().find(|level| level.size() <= page_size).unwrap_or(Level::Page4K)
}
