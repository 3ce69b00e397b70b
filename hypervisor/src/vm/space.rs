//! The guest's memory: how changes of its slots, and of what is known about its pages, are carried through.

use core::ops::ControlFlow;

use coherence::{SpaceReceipt, Walkers};
use memslots::Retired;
use memslots::space::{FetchJob, GuestSpace, Job, Progress};
use paging::{Invalidation, Stamp};
use stay::Change;

use super::machine::Machine;
use crate::arch::flush::FlushScratch;
use crate::arch::guest::{Nested, Tables};

/// A flush of all that was translated by the guest's nested page table, over.
pub(crate) type Flushed = SpaceReceipt<Stamp>;

// SAFETY: a CPU runs guest code for the vCPU that it owns, between `try_enter` and `leave` (`Context::enter`); what a refused entry
// finds is carried out by `Context::take_flush`. Software walks the nested table on a vCPU's behalf in `stay::in_section`; an
// audit walks it as well, but never while there is a job.
unsafe impl Walkers for Machine {
    type Stamp = Stamp;

    fn stamp(&self) -> Stamp {
        self.space.stamp()
    }

    fn count(&self) -> usize {
        self.vcpus.len()
    }
}

/// The memory of the one guest.
pub(crate) type Space = GuestSpace<Nested, Tables>;
/// A change of it.
pub(crate) type SpaceJob<'a> = Job<'a, Nested, Tables>;
/// A fetch of a dirty log.
pub(crate) type SpaceFetch<'a> = FetchJob<'a, 'static, Nested, Tables>;

/// Entries of the nested page table that one step visits: well below 50 µs, at a few instructions each.
pub(crate) const STEP_ENTRIES: u32 = 6144;

impl Machine {
    /// Makes one step of a job, with the flush if it comes to one. `Break` when the job is over.
    ///
    /// No guest memory may be pinned by the caller, and no translation section of its vCPU be open.
    pub(crate) fn step_job(&self, job: &mut impl Change, scratch: &mut FlushScratch) -> ControlFlow<()> {
        let flush = |invalidation: Invalidation<'_>| self.flush_space(invalidation, scratch);
        match stay::step(job, STEP_ENTRIES, flush, |retired| self.take_back(&retired)) {
            Progress::Done => return ControlFlow::Break(()),
            Progress::Waiting => core::hint::spin_loop(),
            // To flush again is for the next step, which finds that it has to.
            Progress::More | Progress::Flush => {}
        }
        ControlFlow::Continue(())
    }

    /// With `paranoid`: no translation may be there that a fault would not install now.
    pub(crate) fn audit_if_paranoid(&self) {
        if !self.is_paranoid() {
            return;
        }
        // Another job may have begun; its end is audited too.
        if let Ok(audit) = self.space.audit()
            && let Some(first) = audit.first
        {
            panic!("{} of {} translations are wrong: {first}", audit.wrong_count, audit.leaf_count);
        }
    }

    fn take_back(&self, retired: &Retired) {
        match retired {
            Retired::Memory { slot, .. } => self.memory_of_slots.lock().retire_memory(slot),
            Retired::Log { slot, .. } => self.memory_of_slots.lock().retire_log(slot.id),
        }
    }
}
