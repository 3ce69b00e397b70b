//! Guest memory as the guest sees it: the slots, and the nested page table derived from them.
//!
//! [`GuestSpace`] keeps the two consistent. [Faults](GuestSpace::fault) on any number of CPUs
//! install translations according to the slots. One [`Job`] at a time changes the slots or their
//! dirty logs, removes translations that are no longer right, and returns the memory behind them
//! when a flush has ended. Faults continue meanwhile: there is no lock between the two.
//!
//! | a vCPU's fault, in a translation section | the job |
//! |---|---|
//! | a: pins the slots, looks up | A: marks the generation, publishes the new slots |
//! | b: installs the translation | B: waits until the former slots have no pin |
//! | c: drops the pin | C: removes translations of the slot's range, step by step |
//! | d: ends the section | D: flush; it waits for sections that began before |
//! | | E: ends the update, returns memory, frees tables |
//!
//! A fault that saw the old slots has its b before C, so C finds the translation (P5). A fault that
//! saw the new ones installs nothing in a range being removed. So no translation reappears behind
//! the job, and the job visits each entry at most once (P6). A fault in progress in tables that C
//! detaches may still fill them: D covers it, and it is over before E, which finds its entries. If
//! tables may not be replaced without a break (Arm), the entries that C cut off stay frozen until
//! D, and faults there are retried.
//!
//! C detaches whole tables with one store, so the guest waits only for D; the time-consuming work
//! is in E.
//!
//! The caller flushes: a job's [step](Steps::step) requests it, and continues when given a receipt.

mod audit;
mod fault;
mod fetch;
mod job;
mod owed;
mod prefault;
mod shadow;
mod task;
mod walk;

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32};

use paging::{Format, Gather, Gpa, Level, MapError, PageTable, PhysAddr, Stamp, TableMemory};

use crate::{DirtyLog, Edit, Memslots, Slot, SlotError, SlotFlags, SlotId, SpaceId};

pub use audit::Audit;
pub use fault::{Fault, Found};
pub use fetch::FetchJob;
pub use job::{Job, Report, Steps};
pub use prefault::Prefault;
pub use shadow::{Filled, Shadow};

/// The most tables that marks of MMIO addresses may take: a guest must not be able to exhaust
/// memory by touching addresses that have none.
const MARK_TABLES_MAX: u32 = 64;

/// How stores to a slot with a log are detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogWay {
    /// By the dirty bits of leaves: no faults.
    DirtyBits,
    /// The same, and processors list the pages whose dirty bits they set, as Intel's with
    /// page-modification logging. The hypervisor marks what a processor has listed before others
    /// can see that it has left guest mode, if there [are lists](GuestSpace::has_lists).
    Lists,
    /// By removing write access: the first store to each page faults.
    WriteFaults,
}

/// The memory of one guest.
///
/// `F` and `M` are the format and memory of its nested page table.
#[derive(Debug)]
pub struct GuestSpace<F: Format, M: TableMemory> {
    slots: Memslots,
    tables: PageTable<F, M>,
    /// Largest page that the processor's nested tables may hold.
    largest: Level,
    /// How many more tables marks may take.
    mark_tables: AtomicU32,
    has_marks: bool,
    /// Whether there is a job.
    has_job: AtomicBool,
    /// Whether there are, or are about to be, translations of 4 KiB.
    has_pieces: AtomicBool,
    /// Whether there has been a log by lists.
    has_lists: AtomicBool,
    zap: ZapWay,
}

/// How translations of a removed slot are zapped. The others are baselines for measuring the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ZapWay {
    /// Those of the slot, with one flush. Tables that cover nothing else are detached as a whole.
    #[default]
    Detach,
    /// All of the guest's, like hypervisors that could not name those of a slot.
    Everything,
    /// Those of the slot one at a time, with a flush for each, like hypervisors that could not
    /// gather them.
    PageByPage,
}

impl<F: Format, M: TableMemory> GuestSpace<F, M> {
    /// The space of a guest with these slots, whose nested table has no translation yet.
    ///
    /// # Errors
    ///
    /// [`MapError::OutOfTables`] if there is no memory for the root table.
    pub fn new(slots: Memslots, memory: M, largest: Level) -> Result<Self, MapError> {
        Ok(Self {
            slots,
            tables: PageTable::new(memory)?,
            largest,
            mark_tables: AtomicU32::new(MARK_TABLES_MAX),
            has_marks: true,
            has_job: AtomicBool::new(false),
            has_pieces: AtomicBool::new(false),
            has_lists: AtomicBool::new(false),
            zap: ZapWay::default(),
        })
    }

