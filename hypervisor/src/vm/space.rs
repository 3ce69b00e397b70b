//! The guest's memory: carries out changes of its slots and of its pages' states.

use coherence::{Ledger, Members, SpaceReceipt, Target, Targets, Walkers};
use hostlink::config::MAX_VCPUS;
use hostlink::trace::Event;
use memslots::Retired;
use memslots::space::{FetchJob, GuestSpace, Job, Steps};
use paging::{Invalidation, Progress, Stamp};

use super::arch::Arch;
use super::dma::DmaFlush;
use super::machine::Vm;
use super::{end, trace};

/// A completed flush of all translations from the guest's nested page table.
pub type Flushed = SpaceReceipt<Stamp>;

// SAFETY: a CPU runs guest code for the vCPU that it owns, between `try_enter` and `leave`
// (`Arch::enter`); the flush that a refused entry finds is carried out by `Arch::take_flush`.
// Software walks the nested table on a vCPU's behalf in `stay::in_section`; an audit walks it as
// well, but never while there is a job. `Arch` vouches for the guest's devices.
unsafe impl<A: Arch> Walkers for Vm<A> {
    type Stamp = Stamp;
    type Devices<'a> = DmaFlush<'a, A>;

    fn stamp(&self) -> Stamp {
        self.space.stamp()
    }

    fn count(&self) -> usize {
        self.vcpus.len()
    }
}

/// A guest's memory.
pub type VmMemory<A> = GuestSpace<<A as Arch>::Nested, <A as Arch>::Tables>;
/// A change of it.
pub type MemoryJob<'a, A> = Job<'a, <A as Arch>::Nested, <A as Arch>::Tables>;
/// A fetch of a dirty log.
pub type DirtyFetch<'a, A> = FetchJob<'a, 'static, <A as Arch>::Nested, <A as Arch>::Tables>;

/// Number of 64-bit banks that hold all vCPUs.
const BANKS: usize = (MAX_VCPUS as usize).div_ceil(64);

/// Where an initiator of a flush notes the targets that it waits for; one per CPU. It has room for
/// all vCPUs.
pub type FlushScratch = Ledger<BANKS>;

/// Entries of the nested page table that one step visits: well below 50 µs, at a few instructions
/// each.
pub const STEP_ENTRIES: u32 = 6144;

impl<A: Arch> Targets for Vm<A> {
    fn target(&self, index: usize) -> Option<&Target> {
        self.targets.get(index)
    }

    #[inline(always)]
    fn for_each<S: Members + ?Sized>(&self, set: &S, act: impl FnMut(usize, &Target)) {
        stay::for_each_target(self.targets, |target| target, set, act);
    }
}

impl<A: Arch> Vm<A> {
    /// Drops the guest's nested translations named by `invalidation`, on all CPUs and from the
    /// IOMMUs of its devices.
    pub fn flush_space(&self, invalidation: Invalidation<'_>, scratch: &mut FlushScratch) -> Flushed {
        // A CPU or an IOMMU that does not do its part is a broken machine: to continue would free
        // memory that it still uses.
        trace::here::<A>(Event::SpaceFlushBegins, trace::NOBODY, 0, [0; 2]);
        let devices = DmaFlush::new(self, invalidation);
        let flushed = A::flush_space(self, invalidation, &devices, scratch)
            .unwrap_or_else(|stalled| end::end_stalled_run::<A>(&stalled));
        trace::here::<A>(Event::SpaceFlushEnds, trace::NOBODY, 0, [0; 2]);
        flushed
    }

    /// Makes one step of a job, including the flush if the step needs one. A second flush is left
    /// to the next step, which finds that it is needed.
    ///
    /// The caller must have no guest memory pinned, and no translation section of its vCPU open.
    pub fn step_job(&self, job: &mut impl Steps, scratch: &mut FlushScratch) -> Progress {
        let flush = |invalidation: Invalidation<'_>| self.flush_space(invalidation, scratch);
        stay::step(job, STEP_ENTRIES, flush, |retired| self.take_back(&retired))
    }

    /// With `paranoid`: checks that every translation is one that a fault would install now.
    pub fn audit_if_paranoid(&self) {
        if !self.is_paranoid() {
            return;
        }
        #[cfg(test)]
        self.audits.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        // Another job may have begun; its end is audited too.
        if let Ok(audit) = self.space.audit()
            && let Some(first) = audit.first
        {
            panic!("{} of {} translations are wrong: {first}", audit.wrong_count, audit.leaf_count);
        }
    }

    pub(super) fn take_back(&self, retired: &Retired) {
        match retired {
            Retired::Memory { slot, .. } => self.retire_memory(slot),
            Retired::Log { slot, .. } => self.memory_of_slots.lock().retire_log(slot.id),
        }
    }
}
