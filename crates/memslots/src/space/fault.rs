//! Nested page faults.

use core::sync::atomic::Ordering::Relaxed;

use paging::{Format, Gpa, Installed, Level, Look, MapError, Permissions, PhysAddr, TableMemory};

use super::GuestSpace;
use crate::{Generation, GuestMemory, Resolution, Slot};

/// The result of a fault.
///
/// Exhaustive: each variant needs its own answer to the vCPU; no default would be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A translation was installed: the access can proceed.
    Installed(Level),
    /// The translation lacked the right to store and now has it.
    Upgraded,
    /// There is a translation, perhaps another vCPU's for the same fault; or the entry has just
    /// changed. Retry the access.
    Retry,
    /// A store to read-only memory.
    ReadOnly,
    /// There is no memory: a device's registers, or nothing.
    Mmio {
        /// How this was determined.
        found: Found,
        /// The generation with which it may be [remembered](crate::MmioCache::insert).
        generation: Generation,
    },
    /// There is no memory for a table. Nothing has changed.
    OutOfTables,
}

/// How it was determined that an address has no memory.
///
/// Exhaustive: either by a mark or by a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// By a mark in the nested page table: the slots were not searched.
    Marked,
    /// By a search of the slots.
    Searched,
}

impl<F: Format, M: TableMemory> GuestSpace<F, M> {
    /// Handles a nested page fault at `gpa`; `is_store` is true if the access was a store.
    ///
    /// Call it in a section that flushes wait for: the walk of the nested table counts like one by
    /// a processor.
    pub fn fault(&self, gpa: Gpa, is_store: bool) -> Fault {
        // Read before any lookup.
        let generation = self.slots.generation();
        if self.tables.look(gpa.0) == Look::Marked(generation.number()) && !generation.is_in_progress() {
            return Fault::Mmio { found: Found::Marked, generation };
        }
        // Pinned until the translation is installed (P5).
        let memory = self.slots.memory();
        match memory.resolve(gpa) {
            Resolution::Ram { slot, .. } if is_store && slot.is_read_only() => Fault::ReadOnly,
            Resolution::Ram { slot, host, level } => {
                let rights = rights(&slot, is_store);
                let installed = self.install(gpa, host, level.min(self.largest), rights);
                self.conclude(installed, gpa, is_store, &slot, &memory)
            }
            Resolution::Mmio => {
                self.mark(gpa, memory.generation());
                Fault::Mmio { found: Found::Searched, generation: memory.generation() }
            }
        }
    }

    fn install(
        &self,
        gpa: Gpa,
        host: PhysAddr,
        level: Level,
        rights: Permissions,
    ) -> Result<Installed, MapError> {
        if !self.has_pieces() && level > Level::Page4K {
            match self.tables.install_whole(gpa.0, host, level, rights) {
                Err(MapError::TooSmall) => {}
                installed => return installed,
            }
        }
        // There may be pages of 2 MiB in between, which are not pieces: the next fault need not
        // distinguish them.
        self.expect_pieces();
        self.tables.install(gpa.0, host, level, rights)
    }

    fn conclude(
        &self,
        installed: Result<Installed, MapError>,
        gpa: Gpa,
        is_store: bool,
        slot: &Slot,
        memory: &GuestMemory<'_>,
    ) -> Fault {
        let fault = match installed {
            Ok(Installed::New(level)) => Fault::Installed(level),
            Ok(Installed::Upgraded(_)) => Fault::Upgraded,
            Ok(Installed::Present(_)) => Fault::Retry,
            Err(MapError::OutOfTables) => return Fault::OutOfTables,
            // An entry that is being changed. The slots are within what tables can express, so
            // nothing else fails.
            Err(_) => return Fault::Retry,
        };
        if is_store && slot.is_logged_by_faults() {
            // After the leaf has become writable: `dirty.rs` explains this order.
            let page = gpa.align_down(Level::Page4K).0;
            memory.mark_dirty(page..page + Level::Page4K.size());
        }
        fault
    }

    /// Marks the address as having no memory, so that the next fault on this page, by any vCPU,
    /// need not search the slots.
    fn mark(&self, gpa: Gpa, generation: Generation) {
        if !self.has_marks || generation.is_in_progress() || generation.number() > F::MARK_MAX {
            return;
        }
        // Without limit if no table is needed; with tables, while the budget for them lasts.
        let has_tables = |left: u32| left.checked_sub(TABLES_OF_A_MARK);
        let taken = self.mark_tables.fetch_update(Relaxed, Relaxed, has_tables).is_ok();
        if taken || self.tables.has_table(gpa.0, Level::Page4K) {
            // Out of tables, or raced: the next fault searches again.
            let _ = self.tables.mark(gpa.0, generation.number());
        }
    }
}

/// The most tables that one mark takes: of 4 levels, the root exists already.
const TABLES_OF_A_MARK: u32 = 3;

/// The permissions of the leaf. Stores that faults log are allowed for one page at a time.
fn rights(slot: &Slot, is_store: bool) -> Permissions {
    if slot.is_logged_by_faults() && !is_store {
        return slot.rights() - Permissions::WRITE;
    }
    // Where stores fault, dirty bits are not read; the processor may not support them.
    let is_tracked = slot.is_logged() && !slot.is_logged_by_faults();
    if is_tracked { slot.rights() | Permissions::TRACKED } else { slot.rights() }
}