    /// The same, but removing a slot zaps all translations of the guest: [`ZapWay::Everything`].
    #[must_use]
    pub fn zapping_everything(self, everything: bool) -> Self {
        self.zapping(if everything { ZapWay::Everything } else { ZapWay::Detach })
    }

    /// The same with another way to zap translations.
    #[must_use]
    pub fn zapping(self, zap: ZapWay) -> Self {
        Self { zap, ..self }
    }

    /// The same with marks of addresses without memory, as spaces have them, or without. An IOMMU
    /// may follow an entry that is a [mark](Format::MARK) to the processor.
    #[must_use]
    pub fn marking(self, has_marks: bool) -> Self {
        Self { has_marks, ..self }
    }

    /// The slots. Only jobs change them.
    #[inline]
    pub fn slots(&self) -> &Memslots {
        &self.slots
    }

    /// The nested page table.
    pub fn tables(&self) -> &PageTable<F, M> {
        &self.tables
    }

    /// Whether the TLB may hold a page of the guest in pieces of 4 KiB, because the nested page
    /// table has had such leaves. Then invalidating one address of a large page of the guest is not
    /// enough to remove the page (A17). Set before the first such leaf exists, and never cleared.
    ///
    /// Query it when a flush is carried out, not when it is requested.
    #[inline]
    pub fn has_pieces(&self) -> bool {
        // Pairs with `expect_pieces`: a CPU that holds a piece, or flushes on behalf of one, finds
        // it set.
        self.has_pieces.load(Acquire)
    }

    /// Whether what processors list is to be marked: not before there has been a log by lists.
    #[inline]
    pub fn has_lists(&self) -> bool {
        // Pairs with `start_log`: a CPU that has set a dirty bit which that cleared finds it set.
        self.has_lists.load(Acquire)
    }

    fn expect_pieces(&self) {
        if !self.has_pieces.load(Relaxed) {
            // Pairs with `has_pieces`.
            self.has_pieces.store(true, Release);
        }
    }

    /// Takes the nested page table down: every table is in the gather, including the root.
    ///
    /// Remove the slots before: the memory of those that are left is returned to nobody.
    pub fn dismantle(self) -> Gather<M> {
        self.tables.dismantle()
    }

    /// Root of the nested page table.
    pub fn root(&self) -> PhysAddr {
        self.tables.root()
    }

    /// The latest change of the nested page table: sample it before a flush is issued, for the
    /// flush's receipt.
    pub fn stamp(&self) -> Stamp {
        self.tables.stamp()
    }

