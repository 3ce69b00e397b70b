//! Nested page faults.

use core::sync::atomic::Ordering::Relaxed;

use paging::{Format, Gpa, Installed, Level, Look, MapError, Permissions, PhysAddr, TableMemory};

use super::GuestSpace;
use crate::{Generation, GuestMemory, Resolution, Slot};

/// What a fault comes to.
///
/// Exhaustive: each is another answer to the vCPU, and there is none for the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A translation was installed: the access can go on.
    Installed(Level),
    /// There was one which lacked the right to store; now it has it.
    Upgraded,
    /// There is one, perhaps another vCPU's that took the same fault; or the entry has just
    /// changed. The access is tried again.
    Retry,
    /// A store to read-only memory.
    ReadOnly,
    /// There is no memory: a device's registers, or nothing.
    Mmio {
        /// How that was found.
        found: Found,
        /// With what generation it may be [remembered](crate::MmioCache::insert).
        generation: Generation,
    },
    /// There is no memory for a table. Nothing has changed.
    OutOfTables,
}

/// How it was found that there is no memory at an address.
///
/// Exhaustive: a mark says so, or a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// By a mark in the nested page table: the slots were not looked at.
    Marked,
    /// By a search of the slots.
    Searched,
}

impl<F: Format, M: TableMemory> GuestSpace<F, M> {
    /// Deals with a nested page fault at `gpa`; `is_store` says what the access was.
    ///
    /// Call in a section that flushes wait for: the walk of the nested table counts as one by a
    /// processor.
    pub fn fault(&self, gpa: Gpa, is_store: bool) -> Fault {
        // Before anything is looked up.
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
        // There may be pages of 2 MiB between, which are no pieces: the next fault need not tell
        // them apart.
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
            // An entry that is just changing. The slots are within what tables can express, so
            // nothing else fails.
            Err(_) => return Fault::Retry,
        };
        if is_store && slot.is_logged_by_faults() {
            // After the leaf has become writable: `dirty.rs` says why in this order.
            let page = gpa.align_down(Level::Page4K).0;
            memory.mark_dirty(page..page + Level::Page4K.size());
        }
        fault
    }

    /// Notes that there is no memory, so that the next fault on this page, of any vCPU, need not
    /// search the slots.
    fn mark(&self, gpa: Gpa, generation: Generation) {
        if generation.is_in_progress() || generation.number() > F::MARK_MAX {
            return;
        }
        // Where it needs no table, as often as anybody likes; with tables as long as there are any
        // for this.
        let has_tables = |left: u32| left.checked_sub(TABLES_OF_A_MARK);
        let taken = self.mark_tables.fetch_update(Relaxed, Relaxed, has_tables).is_ok();
        if taken || self.tables.has_table(gpa.0, Level::Page4K) {
            // Out of tables, or raced: the next fault searches again.
            let _ = self.tables.mark(gpa.0, generation.number());
        }
    }
}

/// Most tables that one mark takes: of 4 levels the root is there.
const TABLES_OF_A_MARK: u32 = 3;

/// What the leaf allows. Stores that are logged by faults are allowed for one page at a time.
fn rights(slot: &Slot, is_store: bool) -> Permissions {
    if slot.is_read_only() || slot.is_logged_by_faults() && !is_store {
        return Permissions::RX;
    }
    // Where stores fault nobody reads dirty bits; the processor may not have them.
    let is_tracked = slot.is_logged() && !slot.is_logged_by_faults();
    if is_tracked { Permissions::RWX | Permissions::TRACKED } else { Permissions::RWX }
}