    /// Begins to add a slot.
    ///
    /// # Errors
    ///
    /// See [`SlotError`]; [`SlotError::Busy`] while there is another job. Nothing has changed then.
    /// The same applies to the other jobs.
    ///
    /// # Safety
    ///
    /// As for [`Edit::add`].
    pub unsafe fn add(&self, slot: Slot) -> Result<Job<'_, F, M>, SlotError> {
        self.update(|slots| {
            // SAFETY: the caller's promise is the same.
            unsafe { slots.add(slot) }
        })
    }

    /// Begins to remove a slot.
    ///
    /// # Errors
    ///
    /// As for [`add`](Self::add).
    pub fn remove(&self, id: SlotId) -> Result<Job<'_, F, M>, SlotError> {
        self.update(|slots| slots.remove(id))
    }

    /// Begins to move a slot to another guest physical address.
    ///
    /// # Errors
    ///
    /// As for [`add`](Self::add).
    pub fn move_to(&self, id: SlotId, gpa: Gpa) -> Result<Job<'_, F, M>, SlotError> {
        self.update(|slots| slots.move_to(id, gpa))
    }

    /// Begins to change whether the guest may store to a slot.
    ///
    /// # Errors
    ///
    /// As for [`add`](Self::add).
    pub fn set_read_only(&self, id: SlotId, read_only: bool) -> Result<Job<'_, F, M>, SlotError> {
        let former = self.slot(id)?;
        self.update(|slots| {
            let mut flags = former.flags;
            flags.set(SlotFlags::READ_ONLY, read_only);
            slots.set_flags(id, flags)
        })
    }

    /// Begins to log the stores to a slot. The log may also contain pages that were stored to
    /// before the job is done.
    ///
    /// # Errors
    ///
    /// As for [`add`](Self::add).
    ///
    /// # Safety
    ///
    /// As for [`Edit::set_log`].
    pub unsafe fn start_log(
        &self,
        id: SlotId,
        log: DirtyLog,
        way: LogWay,
    ) -> Result<Job<'_, F, M>, SlotError> {
        let former = self.slot(id)?;
        if former.is_device() {
            return Err(SlotError::Device);
        }
        if former.is_logged() {
            return Err(SlotError::HasLog);
        }
        self.expect_pieces();
        if way == LogWay::Lists {
            // Pairs with `has_lists`. It is before the first dirty bit is cleared.
            self.has_lists.store(true, Release);
        }
        self.update(|slots| {
            let mut flags = former.flags;
            flags.set(SlotFlags::LOG_BY_FAULTS, way == LogWay::WriteFaults);
            flags.set(SlotFlags::LOG_BY_LISTS, way == LogWay::Lists);
            slots.set_flags(id, flags)?;
            // SAFETY: the caller's promise is the same.
            unsafe { slots.set_log(id, Some(log)) }
        })
    }

    /// Begins to end a slot's log.
    ///
    /// # Errors
    ///
    /// [`SlotError::NoLog`], and as for [`add`](Self::add).
    pub fn stop_log(&self, id: SlotId) -> Result<Job<'_, F, M>, SlotError> {
        if !self.slot(id)?.is_logged() {
            return Err(SlotError::NoLog);
        }
        self.update(|slots| {
            // SAFETY: there is no log for which to promise anything.
            unsafe { slots.set_log(id, None) }
        })
    }

    /// Begins to make the pages of a slot as large as possible, where there are tables for smaller
    /// ones. The end of a [log](Self::stop_log) does so automatically.
    ///
    /// # Errors
    ///
    /// [`SlotError::HasLog`] if stores to it are logged, which requires small pages;
    /// [`SlotError::UnknownId`]; [`SlotError::Busy`].
    pub fn collapse(&self, id: SlotId) -> Result<Job<'_, F, M>, SlotError> {
        let turn = Turn::take(&self.has_job)?;
        let slot = self.slot(id)?;
        if slot.is_logged() {
            return Err(SlotError::HasLog);
        }
        Ok(Job::collapsing(self, turn, slot))
    }

    /// Begins to fetch a slot's log into `words`, a bit for each page of 4 KiB starting with the
    /// slot's first.
    ///
    /// # Errors
    ///
    /// [`SlotError::NoLog`], [`SlotError::UnknownId`], [`SlotError::Busy`].
    pub fn fetch_log<'w>(
        &self,
        id: SlotId,
        words: &'w mut [u64],
    ) -> Result<FetchJob<'_, 'w, F, M>, SlotError> {
        let turn = Turn::take(&self.has_job)?;
        FetchJob::new(self, turn, id, words)
    }

    fn slot(&self, id: SlotId) -> Result<Slot, SlotError> {
        self.slots.memory().get(id).ok_or(SlotError::UnknownId)
    }

    pub(crate) fn update(
        &self,
        edit: impl FnOnce(&mut Edit<'_, '_>) -> Result<(), SlotError>,
    ) -> Result<Job<'_, F, M>, SlotError> {
        let turn = Turn::take(&self.has_job)?;
        let mut update = self.slots.begin_update()?;
        edit(&mut update.space(SpaceId::FIRST)?)?;
        Ok(Job::new(self, turn, update.publish()))
    }
}

/// The right to be the only job. The next job sees everything that the previous one did.
#[derive(Debug)]
struct Turn<'a>(&'a AtomicBool);

impl<'a> Turn<'a> {
    fn take(has_job: &'a AtomicBool) -> Result<Self, SlotError> {
        // Pairs with the store in `drop`.
        has_job.compare_exchange(false, true, Acquire, Relaxed).map_err(|_| SlotError::Busy)?;
        Ok(Self(has_job))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Pairs with `take`.
        self.0.store(false, Release);
    }
}
